#include "cli/run_record.h"

#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/dense_summary.h"
#include "cli/summary.h"
#include "cli/version.h"
#include "experts/pack_identity.h"
#include "measure/quality_key.h"
#include "measure/token_timeline.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::json;

Json identity_json(const std::string& path, const gguf::Model& model) {
  return {
      {"path", path}, {"model_id", hex(model.model_id())}, {"header_id", hex(model.header_id())}};
}

Json inputs_json(const engine::Runtime& runtime) {
  const gguf::Metadata& metadata = runtime.file().metadata();
  Json out;
  out["model"] = identity_json(runtime.options().model_path, runtime.file());
  out["model"]["architecture"] = runtime.info().architecture;
  out["model"]["ngram_file"] = runtime.options().ple_path;
  out["keep_map_id"] = std::string(metadata.get_string("penstock.keep_map_id", ""));
  const Sha256 recipe = experts::quant_recipe_id(metadata);
  out["quant_recipe_id"] = recipe == Sha256{} ? std::string() : hex(recipe);
  out["pack"] = Json(source_json(runtime)).at("pack");
  out["profile"] = nullptr;
  if (const experts::Profile* profile = runtime.profile()) {
    out["profile"] = {{"path", runtime.profile_path()},
                      {"sha256", hex(sha256_file(runtime.profile_path()))},
                      {"tokens_sha256", hex(profile->tokens_id)},
                      {"tokens", profile->n_tokens}};
  }
  return out;
}

}  // namespace

std::vector<std::string> lossy_options(const engine::Runtime& runtime) {
  std::vector<std::string> out;
  const engine::RuntimeOptions& options = runtime.options();
  const gguf::Metadata& metadata = runtime.file().metadata();
  if (options.stream.moce.on()) out.push_back("moce");
  if (runtime.load().dense.tensors_converted() != 0) out.push_back("dense-convert");
  if (options.stream.alias) out.push_back("alias-experts");
  if (options.stream.pack.unchecked) out.push_back("pack-unchecked");
  if (metadata.has("penstock.keep_map_id")) out.push_back("pruned");
  if (metadata.has("penstock.requantise.steps")) out.push_back("requantised");
  return out;
}

nlohmann::json settings_json(const engine::Runtime& runtime, nlohmann::ordered_json given) {
  Json out(std::move(given));
  const engine::RuntimeOptions& options = runtime.options();
  const experts::StreamOptions& stream = options.stream;
  out["n_ctx"] = options.n_ctx;
  out["kv"] = measure::kv_name(options);
  out["prompt_chunk"] = options.prompt_chunk;
  out["threads"] = options.threads;
  out["memory"] = options.memory ? Json(*options.memory) : Json();
  out["arena_slots"] = options.arena_slots ? Json(*options.arena_slots) : Json();
  out["precision"] = options.precision == quant::Precision::Exact ? "exact" : "fast";
  out["kernels"] = quant::isa_name(quant::current_isa());
  out["io"] = experts::io_mode_name(stream.io);
  out["io_depth"] = stream.depth;
  out["huge_pages"] = stream.huge_seconds > 0 ? "auto" : "off";
  out["evict"] = experts::evict_name(stream.evict);
  out["half_life"] = stream.half_life;
  out["hot_share"] = stream.hot_share;
  out["read_ahead"] = experts::read_ahead_name(stream.read_ahead);
  out["predictor"] = experts::predictor_name(stream.predictor);
  out["fill"] = experts::fill_name(stream.fill);
  out["verify_every"] = stream.verify_every;
  out["moce"] = experts::moce_name(stream.moce.mode);
  out["moce_residency"] = experts::moce_residency_name(stream.moce.residency);
  if (stream.moce.on()) {
    out["moce_bonus"] = stream.moce.bonus;
    out["moce_lambda"] = stream.moce.lambda;
    out["moce_protect"] = stream.moce.protect;
    out["moce_window"] = stream.moce.window;
    out["moce_mass"] = stream.moce.mass;
    out["moce_guard"] = stream.moce.guard;
  }
  out["slots"] = runtime.stream().shape().slots();
  return out;
}

void describe(measure::RunRecorder& recorder, const engine::Runtime& runtime) {
  recorder.set("inputs", inputs_json(runtime));
  recorder.set("lossy", lossy_options(runtime));
  measure::QualityKey key = measure::quality_key(runtime);
  recorder.set("quality_key", key.id);
  recorder.set("quality_settings", std::move(key.settings));
}

RunRecord::RunRecord(const std::string& folder) {
  if (!folder.empty()) recorder_ = std::make_unique<measure::RunRecorder>(folder, producer());
}

