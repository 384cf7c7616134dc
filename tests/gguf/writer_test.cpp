#include "gguf/writer.h"

#include <thread>

#include "raw_gguf.h"

namespace penstock::gguf::test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(Writer, WorkedExampleByteForByte) {
  const TempDir dir;
  const RawGguf expected = worked_example();
  Writer writer(dir.file("m.gguf"));
  writer.set_string("general.architecture", "test");
  writer.add_tensor("a", TypeId::Q2_0, std::array<uint64_t, 1>{64});
  writer.add_tensor("b", TypeId::Q8_0, std::array<uint64_t, 2>{32, 2});
  writer.begin();
  writer.append(bytes_of(expected.data.substr(0, 18)));
  writer.append(bytes_of(expected.data.substr(32, 30)));
  writer.append(bytes_of(expected.data.substr(62, 38)));
  EXPECT_FALSE(std::filesystem::exists(dir.file("m.gguf")));
  writer.finish();
  EXPECT_EQ(writer.total_bytes(), 288u);
  EXPECT_EQ(slurp(dir.file("m.gguf")), expected.build());
}

TEST(Writer, EveryMetadataType) {
  const TempDir dir;
  Writer writer(dir.file("m.gguf"), {.alignment = 4096});
  writer.set_u16("u16", 65535);
  writer.set_u32("u32", 4000000000);
  writer.set_i32("i32", -5);
  writer.set_u64("u64", ~uint64_t{0});
  writer.set_f32("f32", 1e-6f);
  writer.set_bool("yes", true);
  writer.set_string("s", std::string("a\0b", 3));
  writer.set_i32_array("i32s", std::array<int32_t, 3>{-1, 0, 1});
  writer.set_u32_array("u32s", std::array<uint32_t, 1>{7});
  writer.set_u64_array("u64s", std::array<uint64_t, 2>{1, ~uint64_t{0}});
  writer.set_f32_array("f32s", std::array<float, 2>{0.25f, -8.0f});
  writer.set_string_array("strings", std::vector<std::string>{"x", "", "yz"});
  EXPECT_TRUE(writer.has("s"));
  EXPECT_FALSE(writer.has("t"));
  writer.add_tensor("w", TypeId::F32, std::array<uint64_t, 1>{1});
  writer.begin();
  writer.append(bytes_of(pod(2.0f)));
  writer.finish();

  const Model model = Model::open(dir.file("m.gguf"));
  const Metadata& m = model.metadata();
  EXPECT_EQ(m.get_u64("general.alignment"), 4096u);
  EXPECT_EQ(model.shards()[0].data_start % 4096, 0u);
  EXPECT_EQ(m.get_u64("u16"), 65535u);
  EXPECT_EQ(m.get_u64("u32"), 4000000000u);
  EXPECT_EQ(m.get_i64("i32"), -5);
  EXPECT_EQ(m.get_u64("u64"), ~uint64_t{0});
  EXPECT_EQ(m.get_f64("f32"), static_cast<double>(1e-6f));
  EXPECT_TRUE(m.get_bool("yes"));
  EXPECT_EQ(m.get_string("s"), std::string_view("a\0b", 3));
  EXPECT_EQ(m.get_i64_array("i32s"), (std::vector<int64_t>{-1, 0, 1}));
  EXPECT_EQ(m.get_u64_array("u32s"), (std::vector<uint64_t>{7}));
  EXPECT_EQ(m.get_u64_array("u64s"), (std::vector<uint64_t>{1, ~uint64_t{0}}));
  EXPECT_EQ(m.get_f64_array("f32s"), (std::vector<double>{0.25, -8.0}));
  EXPECT_EQ(m.get_string_array("strings"), (std::vector<std::string_view>{"x", "", "yz"}));

  // A copy of all entries into another file keeps every byte of them.
  Writer copy(dir.file("copy.gguf"), {.alignment = 4096});
  for (const Entry& entry : m.entries()) {
    if (entry.key != "general.alignment") copy.set_copy(entry);
  }
  copy.add_tensor("w", TypeId::F32, std::array<uint64_t, 1>{1});
  copy.begin();
  copy.append(bytes_of(pod(2.0f)));
  copy.finish();
  EXPECT_EQ(slurp(dir.file("copy.gguf")), slurp(dir.file("m.gguf")));
}

