// The checks R1-R16 and R19 of spec/gguf-quants.md §3 on hand-made bytes, and what a valid file
// gives. R17 (shards) is in shards_test.cpp; R18 belongs to the models.
#include <sys/stat.h>

#include <limits>

#include "raw_gguf.h"

namespace penstock::gguf::test {
namespace {

TEST(Reader, WorkedExample) {
  const std::string bytes = worked_example().build();
  ASSERT_EQ(bytes.size(), 288u);
  const Model model = open_bytes(bytes);
  EXPECT_EQ(model.architecture(), "test");
  EXPECT_EQ(model.arch_key("block_count"), "test.block_count");
  ASSERT_EQ(model.shards().size(), 1u);
  EXPECT_EQ(model.shards()[0].alignment, 32u);
  EXPECT_EQ(model.shards()[0].header_bytes, 142u);
  EXPECT_EQ(model.shards()[0].data_start, 160u);
  EXPECT_EQ(model.file_bytes(), 288u);
  ASSERT_EQ(model.tensors().size(), 2u);
  const Tensor& a = model.require("a");
  EXPECT_EQ(a.type, TypeId::Q2_0);
  EXPECT_EQ(a.n_dims, 1u);
  EXPECT_EQ(a.offset, 160u);
  EXPECT_EQ(a.bytes, 18u);
  const Tensor& b = model.require("b");
  EXPECT_EQ(b.type, TypeId::Q8_0);
  EXPECT_EQ(b.ne, (std::array<uint64_t, 4>{32, 2, 1, 1}));
  EXPECT_EQ(b.offset, 192u);
  EXPECT_EQ(b.row_bytes, 34u);
  EXPECT_EQ(b.rows(), 2u);
  EXPECT_EQ(b.bytes, 68u);
  EXPECT_EQ(b.n_elements(), 64u);
  EXPECT_EQ(std::memcmp(model.data(b), bytes.data() + 192, 68), 0);
  EXPECT_EQ(shape_text(b), "[32, 2]");
  EXPECT_EQ(model.find("c"), nullptr);
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { model.require("c"); }),
                  "test.gguf: tensor c is missing");
}

TEST(Reader, VersionTwoAndMissingPadding) {
  RawGguf file = worked_example();
  file.version = 2;
  file.data.resize(100);
  EXPECT_EQ(open_bytes(file.build()).tensors().size(), 2u);
}

TEST(Reader, FileWithoutTensorsMayEndAfterItsPairs) {
  RawGguf file;
  file.string("general.architecture", "test");
  std::string bytes = file.build();
  bytes.resize(68);
  EXPECT_TRUE(open_bytes(bytes).tensors().empty());
}

TEST(Reader, EveryTruncationIsAnError) {
  const std::string bytes = worked_example().build();
  for (size_t n = 0; n < 260; ++n) {
    const std::string message = open_error(bytes.substr(0, n));
    EXPECT_CONTAINS(message, "test.gguf: ");
  }
}

TEST(Reader, R1Magic) {
  std::string bytes = worked_example().build();
  bytes[0] = 'X';
  EXPECT_CONTAINS(open_error(bytes), "it starts with \"XGUF\" instead of \"GGUF\"");
  EXPECT_CONTAINS(open_error("GGUF"), "4 bytes are too few");
  EXPECT_CONTAINS(open_error(""), "0 bytes are too few");
}

TEST(Reader, R1Versions) {
  for (const uint32_t version : {0u, 1u, 4u, 70000u}) {
    RawGguf file = worked_example();
    file.version = version;
    EXPECT_CONTAINS(open_error(file.build()), "is not supported");
  }
  RawGguf big = worked_example();
  big.version = 0x03000000;
  EXPECT_CONTAINS(open_error(big.build()), "wrong endianness");
}

TEST(Reader, C07NotAModelAtAll) {
  EXPECT_CONTAINS(open_error("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"),
                  "this is a Git LFS pointer, not the model");
  EXPECT_CONTAINS(open_error("\n <!DOCTYPE html><html><body>404 not found, sorry</body></html>"),
                  "this is a web page, not the model");
  EXPECT_CONTAINS(open_error("<HTML lang=en>"), "this is a web page");
}

