#include "surgery/keep_map.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"

namespace penstock::surgery {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "penstock-keep-map";
constexpr uint64_t kVersion = 1;
constexpr uint64_t kMostLayers = 1 << 16;
constexpr uint64_t kMostExperts = 1 << 16;
constexpr const char* kRemedy = "make the map again with `penstock prune --write-keep-map`";

constexpr std::array<std::string_view, 10> kFields = {
    "calibration_tokens", "format", "layers",       "method", "model_id",
    "model_name",         "rule",   "stats_sha256", "seed",   "version"};

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string digest_text(const Sha256& id) {
  return id == Sha256{} ? "null" : "\"" + hex(id) + "\"";
}

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  [[noreturn]] void bad(const std::string& field, const std::string& what) const {
    fail(ErrorKind::Format, "{}: {} {}; {}", path_, field, what, kRemedy);
  }
  const Json& at(const Json& json, const std::string& field) const {
    const auto found = json.find(field);
    if (found == json.end()) bad(field, "is missing");
    return *found;
  }
  uint64_t number(const Json& json, const std::string& field, uint64_t most) const {
    if (!json.is_number_unsigned()) bad(field, "must be a whole number from 0");
    const auto value = json.get<uint64_t>();
    if (value > most) bad(field, fmt::format("is {}, beyond {}", value, most));
    return value;
  }
  std::string text(const Json& json, const std::string& field) const {
    if (!json.is_string()) bad(field, "must be a text");
    return json.get<std::string>();
  }
  Sha256 digest(const Json& json, const std::string& field) const {
    Sha256 id{};
    if (!parse_sha256(text(json, field), &id)) bad(field, "must be a SHA-256 of 64 digits");
    return id;
  }
  KeptLayer layer(const Json& json, size_t index) const;

 private:
  const std::string& path_;
};

KeptLayer Reader::layer(const Json& json, size_t index) const {
  const std::string where = fmt::format("layers[{}]", index);
  if (!json.is_object()) bad(where, "must be an object");
  for (const auto& [key, value] : json.items()) {
    if (key != "experts" && key != "kept" && key != "layer") {
      bad(where, fmt::format("has the unknown field {}", quoted(key)));
    }
  }
  KeptLayer out;
  out.layer = static_cast<int>(number(at(json, "layer"), where + ".layer", kMostLayers));
  out.n_expert = number(at(json, "experts"), where + ".experts", kMostExperts);
  const Json& kept = at(json, "kept");
  const std::string ids = fmt::format("kept of layer {}", out.layer);
  if (!kept.is_array() || kept.empty()) bad(ids, "must be a list of expert ids, at least one");
  for (const Json& value : kept) {
    const uint64_t id = number(value, ids, UINT64_MAX);
    if (id >= out.n_expert) {
      bad(ids, fmt::format("names expert {}, but the layer has {}", id, out.n_expert));
    }
    if (!out.kept.empty() && id == out.kept.back()) bad(ids, fmt::format("lists {} twice", id));
    if (!out.kept.empty() && id < out.kept.back()) {
      bad(ids, fmt::format("is not ascending: {} after {}", id, out.kept.back()));
    }
    out.kept.push_back(static_cast<uint32_t>(id));
  }
  return out;
}

}  // namespace

std::string canonical_text(const KeepMap& map) {
  std::string out =
      fmt::format("{{\n \"calibration_tokens\": {},\n \"format\": \"{}\",\n", map.tokens, kFormat);
  out += " \"layers\": [\n";
  for (const KeptLayer& layer : map.layers) {
    out += fmt::format("  {{\"experts\": {}, \"kept\": [{}], \"layer\": {}}}{}\n", layer.n_expert,
                       fmt::join(layer.kept, ", "), layer.layer,
                       &layer == &map.layers.back() ? "" : ",");
  }
  out += fmt::format(" ],\n \"method\": {},\n \"model_id\": \"{}\",\n \"model_name\": {},\n",
                     quoted(map.method), hex(map.model_id), quoted(map.model_name));
  out +=
      fmt::format(" \"rule\": {},\n \"seed\": {},\n \"stats_sha256\": {},\n \"version\": {}\n}}\n",
                  quoted(map.rule), map.seed, digest_text(map.stats_id), kVersion);
  return out;
}

Sha256 keep_map_id(const KeepMap& map) {
  return sha256(canonical_text(map));
}

