#include "experts/profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"

namespace penstock::experts {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "penstock-profile";
constexpr int kVersion = 1;
constexpr size_t kWindow = 13;
constexpr size_t kMostLayers = 1 << 16;
constexpr uint64_t kMostUses = uint64_t{1} << 48;  // sums stay exact

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  [[noreturn]] void bad(const char* field, const char* what) const {
    fail(ErrorKind::Format, "{}: {}: {}; make the profile again with --profile-out", path_, field,
         what);
  }
  const Json& at(const Json& json, const char* field) const {
    const auto found = json.find(field);
    if (found == json.end()) bad(field, "is missing");
    return *found;
  }
  uint64_t number(const Json& json, const char* field) const {
    if (!json.is_number_unsigned()) bad(field, "must be a whole number from 0");
    return json.get<uint64_t>();
  }
  std::vector<uint64_t> numbers(const Json& json, const char* field, uint64_t most) const {
    if (!json.is_array()) bad(field, "must be a list of numbers");
    std::vector<uint64_t> out;
    out.reserve(json.size());
    for (const Json& value : json) {
      out.push_back(number(value, field));
      if (out.back() > most) bad(field, "has a number beyond anything that can be counted");
    }
    return out;
  }
  std::string text(const Json& json, const char* field) const {
    if (!json.is_string()) bad(field, "must be a text");
    return json.get<std::string>();
  }
  Sha256 digest(const Json& json, const char* field) const {
    Sha256 out{};
    if (!parse_sha256(text(json, field), &out)) bad(field, "must be a SHA-256 of 64 digits");
    return out;
  }

 private:
  const std::string& path_;
};

LayerUses read_layer(const Reader& reader, const Json& json) {
  if (!json.is_object()) reader.bad("layers", "must be a list of objects");
  LayerUses layer;
  layer.layer = static_cast<int>(
      std::min<uint64_t>(reader.number(reader.at(json, "layer"), "layer"), kMostLayers));
  layer.decode = reader.numbers(reader.at(json, "decode"), "decode", kMostUses);
  layer.prompt = reader.numbers(reader.at(json, "prompt"), "prompt", kMostUses);
  if (layer.decode.size() != layer.prompt.size()) {
    reader.bad("layers", "decode and prompt count different numbers of experts");
  }
  return layer;
}

}  // namespace

uint64_t Profile::uses() const noexcept {
  uint64_t sum = 0;
  for (const LayerUses& layer : layers) {
    for (size_t e = 0; e < layer.decode.size(); ++e) sum += layer.decode[e] + layer.prompt[e];
  }
  return sum;
}

uint64_t Profile::memory_bytes() const noexcept {
  uint64_t bytes = windows.size() * sizeof(uint64_t);
  for (const LayerUses& layer : layers) bytes += layer.decode.size() * 2 * sizeof(uint64_t);
  return bytes;
}

std::vector<float> Profile::shares() const {
  const auto all = static_cast<double>(std::max<uint64_t>(1, uses()));
  std::vector<float> shares;
  for (const LayerUses& layer : layers) {
    for (size_t e = 0; e < layer.decode.size(); ++e) {
      shares.push_back(
          static_cast<float>(static_cast<double>(layer.decode[e] + layer.prompt[e]) / all));
    }
  }
  return shares;
}