TEST(Reader, R2CountsAgainstTheFileSize) {
  RawGguf file = worked_example();
  for (const int64_t claim : {int64_t{30}, int64_t{1} << 40, std::numeric_limits<int64_t>::max()}) {
    file.claim_tensors = claim;
    file.claim_pairs = -1;
    EXPECT_CONTAINS(open_error(file.build()), "the tensor count");
    file.claim_tensors = -1;
    file.claim_pairs = claim;
    EXPECT_CONTAINS(open_error(file.build()), "the key count");
  }
}

TEST(Reader, R3LengthsAgainstTheRest) {
  RawGguf string;
  string.pair("k", 8, pod<uint64_t>(1000) + "short");
  EXPECT_CONTAINS(open_error(string.build()), "the value of key k at offset 45 needs 1000 bytes");
  RawGguf huge;
  huge.pair("k", 8, pod<uint64_t>(~uint64_t{0}));
  EXPECT_CONTAINS(open_error(huge.build()), "the value of key k");
  RawGguf key;
  key.pairs.emplace_back("", "");
  std::string bytes = key.build().substr(0, 24) + pod<uint64_t>(uint64_t{1} << 62) + "abcdefgh";
  EXPECT_CONTAINS(open_error(bytes), "key 1 of 1");
  for (const uint32_t element : {0u, 4u, 8u, 10u}) {
    RawGguf array;
    // 2^61 elements of 8 bytes wrap to 0 when multiplied carelessly.
    array.array("k", element, uint64_t{1} << 61, "12345678");
    EXPECT_CONTAINS(open_error(array.build()), "claims 2305843009213693952 elements");
  }
  RawGguf strings;
  strings.array("k", 8, 2, text("fine") + pod<uint64_t>(99) + "x");
  EXPECT_CONTAINS(open_error(strings.build()), "the array of key k");
}

TEST(Reader, R4Keys) {
  RawGguf empty = worked_example();
  empty.u32("", 1);
  EXPECT_CONTAINS(open_error(empty.build()), "key 2 of 2 at offset 68 is empty");
  RawGguf twice = worked_example();
  twice.u32("x", 1);
  twice.u32("x", 2);
  EXPECT_CONTAINS(open_error(twice.build()), "key x at offset 85 appears twice");
  RawGguf longest;
  longest.u32(std::string(65535, 'k'), 7);
  EXPECT_EQ(open_bytes(longest.build()).metadata().get_u64(std::string(65535, 'k')), 7u);
  RawGguf longer;
  longer.u32(std::string(65536, 'k'), 7);
  EXPECT_CONTAINS(open_error(longer.build()), "is 65536 bytes long");
}

TEST(Reader, R5ValueTypes) {
  for (const uint32_t type : {13u, 255u, 0xFFFFFFFFu}) {
    RawGguf file;
    file.pair("k", type, "12345678");
    EXPECT_CONTAINS(open_error(file.build()), "key k at offset 33 has the unknown value type");
    RawGguf array;
    array.array("k", type, 1, "12345678");
    EXPECT_CONTAINS(open_error(array.build()), "unknown array element type");
  }
  RawGguf nested;
  nested.array("k", 9, 1, pod<uint32_t>(0) + pod<uint64_t>(0));
  EXPECT_CONTAINS(open_error(nested.build()), "key k at offset 37 is an array of arrays");
}

TEST(Reader, R6Bools) {
  RawGguf scalar;
  scalar.pair("k", 7, "\x02");
  EXPECT_CONTAINS(open_error(scalar.build()), "key k at offset 37 is a bool, but its byte is 2");
  RawGguf array;
  array.array("k", 7, 3, std::string("\x01\x00\x05", 3));
  EXPECT_CONTAINS(open_error(array.build()), "but its byte is 5");
}

TEST(Reader, R7Alignment) {
  for (const uint64_t alignment : {uint64_t{1}, uint64_t{8}, uint64_t{64}, uint64_t{1} << 20}) {
    RawGguf file = worked_example();
    file.u32("general.alignment", static_cast<uint32_t>(alignment));
    file.alignment = alignment;
    file.tensors[1].offset = std::max<uint64_t>(alignment, 32);
    file.data.resize(file.tensors[1].offset + 68);
    const Model model = open_bytes(file.build());
    EXPECT_EQ(model.shards()[0].alignment, alignment);
    EXPECT_EQ(model.shards()[0].data_start % alignment, 0u);
  }
  for (const uint32_t alignment : {0u, 3u, 24u, 1u << 21, 1u << 31}) {
    RawGguf file = worked_example();
    file.u32("general.alignment", alignment);
    EXPECT_CONTAINS(open_error(file.build()), "key general.alignment at offset");
  }
  RawGguf wrong = worked_example();
  wrong.string("general.alignment", "32");
  EXPECT_CONTAINS(open_error(wrong.build()), "is string, but u32 is needed");
  RawGguf real = worked_example();
  real.pair("general.alignment", 6, pod(32.0f));
  EXPECT_CONTAINS(open_error(real.build()), "is f32, but u32 is needed");
}

