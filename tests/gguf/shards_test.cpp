// R17 and C08: split models.
#include "raw_gguf.h"

namespace penstock::gguf::test {
namespace {

// Shard `no` of a set of three with tensors t0, t1, t2; the first has the metadata.
RawGguf shard(int no, int count = 3, int total = 3) {
  RawGguf file;
  if (no == 0) {
    file.string("general.architecture", "test");
    file.u32("general.alignment", 64);
    file.alignment = 64;
  }
  file.u16("split.no", static_cast<uint16_t>(no));
  file.u16("split.count", static_cast<uint16_t>(count));
  file.i32("split.tensors.count", total);
  file.tensors = {{fmt::format("t{}", no), {8}, 0, 0}};
  file.data = std::string(32, static_cast<char>('a' + no));
  return file;
}

std::string name(int no, int count = 3) {
  return fmt::format("m-{:05}-of-{:05}.gguf", no + 1, count);
}

class Shards : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 3; ++i) dir.write(name(i), shard(i).build());
  }
  std::string error(int open, ErrorKind kind = ErrorKind::Format) {
    return error_of(kind, [&] { Model::open(dir.file(name(open))); });
  }
  TempDir dir;
};

TEST_F(Shards, AnyShardOpensAll) {
  Sha256 id{};
  for (int i = 0; i < 3; ++i) {
    const Model model = Model::open(dir.file(name(i)));
    ASSERT_EQ(model.shards().size(), 3u);
    EXPECT_EQ(model.architecture(), "test");
    EXPECT_EQ(model.tensors().size(), 3u);
    // Each shard has its own alignment; the first one's is not inherited.
    EXPECT_EQ(model.shards()[0].alignment, 64u);
    EXPECT_EQ(model.shards()[1].alignment, 32u);
    for (int t = 0; t < 3; ++t) {
      const Tensor& tensor = model.require(fmt::format("t{}", t));
      EXPECT_EQ(tensor.shard, static_cast<uint32_t>(t));
      EXPECT_EQ(static_cast<char>(*model.data(tensor)), 'a' + t);
    }
    if (i == 0) id = model.model_id();
    EXPECT_EQ(model.model_id(), id);
  }
}

TEST_F(Shards, FirstShardWithoutTensors) {
  RawGguf first = shard(0, 3, 2);
  first.tensors.clear();
  first.data.clear();
  std::string bytes = first.build();
  dir.write(name(0), bytes);
  dir.write(name(1), shard(1, 3, 2).build());
  dir.write(name(2), shard(2, 3, 2).build());
  EXPECT_EQ(Model::open(dir.file(name(2))).tensors().size(), 2u);
}

TEST_F(Shards, NamesMayBeLinksToBlobs) {
  const TempDir links;
  for (int i = 0; i < 3; ++i) {
    std::filesystem::create_symlink(dir.file(name(i)), links.file(name(i)));
    std::filesystem::rename(dir.file(name(i)), dir.file(fmt::format("blob{}", i)));
    std::filesystem::remove(links.file(name(i)));
    std::filesystem::create_symlink(dir.file(fmt::format("blob{}", i)), links.file(name(i)));
  }
  EXPECT_EQ(Model::open(links.file(name(1))).tensors().size(), 3u);
}

TEST_F(Shards, MissingShardIsNamed) {
  std::filesystem::remove(dir.file(name(1)));
  const std::string message = error(2, ErrorKind::Io);
  EXPECT_CONTAINS(message, "shard 2 of 3 is missing: no file " + dir.file(name(1)));
}

TEST_F(Shards, RenamedShard) {
  std::filesystem::copy_file(dir.file(name(1)), dir.file("other.gguf"));
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { Model::open(dir.file("other.gguf")); }),
                  "its name does not end in -00002-of-00003.gguf");
}

TEST_F(Shards, SwappedShards) {
  dir.write(name(1), shard(2).build());
  dir.write(name(2), shard(1).build());
  EXPECT_CONTAINS(error(1), "the name says shard 2 of 3, but keys split.no and split.count say 3");
  EXPECT_CONTAINS(error(0), "by its name it is 2 of 3");
}

TEST_F(Shards, CountsThatDisagree) {
  dir.write(name(2), shard(2, 4).build());
  EXPECT_CONTAINS(error(0), "say shard 3 of 4, but by its name it is 3 of 3");
}

TEST_F(Shards, ShardsOfDifferentModels) {
  dir.write(name(2), shard(2, 3, 5).build());
  EXPECT_CONTAINS(error(0), "shards of different models");
  RawGguf other = shard(2);
  other.string("general.architecture", "else");
  dir.write(name(2), other.build());
  EXPECT_CONTAINS(error(0), "key general.architecture is else, but test");
}

TEST_F(Shards, DuplicateTensorAcrossShards) {
  RawGguf twice = shard(2);
  twice.tensors[0].name = "t0";
  dir.write(name(2), twice.build());
  const std::string message = error(0);
  EXPECT_CONTAINS(message, "tensor t0 is also in " + dir.file(name(0)));
}

TEST_F(Shards, WrongTotal) {
  for (int i = 0; i < 3; ++i) dir.write(name(i), shard(i, 3, 4).build());
  EXPECT_CONTAINS(error(0), "hold 3 tensors, but key split.tensors.count says 4");
}

TEST_F(Shards, OldKeysOfAnyIntegerType) {
  RawGguf second = shard(1);
  second.pairs.clear();
  second.u32("split.no", 1);
  second.pair("split.count", 10, pod<uint64_t>(3));
  second.pair("split.tensors.count", 11, pod<int64_t>(3));
  dir.write(name(1), second.build());
  EXPECT_EQ(Model::open(dir.file(name(1))).tensors().size(), 3u);
}

TEST_F(Shards, MergedFileKeepsCountZero) {
  RawGguf merged = worked_example();
  merged.u16("split.count", 0);
  EXPECT_EQ(Model::open(dir.write("merged.gguf", merged.build())).tensors().size(), 2u);
}

TEST_F(Shards, ACorruptShardIsNamed) {
  dir.write(name(1), "GGUF");
  EXPECT_CONTAINS(error(0), dir.file(name(1)) + ": 4 bytes are too few");
}

TEST_F(Shards, HugeCountFailsAtTheFirstMissingFile) {
  dir.write("h-00001-of-65535.gguf", shard(0, 65535).build());
  EXPECT_CONTAINS(error_of(ErrorKind::Io, [&] { Model::open(dir.file("h-00001-of-65535.gguf")); }),
                  "shard 2 of 65535 is missing");
}

TEST(ShardNames, Parse) {
  // The pattern is exact: five digits twice.
  const TempDir dir;
  for (const char* odd : {"m-1-of-3.gguf", "m-00001-of-00003.ggu", "00001-of-00003.gguf"}) {
    const std::string path = dir.write(odd, shard(0).build());
    EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { Model::open(path); }),
                    "its name does not end");
  }
}

}  // namespace
}  // namespace penstock::gguf::test