Profile read_profile(const std::string& path) {
  const Reader reader(path);
  Json json;
  try {
    json = Json::parse(read_text_file(path));
  } catch (const Json::exception&) {
    fail(ErrorKind::Format, "{} is no expert profile: it is not valid JSON", path);
  }
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    fail(ErrorKind::Format, "{} is no expert profile", path);
  }
  if (const uint64_t version = reader.number(reader.at(json, "version"), "version");
      version != kVersion) {
    fail(ErrorKind::Unsupported, "{} has version {}, this program reads version {}", path, version,
         kVersion);
  }
  Profile profile;
  profile.model_id = reader.digest(reader.at(json, "model_id"), "model_id");
  if (const Json& id = reader.at(json, "keep_map_id"); !id.is_null()) {
    profile.keep_map_id = reader.text(id, "keep_map_id");
  }
  profile.routing = reader.text(reader.at(json, "routing"), "routing");
  const Json& tokens = reader.at(json, "tokens");
  if (!tokens.is_object()) reader.bad("tokens", "must be an object");
  profile.n_tokens = reader.number(reader.at(tokens, "count"), "tokens.count");
  profile.tokens_id = reader.digest(reader.at(tokens, "sha256"), "tokens.sha256");
  const Json& layers = reader.at(json, "layers");
  if (!layers.is_array() || layers.size() > kMostLayers) {
    reader.bad("layers", "must be a list of objects");
  }
  for (const Json& layer : layers) profile.layers.push_back(read_layer(reader, layer));
  profile.windows = reader.numbers(reader.at(json, "windows"), "windows", UINT64_MAX);
  if (!std::is_sorted(profile.windows.begin(), profile.windows.end())) {
    reader.bad("windows", "is not sorted");
  }
  return profile;
}

void write_profile(const std::string& path, const Profile& profile) {
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"model_id", hex(profile.model_id)},
               {"keep_map_id", profile.keep_map_id.empty() ? Json() : Json(profile.keep_map_id)},
               {"routing", profile.routing},
               {"tokens", {{"count", profile.n_tokens}, {"sha256", hex(profile.tokens_id)}}},
               {"layers", Json::array()},
               {"windows", profile.windows}};
  for (const LayerUses& layer : profile.layers) {
    json["layers"].push_back(
        {{"layer", layer.layer}, {"decode", layer.decode}, {"prompt", layer.prompt}});
  }
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  AtomicFile out(path);
  out.write(text.data(), text.size());
  out.commit();
}

void check_profile(const Profile& profile, const std::string& path, const Geometry& geometry,
                   const Sha256& model_id) {
  if (profile.model_id != model_id) {
    fail(ErrorKind::Format,
         "{} was made from another model: the weights have id {} there and {} here", path,
         hex(profile.model_id).substr(0, 16), hex(model_id).substr(0, 16));
  }
  if (profile.layers.size() != geometry.layers.size()) {
    fail(ErrorKind::Format, "{} counts the experts of {} layers, the model has {}", path,
         profile.layers.size(), geometry.layers.size());
  }
  for (size_t l = 0; l < geometry.layers.size(); ++l) {
    const LayerGeometry& layer = geometry.layers[l];
    const LayerUses& uses = profile.layers[l];
    if (uses.layer != layer.layer || uses.decode.size() != static_cast<size_t>(layer.n_expert)) {
      fail(ErrorKind::Format, "{} counts {} experts in layer {}, the model has {} in layer {}",
           path, uses.decode.size(), uses.layer, layer.n_expert, layer.layer);
    }
  }
}

std::vector<uint64_t> window_hashes(std::span<const int32_t> tokens) {
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i + kWindow <= tokens.size(); ++i) {
    hashes.push_back(xxh64(std::as_bytes(tokens.subspan(i, kWindow))));
  }
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  return hashes;
}

bool in_sample(const Profile& profile, std::span<const int32_t> tokens) {
  for (const uint64_t hash : window_hashes(tokens)) {
    if (std::binary_search(profile.windows.begin(), profile.windows.end(), hash)) return true;
  }
  return false;
}

UseCounter::UseCounter(const Geometry& geometry) {
  for (const LayerGeometry& layer : geometry.layers) {
    const auto n = static_cast<size_t>(layer.n_expert);
    layers_.push_back({layer.layer, std::vector<uint64_t>(n, 0), std::vector<uint64_t>(n, 0)});
  }
}

void UseCounter::selected(int index, int, Phase phase, std::span<const int32_t> ids,
                          std::span<const float>) {
  LayerUses& layer = layers_[static_cast<size_t>(index)];
  std::vector<uint64_t>& counts = phase == Phase::Decode ? layer.decode : layer.prompt;
  for (const int32_t e : ids) ++counts[static_cast<size_t>(e)];
}

}  // namespace penstock::experts