TEST(Reader, R8TensorNames) {
  RawGguf file = worked_example();
  file.tensors[0].name = std::string(63, 'n');
  EXPECT_NE(open_bytes(file.build()).find(std::string(63, 'n')), nullptr);
  file.tensors[0].name = std::string(64, 'n');
  EXPECT_CONTAINS(open_error(file.build()), "is 64 bytes long; at most 63");
  file.tensors[0].name = "";
  EXPECT_CONTAINS(open_error(file.build()), "has no name");
  file.tensors[0].name = "b";
  EXPECT_CONTAINS(open_error(file.build()), "tensor b is described twice");
}

TEST(Reader, NamesInMessagesAreHarmless) {
  RawGguf file = worked_example();
  file.tensors[0].name = "a\x1b[31m\n";
  file.tensors[0].type = 4;
  const std::string message = open_error(file.build(), ErrorKind::Unsupported);
  EXPECT_CONTAINS(message, "a\\x1b[31m\\x0a");
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(Reader, R9Dimensions) {
  RawGguf file = worked_example();
  file.tensors[0].dims = {64, 1, 1, 1, 1};
  EXPECT_CONTAINS(open_error(file.build()), "has 5 dimensions");
  file.tensors[0].dims = {uint64_t{1} << 63};
  EXPECT_CONTAINS(open_error(file.build()), "more than 2^63 elements");
  file = worked_example();
  file.tensors[1] = {"b", {}, 0, 32};  // no dimension: a scalar
  EXPECT_EQ(open_bytes(file.build()).require("b").bytes, 4u);
}

TEST(Reader, R10ElementCountThatWraps) {
  RawGguf file = worked_example();
  for (const auto& dims : std::vector<std::vector<uint64_t>>{
           {uint64_t{1} << 40, uint64_t{1} << 40},
           {uint64_t{1} << 32, uint64_t{1} << 31},
           {64, uint64_t{1} << 62, uint64_t{1} << 62, uint64_t{1} << 62}}) {
    file.tensors[0].dims = dims;
    EXPECT_CONTAINS(open_error(file.build()), "more than 2^63 elements");
  }
}

TEST(Reader, R11C01ZeroDimension) {
  RawGguf file = worked_example();
  file.tensors[0].dims = {64, 0};
  EXPECT_CONTAINS(open_error(file.build()), "tensor a at offset 68: dimension 1 is zero");
  file.tensors[0].dims = {0};
  EXPECT_CONTAINS(open_error(file.build()), "dimension 0 is zero");
}

TEST(Reader, R12Types) {
  RawGguf file = worked_example();
  for (const uint32_t id : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u}) {
    file.tensors[0].type = id;
    EXPECT_CONTAINS(open_error(file.build(), ErrorKind::Unsupported),
                    "a type that was removed from the format");
  }
  for (const uint32_t id : {43u, 97u, 399u, 0xFFFFFFFFu}) {
    file.tensors[0].type = id;
    const std::string message = open_error(file.build(), ErrorKind::Unsupported);
    EXPECT_CONTAINS(message, "tensor a");
    EXPECT_CONTAINS(message, fmt::format("type id {}", id));
  }
  file.tensors[0].type = 142;
  EXPECT_CONTAINS(open_error(file.build(), ErrorKind::Unsupported), "PQ2_0");
  file.tensors[0].type = 143;
  EXPECT_CONTAINS(open_error(file.build(), ErrorKind::Unsupported), "PTQ1_0");
}