engine::Runtime::Progress RunRecord::watch(engine::Runtime::Progress inner) {
  if (!recorder_) return inner;
  return [this, inner](std::string_view phase, uint64_t done, uint64_t total) {
    if (phase.starts_with("warm fill") && !load_sampled_) {
      recorder_->memory("load");
      load_sampled_ = true;
    }
    if (inner) inner(phase, done, total);
  };
}

void RunRecord::opened(const engine::Runtime& runtime) {
  if (!recorder_) return;
  recorder_->memory(load_sampled_ ? "fill" : "load");
  recorder_->set_machine(runtime.options().model_path);
  describe(*recorder_, runtime);
}

void RunRecord::settings(const engine::Runtime& runtime, nlohmann::ordered_json given) {
  if (recorder_) recorder_->set("settings", settings_json(runtime, std::move(given)));
}

void RunRecord::begin_turn(engine::Session& session, std::span<const int32_t> prompt, bool chat) {
  if (!recorder_) return;
  session.at_prompt_peak([this] { recorder_->memory("prefill peak"); });
  recorder_->boundary("before prompt", Json(counters_json(session)));
  recorder_->begin_turn(prompt, chat, session.runtime().counters());
}

void RunRecord::prefilled(const engine::Session& session) {
  if (!recorder_) return;
  recorder_->prompt_evaluated(session.tokens());
  recorder_->memory("after prefill");
  recorder_->boundary("after prefill", Json(counters_json(session)));
}

void RunRecord::poll(const engine::Session& session) {
  if (!recorder_) return;
  const engine::Timings& timings = session.timings();
  recorder_->poll(session.runtime().counters(), timings.first_s + timings.decode_s);
}

void RunRecord::end_turn(const engine::Session& session, const engine::GenerateResult& result) {
  if (!recorder_) return;
  poll(session);
  recorder_->end_turn(result.tokens, result.text, engine::stop_reason_text(result.reason));
}

void RunRecord::looked_at(const experts::TokenTimeline& token) {
  if (recorder_) recorder_->set("token_timeline", Json(measure::token_timeline_json(token)));
}

void RunRecord::measured(engine::Session& session) {
  if (!recorder_) return;
  const engine::Runtime& runtime = session.runtime();
  recorder_->end_memory();
  recorder_->boundary("end", Json(counters_json(session)));
  recorder_->set("timings", Json(timings_json(session, runtime)));
  recorder_->set("experts", Json(source_json(runtime)));
  recorder_->set("plan", Json(plan_json(session)));
  recorder_->set("dense", Json(dense_json(runtime.load().dense)));
  recorder_->set("watchdog", Json(watchdog_json(runtime)));
}

void RunRecord::evaluated(const engine::Runtime& runtime, nlohmann::ordered_json result) {
  if (!recorder_) return;
  recorder_->end_memory();
  recorder_->set("experts", Json(source_json(runtime)));
  recorder_->set("dense", Json(dense_json(runtime.load().dense)));
  recorder_->set("watchdog", Json(watchdog_json(runtime)));
  recorder_->set("evaluation", Json(std::move(result)));
}

void RunRecord::cooked(const std::string& source, const std::string& text,
                       nlohmann::ordered_json steps, nlohmann::ordered_json result) {
  if (!recorder_) return;
  const gguf::Model model = gguf::Model::open(source, {.allow_missing_experts = true});
  recorder_->set_machine(source);
  recorder_->set("inputs", {{"model", identity_json(source, model)}});
  result.erase("schema");
  result["file"] = recorder_->archive(text);
  result["steps"] = std::move(steps);
  recorder_->set("recipe", Json(std::move(result)));
}

void RunRecord::finish(const std::string& state, int exit_code, const std::string& error) {
  if (!recorder_ || recorder_->finished()) return;
  const std::string path = recorder_->finish(state, exit_code, error);
  log::info("run record: {}", path);
}

int recorded(const std::string& folder, const std::function<int(RunRecord&)>& body) {
  RunRecord record(folder);
  try {
    const int code = body(record);
    record.finish(code == static_cast<int>(ErrorKind::Cancelled)  ? "interrupted"
                  : code == static_cast<int>(ErrorKind::Watchdog) ? "watchdog"
                                                                  : "finished",
                  code);
    return code;
  } catch (const Error& error) {
    record.finish(error.kind() == ErrorKind::Cancelled ? "interrupted" : "error", error.exit_code(),
                  error.what());
    throw;
  } catch (const std::exception& error) {
    record.finish("error", static_cast<int>(ErrorKind::Internal), error.what());
    throw;
  }
}

}  // namespace penstock::cli
