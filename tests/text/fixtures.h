// The recorded answers of other implementations, tests/text/data (tools/text_oracle makes them).
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace penstock::text {

using Json = nlohmann::ordered_json;

inline std::string fixture_path(const std::string& name) {
  return std::string(PENSTOCK_SOURCE_DIR) + "/tests/text/data/" + name;
}

inline Json fixture(const std::string& name) {
  std::ifstream file(fixture_path(name), std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + fixture_path(name));
  return Json::parse(file);
}

inline TokenizerData vocabulary(const std::string& pre) {
  const Json json = fixture("tokenizer_vocab.json");
  TokenizerData data;
  data.pre = pre;
  data.tokens = json.at("tokens").get<std::vector<std::string>>();
  data.token_type = json.at("token_type").get<std::vector<int32_t>>();
  data.merges = json.at("merges").get<std::vector<std::string>>();
  return data;
}

}  // namespace penstock::text