TEST(Reader, EveryTypeOfTheTable) {
  for (const TypeInfo& type : kTypes) {
    RawGguf file;
    file.tensors = {{"t", {type.block_elems * 2, 3}, static_cast<uint32_t>(type.id), 0}};
    file.data.resize(type.block_bytes * 6);
    const std::string bytes = file.build();
    const Model model = open_bytes(bytes);
    EXPECT_EQ(model.require("t").row_bytes, 2u * type.block_bytes) << type.name;
    EXPECT_EQ(model.require("t").bytes, 6u * type.block_bytes) << type.name;
  }
}

TEST(Reader, R13WholeBlocksPerRow) {
  RawGguf file = worked_example();
  file.tensors[1].dims = {16, 4};
  EXPECT_CONTAINS(open_error(file.build()),
                  "tensor b at offset 101: rows of 16 elements are no whole number of Q8_0 blocks");
}

TEST(Reader, R14OffsetsAndEnds) {
  RawGguf file = worked_example();
  file.tensors[1].offset = 48;
  EXPECT_CONTAINS(open_error(file.build()), "tensor b: its data offset 48 is no multiple");
  file = worked_example();
  const std::string bytes = file.build();
  EXPECT_CONTAINS(open_error(bytes.substr(0, 248)), "tensor b (Q8_0 of shape [32, 2]");
  for (const uint64_t offset : {uint64_t{1} << 40, ~uint64_t{0} - 31, ~uint64_t{0} - 191}) {
    file.tensors[1].offset = offset;
    EXPECT_CONTAINS(open_error(file.build()), "lies past the end of the file");
  }
  file = worked_example();
  file.tensors[1].dims = {32, uint64_t{1} << 50};
  EXPECT_CONTAINS(open_error(file.build()), "lies past the end of the file");
  file.tensors[1] = {"b", {uint64_t{1} << 62}, 28, 32};  // F64: the bytes wrap
  EXPECT_CONTAINS(open_error(file.build()), "exceeds 2^64");
}

TEST(Reader, R15GapsAreAcceptedOverlapsAreNot) {
  RawGguf file = worked_example();
  file.tensors[1].offset = 64;
  file.data.resize(64 + 68);
  EXPECT_EQ(open_bytes(file.build()).require("b").offset, 160u + 64);
  file.tensors[1].offset = 0;
  EXPECT_CONTAINS(open_error(file.build()), "starts at data offset 0, inside tensor a");
  // Order in the file need not be order of description.
  file = worked_example();
  file.tensors[0].offset = 96;
  file.tensors[1].offset = 0;
  EXPECT_EQ(open_bytes(file.build()).require("a").offset, 160u + 96);
  file.tensors[0].offset = 64;
  EXPECT_CONTAINS(open_error(file.build()), "inside tensor b");
}

TEST(Reader, R15LegacyTypeIdsAreNamed) {
  RawGguf file;
  file.tensors = {{"w", {1280}, 42, 0}, {"x", {32}, 8, 352}};
  file.data.resize(352 + 34);
  EXPECT_CONTAINS(open_error(file.build(), ErrorKind::Unsupported), "g128");
  // As the last tensor: the file ends too early for upstream's layout, with or without padding.
  for (const size_t size : {340u, 352u}) {
    RawGguf last;
    last.tensors = {{"w", {1280}, 42, 0}};
    last.data.resize(size);
    EXPECT_CONTAINS(open_error(last.build(), ErrorKind::Unsupported), "g128");
  }
  RawGguf upstream;
  upstream.tensors = {{"w", {1280}, 42, 0}, {"x", {32}, 8, 384}};
  upstream.data.resize(384 + 34);
  EXPECT_EQ(open_bytes(upstream.build()).require("w").bytes, 360u);
  RawGguf neither;
  neither.tensors = {{"w", {1280}, 42, 0}, {"x", {32}, 8, 320}};
  neither.data.resize(384 + 34);
  EXPECT_CONTAINS(open_error(neither.build()), "inside tensor w");
  RawGguf one_bit;
  one_bit.tensors = {{"w", {1280}, 40, 0}, {"x", {32}, 8, 256}};
  one_bit.data.resize(256 + 34);
  EXPECT_CONTAINS(open_error(one_bit.build(), ErrorKind::Unsupported), "one-bit fork");
}

TEST(Reader, R16TrailingDataIsIgnored) {
  const std::string bytes = worked_example().build() + std::string(1000, 'x');
  EXPECT_EQ(open_bytes(bytes).tensors().size(), 2u);
}

