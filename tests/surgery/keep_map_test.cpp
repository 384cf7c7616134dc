#include "surgery/keep_map.h"

#include <fstream>

#include "gguf/raw_gguf.h"
#include "models/tiny_models.h"

namespace penstock::surgery {
namespace {

using gguf::test::error_of;
using testing::TemporaryFolder;

KeepMap small_map() {
  KeepMap map;
  map.model_id.fill(0x1f);
  map.model_name = "Tiny \"one\"";
  map.method = "reap";
  map.rule = "3 per layer";
  map.stats_id.fill(0xa0);
  map.tokens = 1234;
  map.layers = {{0, 8, {1, 4, 7}}, {2, 8, {0, 1, 2}}};
  return map;
}

// Written by hand; its SHA-256 is that of sha256sum.
constexpr const char* kText = R"({
 "calibration_tokens": 1234,
 "format": "penstock-keep-map",
 "layers": [
  {"experts": 8, "kept": [1, 4, 7], "layer": 0},
  {"experts": 8, "kept": [0, 1, 2], "layer": 2}
 ],
 "method": "reap",
 "model_id": "1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f",
 "model_name": "Tiny \"one\"",
 "rule": "3 per layer",
 "seed": 0,
 "stats_sha256": "a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0",
 "version": 1
}
)";
constexpr const char* kId = "2bc06ff17e385e6cbe0c69fc7fba83eb122919a70dbfd3c5c5aedd2fff15823b";

std::string put(const TemporaryFolder& folder, const std::string& text) {
  const std::string path = folder.path() + "/map.json";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// The text with one part replaced.
std::string edited(const std::string& from, const std::string& to) {
  std::string text = kText;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(KeepMap, HasOneTextAndOneIdentity) {
  const TemporaryFolder folder;
  EXPECT_EQ(canonical_text(small_map()), kText);
  EXPECT_EQ(hex(keep_map_id(small_map())), kId);
  const std::string path = folder.path() + "/written.json";
  write_keep_map(path, small_map());
  std::ifstream in(path, std::ios::binary);
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(in), {}}), kText);
  EXPECT_EQ(read_keep_map(path), small_map());

  // Another order of the keys and other spaces are the same map.
  const std::string shuffled =
      R"({"version":1,"seed":0,"rule":"3 per layer","model_name":"Tiny \"one\"","method":"reap",)"
      R"("layers":[{"layer":0,"kept":[1,4,7],"experts":8},{"kept":[0,1,2],"layer":2,"experts":8}],)"
      R"("stats_sha256":"a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0",)"
      R"("model_id":"1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f",)"
      R"("format":"penstock-keep-map","calibration_tokens":1234})";
  EXPECT_EQ(hex(keep_map_id(read_keep_map(put(folder, shuffled)))), kId);

  KeepMap other = small_map();
  other.layers[1].kept.back() = 3;
  EXPECT_NE(hex(keep_map_id(other)), kId);
  other = small_map();
  other.stats_id = {};
  EXPECT_NE(canonical_text(other).find("\"stats_sha256\": null"), std::string::npos);
  EXPECT_EQ(read_keep_map(put(folder, canonical_text(other))), other);
}

