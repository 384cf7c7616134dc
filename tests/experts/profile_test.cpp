#include "experts/profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "experts/expert_files.h"

namespace penstock::experts::test {
namespace {

using Json = nlohmann::ordered_json;

Profile example() {
  Profile profile;
  profile.model_id.fill(0xab);
  profile.routing = "exact";
  profile.layers = {{3, {1, 0, 5}, {0, 0, 2}}, {4, {0, 0, 0, 2}, {0, 0, 0, 0}}};
  profile.n_tokens = 14;
  std::vector<int32_t> tokens(14);
  std::iota(tokens.begin(), tokens.end(), 100);
  profile.windows = window_hashes(tokens);
  return profile;
}

std::string refusal(const std::string& path) {
  try {
    read_profile(path);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(Profile, IsReadAsItWasWritten) {
  const Directory directory;
  const std::string path = directory.file("a.profile.json");
  const Profile out = example();
  write_profile(path, out);
  const Profile in = read_profile(path);
  EXPECT_EQ(in.model_id, out.model_id);
  EXPECT_EQ(in.routing, "exact");
  EXPECT_EQ(in.n_tokens, 14u);
  EXPECT_EQ(in.windows, out.windows);
  ASSERT_EQ(in.layers.size(), 2u);
  EXPECT_EQ(in.layers[0].layer, 3);
  EXPECT_EQ(in.layers[0].decode, out.layers[0].decode);
  EXPECT_EQ(in.layers[1].prompt, out.layers[1].prompt);
  EXPECT_EQ(in.uses(), 10u);
  EXPECT_EQ(in.shares(), (std::vector<float>{0.1f, 0, 0.7f, 0, 0, 0, 0.2f}));
}

TEST(Profile, DamagedAndHostileFilesAreRefused) {
  const Directory directory;
  const std::string path = directory.file("a.profile.json");
  write_profile(path, example());
  const std::string good = read_text_file(path);
  const auto put = [&](const std::string& text) {
    AtomicFile file(path);
    file.write(text.data(), text.size());
    file.commit();
  };
  for (size_t cut = 0; cut + 2 < good.size(); cut += 7) {
    put(good.substr(0, cut));
    EXPECT_NE(refusal(path), "accepted") << cut;
  }
  const auto with = [&](const char* pointer, const Json& value) {
    Json json = Json::parse(good);
    json[Json::json_pointer(pointer)] = value;
    put(json.dump());
    return refusal(path);
  };
  EXPECT_EQ(with("/routing", "bonus"), "accepted");
  EXPECT_NE(with("/format", "gguf").find("no expert profile"), std::string::npos);
  EXPECT_NE(with("/version", 2).find("version 2"), std::string::npos);
  EXPECT_NE(with("/version", -1).find("version"), std::string::npos);
  EXPECT_NE(with("/model_id", "12zz").find("model_id"), std::string::npos);
  EXPECT_NE(with("/layers/0/decode/1", -4).find("decode"), std::string::npos);
  EXPECT_NE(with("/layers/0/decode/1", 1.5).find("decode"), std::string::npos);
  EXPECT_NE(with("/layers/0/decode/1", UINT64_MAX).find("decode"), std::string::npos);
  EXPECT_NE(with("/layers/0/prompt", Json::array({1})).find("layers"), std::string::npos);
  EXPECT_NE(with("/layers", 3).find("layers"), std::string::npos);
  EXPECT_NE(with("/windows", Json::array({5, 4})).find("windows"), std::string::npos);
  EXPECT_NE(with("/tokens", 1).find("tokens"), std::string::npos);
  put("[1, 2]");
  EXPECT_NE(refusal(path), "accepted");
  put(std::string(100000, '['));
  EXPECT_NE(refusal(path), "accepted");
  std::filesystem::remove(path);
  EXPECT_NE(refusal(path), "accepted");
}

TEST(Profile, BelongsToOneModel) {
  Profile profile = example();
  Geometry geometry;
  geometry.layers.resize(2);
  geometry.layers[0].layer = 3;
  geometry.layers[0].n_expert = 3;
  geometry.layers[1].layer = 4;
  geometry.layers[1].n_expert = 4;
  check_profile(profile, "p", geometry, profile.model_id);
  Sha256 other = profile.model_id;
  other[0] ^= 1;
  EXPECT_THROW(check_profile(profile, "p", geometry, other), Error);
  geometry.layers[1].n_expert = 5;
  EXPECT_THROW(check_profile(profile, "p", geometry, profile.model_id), Error);
  geometry.layers.resize(1);
  EXPECT_THROW(check_profile(profile, "p", geometry, profile.model_id), Error);
}

TEST(Profile, ThirteenTokensInARowAreInSample) {
  Profile profile;
  std::vector<int32_t> known(40);
  std::iota(known.begin(), known.end(), 0);
  profile.windows = window_hashes(known);
  EXPECT_EQ(profile.windows.size(), 28u);
  std::vector<int32_t> text(30, 7);
  EXPECT_FALSE(in_sample(profile, text));
  std::copy_n(known.begin() + 11, 12, text.begin() + 5);
  EXPECT_FALSE(in_sample(profile, text));  // twelve are not enough
  text[17] = known[23];
  EXPECT_TRUE(in_sample(profile, text));
  EXPECT_FALSE(in_sample(profile, std::vector<int32_t>{1, 2, 3}));
  EXPECT_FALSE(in_sample(Profile{}, known));
}

TEST(UseCounterTest, CountsByPhase) {
  Geometry geometry;
  geometry.layers.resize(2);
  geometry.layers[0].n_expert = geometry.layers[1].n_expert = 4;
  UseCounter counter(geometry);
  const std::vector<int32_t> ids = {2, 0};
  counter.selected(1, 0, Phase::Decode, ids, {});
  counter.selected(1, 0, Phase::Prompt, ids, {});
  counter.selected(1, 1, Phase::Prompt, ids, {});
  const std::vector<LayerUses> layers = counter.layers();
  EXPECT_EQ(layers[1].decode, (std::vector<uint64_t>{1, 0, 1, 0}));
  EXPECT_EQ(layers[1].prompt, (std::vector<uint64_t>{2, 0, 2, 0}));
  EXPECT_EQ(layers[0].decode, (std::vector<uint64_t>(4, 0)));
}

}  // namespace
}  // namespace penstock::experts::test
