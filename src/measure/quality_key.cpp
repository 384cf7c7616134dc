#include "measure/quality_key.h"

#include "base/digest.h"
#include "quant/matmul.h"

namespace penstock::measure {

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
    settings["slots"] = runtime.plan().slots();
    settings["evict"] = experts::evict_name(options.stream.evict);
    settings["hot_share"] = options.stream.hot_share;
    settings["fill"] =
        runtime.profile() == nullptr ? "none" : experts::fill_name(options.stream.fill);
    settings["read_ahead"] = experts::read_ahead_name(options.stream.read_ahead);
  }
  std::string id = hex(sha256(settings.dump()));
  return {std::move(settings), std::move(id)};
}

}  // namespace penstock::measure
