#include <limits>

#include "raw_gguf.h"

namespace penstock::gguf::test {
namespace {

TEST(Metadata, IntegersOfEveryWidth) {
  RawGguf file;
  file.pair("u8", 0, pod<uint8_t>(200));
  file.pair("i8", 1, pod<int8_t>(100));
  file.pair("u16", 2, pod<uint16_t>(60000));
  file.pair("i16", 3, pod<int16_t>(30000));
  file.pair("u32", 4, pod<uint32_t>(4000000000));
  file.pair("i32", 5, pod<int32_t>(2000000000));
  file.pair("u64", 10, pod<uint64_t>(~uint64_t{0}));
  file.pair("i64", 11, pod<int64_t>(int64_t{1} << 62));
  file.pair("minus", 5, pod<int32_t>(-3));
  const std::string bytes = file.build();
  const Model model = open_bytes(bytes);
  const Metadata& m = model.metadata();
  EXPECT_EQ(m.get_u64("u8"), 200u);
  EXPECT_EQ(m.get_u64("i8"), 100u);
  EXPECT_EQ(m.get_u64("u16"), 60000u);
  EXPECT_EQ(m.get_u64("i16"), 30000u);
  EXPECT_EQ(m.get_u64("u32"), 4000000000u);
  EXPECT_EQ(m.get_i64("u32"), 4000000000);
  EXPECT_EQ(m.get_u64("i32"), 2000000000u);
  EXPECT_EQ(m.get_u64("u64"), ~uint64_t{0});
  EXPECT_EQ(m.get_u64("i64"), uint64_t{1} << 62);
  EXPECT_EQ(m.get_i64("minus"), -3);
  EXPECT_EQ(m.get_f64("minus"), -3.0);
  EXPECT_EQ(m.get_f64("u64"), 18446744073709551616.0);
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_u64("minus"); }),
                  "test.gguf: key minus at offset");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_i64("u64"); }), "below 2^63");
}

TEST(Metadata, FloatsBoolsStrings) {
  RawGguf file;
  file.pair("f32", 6, pod(1.5f));
  file.pair("f64", 12, pod(2.5));
  file.pair("yes", 7, "\x01");
  file.pair("no", 7, std::string(1, '\0'));
  file.u32("one", 1);
  file.string("s", "text");
  file.string("none", "");
  const std::string bytes = file.build();
  const Model model = open_bytes(bytes);
  const Metadata& m = model.metadata();
  EXPECT_EQ(m.get_f64("f32"), 1.5);
  EXPECT_EQ(m.get_f64("f64"), 2.5);
  EXPECT_TRUE(m.get_bool("yes"));
  EXPECT_FALSE(m.get_bool("no"));
  EXPECT_TRUE(m.get_bool("one"));
  EXPECT_EQ(m.get_string("s"), "text");
  EXPECT_EQ(m.get_string("none"), "");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_string("one"); }),
                  "is u32, but a string is needed");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_u64("f32"); }),
                  "is f32, but a non-negative integer is needed");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_bool("s"); }), "a bool is needed");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_f64("s"); }), "a number is needed");
}

TEST(Metadata, AbsentKeys) {
  const std::string bytes = worked_example().build();
  const Model model = open_bytes(bytes);
  const Metadata& m = model.metadata();
  EXPECT_FALSE(m.has("x"));
  EXPECT_EQ(m.find("x"), nullptr);
  EXPECT_EQ(m.get_u64("x", 7), 7u);
  EXPECT_EQ(m.get_i64("x", -7), -7);
  EXPECT_EQ(m.get_f64("x", 0.5), 0.5);
  EXPECT_TRUE(m.get_bool("x", true));
  EXPECT_EQ(m.get_string("x", "y"), "y");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_u64("x"); }), "key x is missing");
  // A fallback is for absence, not for a wrong type.
  EXPECT_THROW(m.get_u64("general.architecture", 7), Error);
}

TEST(Metadata, Arrays) {
  RawGguf file;
  file.array("i32", 5, 3, pod<int32_t>(-1) + pod<int32_t>(0) + pod<int32_t>(4));
  file.array("u64", 10, 2, pod<uint64_t>(23703573157769) + pod<uint64_t>(~uint64_t{0}));
  file.array("f32", 6, 2, pod(0.5f) + pod(-2.0f));
  file.array("bool", 7, 3, std::string("\x01\x00\x01", 3));
  file.array("strings", 8, 3, text("a") + text("") + text("ccc"));
  file.array("empty", 8, 0, "");
  file.u32("scalar", 9);
  const std::string bytes = file.build();
  const Model model = open_bytes(bytes);
  const Metadata& m = model.metadata();
  EXPECT_EQ(m.get_i64_array("i32"), (std::vector<int64_t>{-1, 0, 4}));
  EXPECT_EQ(m.get_u64_array("u64"), (std::vector<uint64_t>{23703573157769, ~uint64_t{0}}));
  EXPECT_EQ(m.get_f64_array("f32"), (std::vector<double>{0.5, -2.0}));
  EXPECT_EQ(m.get_bool_array("bool"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(m.get_bool_array("i32"), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(m.get_string_array("strings"), (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_TRUE(m.get_string_array("empty").empty());
  EXPECT_EQ(m.find("strings")->count, 3u);
  EXPECT_EQ(m.find("strings")->element, ValueType::String);
  EXPECT_EQ(m.find("strings")->bytes.size(), 28u);
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_u64_array("i32"); }),
                  "is array of 3 i32, but a non-negative integer is needed");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_i64_array("strings"); }), "key strings");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_string_array("i32"); }),
                  "an array of strings is needed");
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_u64_array("scalar"); }),
                  "is u32, but an array is needed");
  // A nested or scalar confusion the other way round.
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_u64("i32"); }), "is array of 3 i32");
}

TEST(Metadata, PerLayer) {
  RawGguf file;
  file.u32("one", 24);
  file.array("each", 5, 3, pod<int32_t>(1) + pod<int32_t>(2) + pod<int32_t>(3));
  const std::string bytes = file.build();
  const Model model = open_bytes(bytes);
  const Metadata& m = model.metadata();
  EXPECT_EQ(m.get_u64_per_layer("one", 3), (std::vector<uint64_t>{24, 24, 24}));
  EXPECT_EQ(m.get_u64_per_layer("each", 3), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { m.get_u64_per_layer("each", 4); }),
                  "has 3 elements, but the model has 4 layers");
}

TEST(Metadata, EntriesKeepTheFilesOrder) {
  RawGguf file = worked_example();
  file.u32("z", 1);
  file.u32("a", 2);
  const std::string bytes = file.build();
  const Model model = open_bytes(bytes);
  ASSERT_EQ(model.metadata().entries().size(), 3u);
  EXPECT_EQ(model.metadata().entries()[1].key, "z");
  EXPECT_EQ(model.metadata().entries()[2].key, "a");
  const Entry& z = model.metadata().entries()[1];
  EXPECT_EQ(bytes.substr(z.offset, 4), pod<uint32_t>(1));
}

}  // namespace
}  // namespace penstock::gguf::test