TEST(Reader, DenseOnlyFiles) {
  RawGguf file;
  file.tensors = {{"blk.0.attn_q.weight", {32, 2}, 8, 0},
                  {"blk.0.ffn_up_exps.weight", {32, 4, 8}, 8, 96}};
  file.data.resize(96);
  const std::string bytes = file.build();
  EXPECT_CONTAINS(open_error(bytes), "tensor blk.0.ffn_up_exps.weight");
  OpenOptions options;
  options.allow_missing_experts = true;
  const Model model = open_bytes(bytes, options);
  const Tensor& bank = model.require("blk.0.ffn_up_exps.weight");
  EXPECT_FALSE(bank.present);
  EXPECT_EQ(bank.slice_bytes(), 4u * 34);
  EXPECT_TRUE(model.require("blk.0.attn_q.weight").present);
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { model.data(bank); }),
                  "has no data in this file");
  // Other tensors may not be missing even so.
  file.tensors[1].name = "blk.0.ffn_up_shexp.weight";
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { open_bytes(file.build(), options); }),
                  "lies past the end");
}

TEST(Reader, ExpertBanksByName) {
  EXPECT_TRUE(is_expert_bank("blk.11.ffn_gate_up_exps.weight"));
  EXPECT_TRUE(is_expert_bank("blk.0.ffn_down_exps.weight"));
  EXPECT_FALSE(is_expert_bank("blk.0.ffn_down_exps.scale"));
  EXPECT_FALSE(is_expert_bank("blk.0.ffn_down_shexp.weight"));
  EXPECT_FALSE(is_expert_bank("ffn_down_exps.weight"));
  EXPECT_FALSE(is_expert_bank("blk.0.attn_k_b.weight"));
}

TEST(Reader, Files) {
  const TempDir dir;
  const std::string path = dir.write("m.gguf", worked_example().build());
  const Model model = Model::open(path);
  EXPECT_EQ(model.path(), path);
  EXPECT_EQ(model.require("b").bytes, 68u);
  EXPECT_CONTAINS(error_of(ErrorKind::Io, [&] { Model::open(dir.file("none.gguf")); }),
                  "No such file or directory (errno 2)");
  EXPECT_CONTAINS(error_of(ErrorKind::Io, [&] { Model::open(dir.path()); }), "is a directory");
  ASSERT_EQ(mkfifo(dir.file("fifo").c_str(), 0600), 0);
  EXPECT_CONTAINS(error_of(ErrorKind::Io, [&] { Model::open(dir.file("fifo")); }),
                  "is not a regular file");
  const std::string empty = dir.write("empty.gguf", "");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { Model::open(empty); }), "0 bytes are too few");
}

TEST(Reader, Identities) {
  const std::string bytes = worked_example().build();
  const Model model = open_bytes(bytes);
  Sha256Stream header;
  header.update(bytes.data(), 142);
  EXPECT_EQ(model.header_id(), header.finish());
  Sha256Stream whole;
  whole.update(bytes.data(), 142);
  for (int twice = 0; twice < 2; ++twice) whole.update(bytes.data() + 160, 18);
  for (int twice = 0; twice < 2; ++twice) whole.update(bytes.data() + 192, 68);
  EXPECT_EQ(model.model_id(), whole.finish());
  // Other weights of the same shape: the same header, another model.
  std::string other = bytes;
  other[200] = static_cast<char>(other[200] ^ 1);
  EXPECT_EQ(open_bytes(other).header_id(), model.header_id());
  EXPECT_NE(open_bytes(other).model_id(), model.model_id());
}

TEST(Reader, IdentityReadsFirstAndLastFourKib) {
  RawGguf file;
  file.tensors = {{"t", {20000}, 24, 0}};
  file.data.assign(20000, 'x');
  std::string bytes = file.build();
  const size_t start = bytes.size() - 20000;
  const Sha256 id = open_bytes(bytes).model_id();
  const auto changed = [&](size_t at) {
    std::string copy = bytes;
    copy[start + at] = 'y';
    return open_bytes(copy).model_id() != id;
  };
  EXPECT_TRUE(changed(0));
  EXPECT_TRUE(changed(4095));
  EXPECT_FALSE(changed(4096));
  EXPECT_FALSE(changed(20000 - 4097));
  EXPECT_TRUE(changed(20000 - 4096));
  EXPECT_TRUE(changed(19999));
}