TEST(Writer, ShardsBySize) {
  const TempDir dir;
  Writer writer(dir.file("m.gguf"), {.alignment = 64, .max_shard_bytes = 1000});
  writer.set_string("general.architecture", "test");
  for (int i = 0; i < 6; ++i) {
    // Tensor 3 is larger than a shard may be and gets one of its own.
    writer.add_tensor(fmt::format("t{}", i), TypeId::I8,
                      std::array<uint64_t, 1>{i == 3 ? 2000u : 300u});
  }
  writer.begin();
  for (int i = 0; i < 6; ++i) {
    writer.append(bytes_of(std::string(i == 3 ? 2000 : 300, static_cast<char>('a' + i))));
  }
  writer.finish();
  const std::vector<std::string> names = writer.file_names();
  ASSERT_GT(names.size(), 2u);
  EXPECT_EQ(names[0], dir.file(fmt::format("m-00001-of-{:05}.gguf", names.size())));
  uint64_t total = 0;
  for (const std::string& name : names) {
    const uint64_t size = std::filesystem::file_size(name);
    total += size;
    EXPECT_LE(size, 2400u);
  }
  EXPECT_EQ(total, writer.total_bytes());
  const Model model = Model::open(names.back());
  EXPECT_EQ(model.shards().size(), names.size());
  size_t larger = 0;
  for (const Shard& shard : model.shards()) {
    EXPECT_EQ(shard.alignment, 64u);
    EXPECT_TRUE(shard.file_bytes <= 1000 || shard.n_tensors == 1);
    larger += shard.file_bytes > 1000 ? 1 : 0;
  }
  EXPECT_EQ(larger, 1u);
  for (int i = 0; i < 6; ++i) {
    const Tensor& tensor = model.require(fmt::format("t{}", i));
    EXPECT_EQ(static_cast<char>(model.data(tensor)[tensor.bytes - 1]), 'a' + i);
  }
}

TEST(Writer, ManyThreadsWriteAnywhere) {
  const TempDir dir;
  Writer writer(dir.file("m.gguf"));
  const size_t a = writer.add_tensor("a", TypeId::I32, std::array<uint64_t, 2>{256, 64});
  const size_t b = writer.add_tensor("b", TypeId::I32, std::array<uint64_t, 2>{256, 64});
  writer.begin();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int row = 63 - t; row >= 0; row -= 4) {
        for (const size_t tensor : {a, b}) {
          std::vector<int32_t> values(256, row + (tensor == b ? 1000 : 0));
          writer.write_at(tensor, static_cast<uint64_t>(row) * 1024,
                          std::as_bytes(std::span(values)));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  writer.finish();
  const Model model = Model::open(dir.file("m.gguf"));
  int32_t value = 0;
  std::memcpy(&value, model.data(model.require("b")) + 63 * 1024 + 1020, 4);
  EXPECT_EQ(value, 1063);
}

TEST(Writer, NothingAppearsUnlessComplete) {
  const TempDir dir;
  {
    Writer writer(dir.file("m.gguf"));
    writer.add_tensor("a", TypeId::F32, std::array<uint64_t, 1>{2});
    writer.begin();
    writer.append(bytes_of(pod(1.0f)));
    EXPECT_CONTAINS(error_of(ErrorKind::Internal, [&] { writer.finish(); }),
                    "tensor a got 4 of its 8 bytes");
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Writer, MisuseIsRefused) {
  const TempDir dir;
  Writer writer(dir.file("m.gguf"));
  writer.set_u32("k", 1);
  EXPECT_THROW(writer.set_u32("k", 2), Error);
  writer.add_tensor("a", TypeId::F32, std::array<uint64_t, 1>{2});
  EXPECT_THROW(writer.add_tensor("a", TypeId::F32, std::array<uint64_t, 1>{2}), Error);
  EXPECT_THROW(writer.add_tensor("c", TypeId::Q8_0, std::array<uint64_t, 1>{33}), Error);
  EXPECT_THROW(writer.add_tensor("d", TypeId::F32, std::array<uint64_t, 1>{0}), Error);
  EXPECT_THROW(writer.add_tensor(std::string(64, 'x'), TypeId::F32, std::array<uint64_t, 1>{1}),
               Error);
  EXPECT_THROW(writer.add_tensor("e", TypeId::F32, std::array<uint64_t, 2>{1u << 31, 1ull << 40}),
               Error);
  writer.begin();
  EXPECT_THROW(writer.set_u32("late", 2), Error);
  EXPECT_THROW(writer.append(bytes_of(std::string(9, 'x'))), Error);
  writer.append(bytes_of(std::string(8, 'x')));
  EXPECT_THROW(writer.append(bytes_of("x")), Error);
  writer.finish();
  EXPECT_THROW(Writer(dir.file("n.gguf"), {.alignment = 24}), Error);
}

TEST(Writer, UnwritablePlaceIsNamed) {
  Writer writer("/nonexistent-penstock/m.gguf");
  EXPECT_CONTAINS(error_of(ErrorKind::Io, [&] { writer.begin(); }),
                  "cannot create /nonexistent-penstock/m.gguf");
}

}  // namespace
}  // namespace penstock::gguf::test