KeepMap read_keep_map(const std::string& path) {
  const Reader reader(path);
  Json json;
  try {
    json = Json::parse(read_text_file(path));
  } catch (const Json::exception&) {
    fail(ErrorKind::Format, "{} is no keep-map: it is not valid JSON", path);
  }
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    fail(ErrorKind::Format, "{} is no keep-map: its \"format\" is not \"{}\"", path, kFormat);
  }
  if (const uint64_t version = reader.number(reader.at(json, "version"), "version", UINT64_MAX);
      version != kVersion) {
    fail(ErrorKind::Unsupported, "{} has version {}, this program reads version {}", path, version,
         kVersion);
  }
  for (const auto& [key, value] : json.items()) {
    if (std::find(kFields.begin(), kFields.end(), key) == kFields.end()) {
      reader.bad(quoted(key), "is no field of a keep-map");
    }
  }
  KeepMap map;
  map.model_id = reader.digest(reader.at(json, "model_id"), "model_id");
  map.model_name = reader.text(reader.at(json, "model_name"), "model_name");
  map.method = reader.text(reader.at(json, "method"), "method");
  map.rule = reader.text(reader.at(json, "rule"), "rule");
  map.seed = reader.number(reader.at(json, "seed"), "seed", UINT64_MAX);
  if (const Json& id = reader.at(json, "stats_sha256"); !id.is_null()) {
    map.stats_id = reader.digest(id, "stats_sha256");
  }
  map.tokens =
      reader.number(reader.at(json, "calibration_tokens"), "calibration_tokens", UINT64_MAX);
  const Json& layers = reader.at(json, "layers");
  if (!layers.is_array() || layers.empty() || layers.size() > kMostLayers) {
    reader.bad("layers", "must be a list of objects");
  }
  for (const Json& layer : layers) {
    map.layers.push_back(reader.layer(layer, map.layers.size()));
    const size_t n = map.layers.size();
    if (n > 1 && map.layers[n - 1].layer <= map.layers[n - 2].layer) {
      reader.bad("layers", fmt::format("is not ascending: layer {} after {}",
                                       map.layers[n - 1].layer, map.layers[n - 2].layer));
    }
  }
  return map;
}

void write_keep_map(const std::string& path, const KeepMap& map) {
  const std::string text = canonical_text(map);
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

namespace {

void check_layer(const KeptLayer& kept, const std::string& path, const MoeLayer& layer) {
  if (kept.layer != layer.layer || kept.n_expert != layer.n_expert) {
    fail(
        ErrorKind::Format,
        "{}: layer {} with {} experts, where the model has layer {} with {}: the map is of another "
        "model",
        path, kept.layer, kept.n_expert, layer.layer, layer.n_expert);
  }
  if (kept.kept.size() < layer.n_used) {
    fail(ErrorKind::Format,
         "{}: layer {} keeps {} experts, but {} of them are used per token: keep more", path,
         kept.layer, kept.kept.size(), layer.n_used);
  }
  if (layer.n_groups <= 1) return;
  const uint64_t group = layer.n_expert / layer.n_groups;
  std::vector<uint64_t> counts(layer.n_groups, 0);
  for (const uint32_t id : kept.kept) ++counts[id / group];
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  // A group is scored by its two best experts.
  if (*least != *most || *least < 2 || *least * layer.n_groups_used < layer.n_used) {
    fail(ErrorKind::Format,
         "{}: layer {} keeps {} to {} experts of its {} routing groups: it must be the same number "
         "of each, at least 2, and {} groups must hold the {} experts of a token",
         path, kept.layer, *least, *most, layer.n_groups, layer.n_groups_used, layer.n_used);
  }
}

}  // namespace

void check_keep_map(const KeepMap& map, const std::string& path, std::span<const MoeLayer> layers,
                    const Sha256* model_id) {
  if (model_id != nullptr && map.model_id != *model_id) {
    fail(ErrorKind::Format,
         "{} was made for another model ({}{}), this one is {}; --other-model takes it for a file "
         "of the same shape",
         path, map.model_name.empty() ? "" : gguf::printable(map.model_name) + ", ",
         hex(map.model_id).substr(0, 16), hex(*model_id).substr(0, 16));
  }
  if (map.layers.size() != layers.size()) {
    fail(ErrorKind::Format, "{} lists {} layers, the model has {} with routed experts", path,
         map.layers.size(), layers.size());
  }
  for (size_t l = 0; l < layers.size(); ++l) check_layer(map.layers[l], path, layers[l]);
}

}  // namespace penstock::surgery