// R19: a data scan finds the first scale that is not finite, at the scale's place in each type.
TEST(Reader, R19NonFiniteScales) {
  struct Case {
    TypeId type;
    std::vector<size_t> halves;  // offsets of fp16 scales in the block
  };
  const std::vector<Case> cases = {
      {TypeId::F16, {0}},     {TypeId::Q4_0, {0}},      {TypeId::Q4_1, {0, 2}},
      {TypeId::Q5_0, {0}},    {TypeId::Q5_1, {0, 2}},   {TypeId::Q8_0, {0}},
      {TypeId::Q8_1, {0, 2}}, {TypeId::Q2_K, {80, 82}}, {TypeId::Q3_K, {108}},
      {TypeId::Q4_K, {0, 2}}, {TypeId::Q5_K, {0, 2}},   {TypeId::Q6_K, {208}},
      {TypeId::IQ2_XXS, {0}}, {TypeId::IQ2_XS, {0}},    {TypeId::IQ2_S, {0}},
      {TypeId::IQ3_XXS, {0}}, {TypeId::IQ3_S, {0}},     {TypeId::IQ1_S, {0}},
      {TypeId::IQ4_NL, {0}},  {TypeId::IQ4_XS, {0}},    {TypeId::TQ1_0, {52}},
      {TypeId::TQ2_0, {64}},  {TypeId::Q1_0, {0}},      {TypeId::Q2_0, {0}}};
  for (const Case& c : cases) {
    const TypeInfo& type = type_info(c.type);
    RawGguf file;
    file.tensors = {{"t", {type.block_elems, 3}, static_cast<uint32_t>(c.type), 0}};
    file.data.assign(3 * type.block_bytes, '\x11');
    std::string bytes = file.build();
    const Model model = open_bytes(bytes);
    EXPECT_NO_THROW(check_finite(model, model.require("t"))) << type.name;
    for (const size_t at : c.halves) {
      const size_t where = model.require("t").offset + 2 * type.block_bytes + at;
      const std::string saved = bytes.substr(where, 2);
      bytes[where] = '\x00';
      bytes[where + 1] = '\xFC';  // minus infinity
      const std::string message =
          error_of(ErrorKind::Numeric, [&] { check_finite(model, model.require("t")); });
      EXPECT_CONTAINS(message, fmt::format("elements {} to", 2 * type.block_elems));
      bytes.replace(where, 2, saved);
    }
  }
}

TEST(Reader, R19OtherEncodings) {
  const auto scan = [](TypeId id, const std::string& block) {
    RawGguf file;
    file.tensors = {{"t", {type_info(id).block_elems}, static_cast<uint32_t>(id), 0}};
    file.data = block;
    const std::string bytes = file.build();
    const Model model = open_bytes(bytes);
    check_finite(model, model.require("t"));
  };
  EXPECT_NO_THROW(scan(TypeId::F32, pod(1.0f)));
  EXPECT_THROW(scan(TypeId::F32, pod(std::numeric_limits<float>::quiet_NaN())), Error);
  EXPECT_THROW(scan(TypeId::F64, pod(std::numeric_limits<double>::infinity())), Error);
  EXPECT_THROW(scan(TypeId::BF16, pod<uint16_t>(0x7F80)), Error);
  EXPECT_NO_THROW(scan(TypeId::BF16, pod<uint16_t>(0x7F7F)));
  EXPECT_THROW(scan(TypeId::MXFP4, std::string(17, '\xFF')), Error);
  EXPECT_NO_THROW(scan(TypeId::MXFP4, std::string(17, '\xFE')));
  EXPECT_NO_THROW(scan(TypeId::NVFP4, std::string(36, '\xFF')));
  // IQ1_M: 0x7C00 spread over the top nibbles of the last four u16.
  std::string iq1_m(56, '\0');
  iq1_m[53] = '\xC0';  // S2 top nibble: bits 8-11
  iq1_m[55] = '\x70';  // S3 top nibble: bits 12-15
  EXPECT_THROW(scan(TypeId::IQ1_M, iq1_m), Error);
  iq1_m[53] = '\x80';
  EXPECT_NO_THROW(scan(TypeId::IQ1_M, iq1_m));
}

}  // namespace
}  // namespace penstock::gguf::test