TEST(KeepMap, RefusesWhatIsNoKeepMap) {
  const TemporaryFolder folder;
  struct Case {
    std::string text;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {"", {"JSON"}},
      {"[1]", {"no keep-map"}},
      {edited("penstock-keep-map", "penstock-profile"), {"no keep-map"}},
      {edited("[1, 4, 7]", "[4, 1, 7]"), {"layer 0", "not ascending", "1 after 4"}},
      {edited("[1, 4, 7]", "[1, 4, 4]"), {"layer 0", "lists 4 twice"}},
      {edited("[0, 1, 2]", "[0, 1, 8]"), {"layer 2", "names expert 8", "has 8"}},
      {edited("[0, 1, 2]", "[0, -1, 2]"), {"layer 2", "whole number"}},
      {edited("[0, 1, 2]", "[]"), {"layer 2", "at least one"}},
      {edited("\"layer\": 2", "\"layer\": 0"), {"layers", "not ascending"}},
      {edited("\"experts\": 8", "\"experts\": 100000"), {"layers[0].experts", "65536"}},
      {edited(", \"layer\": 2", ""), {"layer", "missing"}},
      {edited("\"seed\": 0", "\"seeds\": 0"), {"\"seeds\"", "no field"}},
      {edited("\"layer\": 2", "\"layer\": 2, \"weight\": 1"), {"layers[1]", "\"weight\""}},
      {edited("1f1f", "1F1F"), {"model_id", "64 digits"}},
      {edited("\"method\": \"reap\"", "\"method\": 5"), {"method", "text"}},
      {edited("1234", "1e99"), {"calibration_tokens", "whole number"}},
  };
  for (const Case& c : cases) {
    const std::string path = put(folder, c.text);
    const std::string message = error_of(ErrorKind::Format, [&] { read_keep_map(path); });
    EXPECT_CONTAINS(message, path);
    for (const std::string& word : c.words) EXPECT_CONTAINS(message, word);
  }
  error_of(ErrorKind::Unsupported,
           [&] { read_keep_map(put(folder, edited("\"version\": 1", "\"version\": 2"))); });
  error_of(ErrorKind::Io, [&] { read_keep_map(folder.path() + "/none.json"); });
}

MoeLayer layer_of(int block, uint64_t n_expert, uint64_t n_used, uint64_t n_groups = 1,
                  uint64_t n_groups_used = 1) {
  MoeLayer layer;
  layer.layer = block;
  layer.n_expert = n_expert;
  layer.n_used = n_used;
  layer.n_groups = n_groups;
  layer.n_groups_used = n_groups_used;
  return layer;
}

TEST(KeepMap, IsCheckedAgainstTheModel) {
  const KeepMap map = small_map();
  const Sha256 right = map.model_id;
  Sha256 wrong = right;
  wrong[0] = 1;
  const std::vector<MoeLayer> layers = {layer_of(0, 8, 3), layer_of(2, 8, 2)};
  check_keep_map(map, "m", layers, &right);
  check_keep_map(map, "m", layers, nullptr);
  const auto check = [&](std::vector<MoeLayer> with, const Sha256* id = nullptr) {
    return error_of(ErrorKind::Format, [&] { check_keep_map(map, "m.json", with, id); });
  };
  EXPECT_CONTAINS(check(layers, &wrong), "another model");
  EXPECT_CONTAINS(check(layers, &wrong), "--other-model");
  EXPECT_CONTAINS(check({layer_of(0, 8, 3)}), "lists 2 layers, the model has 1");
  EXPECT_CONTAINS(check({layer_of(0, 8, 3), layer_of(1, 8, 2)}), "layer 1 with 8");
  EXPECT_CONTAINS(check({layer_of(0, 9, 3), layer_of(2, 8, 2)}), "layer 0 with 9");
  EXPECT_CONTAINS(check({layer_of(0, 8, 4), layer_of(2, 8, 2)}), "4 of them are used per token");
  // Groups {0..3} and {4..7}.
  EXPECT_CONTAINS(check({layer_of(0, 8, 2, 2, 1), layer_of(2, 8, 2)}), "routing groups");
}

TEST(KeepMap, RoutingGroupsKeepEqualNumbersThatHoldAToken) {
  KeepMap map = small_map();
  map.layers = {{0, 8, {0, 3, 4, 7}}};
  const std::vector<MoeLayer> fits = {layer_of(0, 8, 2, 2, 1)};
  check_keep_map(map, "m", fits, nullptr);
  const std::vector<MoeLayer> too_small = {layer_of(0, 8, 3, 2, 1)};
  error_of(ErrorKind::Format, [&] { check_keep_map(map, "m", too_small, nullptr); });
  map.layers = {{0, 8, {0, 2, 3, 7}}};
  error_of(ErrorKind::Format, [&] { check_keep_map(map, "m", fits, nullptr); });
}

}  // namespace
}  // namespace penstock::surgery
