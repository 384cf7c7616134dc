#include "measure/quality_key.h"

#include "base/digest.h"
#include "experts/profile.h"
#include "quant/matmul.h"

namespace penstock::measure {
namespace {

QualityKey key_of(nlohmann::json settings) {
  std::string id = hex(sha256(settings.dump()));
  return {std::move(settings), std::move(id)};
}

std::string shares_id(const experts::Profile& profile) {
  const std::vector<float> shares = profile.shares();
  Sha256Stream hash;
  hash.update(shares.data(), shares.size() * sizeof(float));
  return hex(hash.finish());
}

// What decides which experts are in memory, as the measurable run has it that stands for this one
// (docs/quality.md): with epoch residency nothing is read ahead, and what a lazy fill has in memory
// in the end, a warm one has at the beginning.
void add_residency(const engine::Runtime& runtime, nlohmann::json* settings) {
  const experts::StreamOptions& stream = runtime.options().stream;
  const experts::Profile* profile = runtime.profile();
  const bool filled = profile != nullptr && stream.fill != experts::Fill::None;
  const bool ranked = stream.evict == experts::Evict::Profile || stream.hot_share > 0;
  (*settings)["slots"] = runtime.plan().slots();
  (*settings)["evict"] = experts::evict_name(stream.evict);
  (*settings)["half_life"] = stream.half_life;
  (*settings)["hot_share"] = stream.hot_share;
  (*settings)["fill"] = experts::fill_name(filled ? experts::Fill::Warm : experts::Fill::None);
  (*settings)["profile"] = profile != nullptr && (filled || ranked) ? shares_id(*profile) : "";
}

}  // namespace

const char* kv_name(const engine::RuntimeOptions& options) noexcept {
  return options.kv == models::KvType::F32 ? "f32" : "f16";
}

QualityKey quality_key(const engine::Runtime& runtime) {
  const engine::RuntimeOptions& options = runtime.options();
  const gguf::Metadata& metadata = runtime.file().metadata();
  nlohmann::json settings;
  settings["model_id"] = hex(runtime.file().model_id());
  settings["keep_map"] = std::string(metadata.get_string("penstock.keep_map_id", ""));
  nlohmann::json converted = nlohmann::json::array();
  for (const models::ConvertedTensors& c : runtime.load().dense.converted) {
    if (c.tensors > 0) converted.push_back({c.pattern, gguf::type_name(c.type)});
  }
  settings["dense_convert"] = converted;
  if (const auto& pack = runtime.source().pack; pack && !pack->overridden.empty()) {
    settings["pack_model_id"] = hex(pack->model_id);
  }
  settings["precision"] = options.precision == quant::Precision::Exact ? "exact" : "fast";
  settings["kernels"] = quant::isa_name(quant::current_isa());
  settings["kv"] = kv_name(options);
  const experts::MoceOptions& moce = options.stream.moce;
  settings["moce"] = experts::moce_name(moce.mode);
  if (moce.on()) {
    settings["moce_settings"] = {{"bonus", moce.bonus},     {"lambda", moce.lambda},
                                 {"protect", moce.protect}, {"window", moce.window},
                                 {"mass", moce.mass},       {"guard", moce.guard}};
    add_residency(runtime, &settings);
  }
  if (options.stream.alias) settings["alias_experts"] = true;
  return key_of(std::move(settings));
}

QualityKey exact_key(const QualityKey& key) {
  nlohmann::json settings = key.settings;
  for (const char* member :
       {"moce_settings", "slots", "evict", "half_life", "hot_share", "fill", "profile"}) {
    settings.erase(member);
  }
  settings["moce"] = experts::moce_name(experts::Moce::Off);
  return key_of(std::move(settings));
}

}  // namespace penstock::measure
