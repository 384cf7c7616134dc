#include "cli/serve_record.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "cli/run_record.h"
#include "cli/summary.h"
#include "cli/version.h"
#include "measure/record.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::json;

// Counters only grow: what a request added to each. What is no count, or spans requests (the fate
// of experts that were read ahead), is left out.
Json added(const Json& now, const Json& before) {
  if (now.is_object()) {
    Json out = Json::object();
    for (const auto& [name, value] : now.items()) {
      out[name] = before.is_object() && before.contains(name) ? added(value, before[name]) : value;
    }
    return out;
  }
  if (now.is_number_unsigned() && before.is_number_unsigned()) {
    return now.get<uint64_t>() - before.get<uint64_t>();
  }
  return now;
}

Json counters_since(const engine::Session& session, const Json& before) {
  Json now(counters_json(session));
  Json out = added(now, before);
  out["read_ahead"] = nullptr;
  out["residency"] = now["residency"];
  out["cache_aware_routing"] = now["cache_aware_routing"];
  return out;
}

Json nothing_counted(const engine::Session& session) {
  const Json now(counters_json(session));
  return counters_since(session, now);
}

class RequestRecord : public server::JobWatch {
 public:
  RequestRecord(const std::string& folder, engine::Session& session, const server::Job& job)
      : recorder_(folder, producer(), measure::RunRecorder::Output::NotKept),
        session_(session),
        before_(counters_json(session)),
        timings_(session.timings()) {
    const engine::Runtime& runtime = session.runtime();
    recorder_.set_machine(runtime.options().model_path);
    describe(recorder_, runtime);
    recorder_.set("settings", settings_json(runtime, {{"request", job.id},
                                                      {"sampling", sampling_json(job.sampling)},
                                                      {"n_predict", job.generate.max_tokens}}));
    recorder_.boundary("before prompt", nothing_counted(session));
    recorder_.begin_turn(job.prompt, job.chat_template, runtime.counters());
    session.at_prompt_peak([this] { recorder_.memory("prefill peak"); });
  }
  ~RequestRecord() override { session_.at_prompt_peak({}); }
  RequestRecord(const RequestRecord&) = delete;
  RequestRecord& operator=(const RequestRecord&) = delete;

  void prefilled(engine::Session& session) override {
    recorder_.prompt_evaluated(session.tokens());
    recorder_.memory("after prefill");
    recorder_.boundary("after prefill", counters_since(session, before_));
  }
  void step(engine::Session& session) override {
    const engine::Timings& now = session.timings();
    recorder_.poll(session.runtime().counters(),
                   now.first_s + now.decode_s - timings_.first_s - timings_.decode_s);
  }
  void done(engine::Session& session, const engine::GenerateResult& result) override {
    step(session);
    recorder_.end_turn(result.tokens, result.text, engine::stop_reason_text(result.reason));
    const bool cut = result.reason == engine::StopReason::Cancelled;
    finish(session, cut ? "interrupted" : "finished", {});
  }
  void failed(engine::Session& session, const std::string& why) override {
    step(session);
    finish(session, "error", why);
  }

 private:
  void finish(engine::Session& session, const char* state, const std::string& why) {
    const engine::Runtime& runtime = session.runtime();
    recorder_.boundary("end", counters_since(session, before_));
    recorder_.set("timings", times(session.timings()));
    recorder_.set("experts", Json(source_json(runtime)));
    recorder_.set("plan", Json(plan_json(session)));
    recorder_.set("watchdog", Json(watchdog_json(runtime)));
    // A request is answered whether or not it could be written down.
    try {
      log::info("run record: {}", recorder_.finish(state, state[0] == 'e' ? 1 : 0, why));
    } catch (const Error& error) {
      log::warn("no record of the request: {}", error.what());
    }
  }

  // The model was loaded before: those phases are not of this request.
  Json times(const engine::Timings& now) const {
    engine::Timings of;
    of.prefill_tokens = now.prefill_tokens - timings_.prefill_tokens;
    of.prefill_s = now.prefill_s - timings_.prefill_s;
    of.first_tokens = now.first_tokens - timings_.first_tokens;
    of.first_s = now.first_s - timings_.first_s;
    of.decode_tokens = now.decode_tokens - timings_.decode_tokens;
    of.decode_s = now.decode_s - timings_.decode_s;
    return {{"scratch_map", {{"seconds", now.scratch_s - timings_.scratch_s}}},
            {"prefill",
             {{"tokens", of.prefill_tokens},
              {"seconds", of.prefill_s},
              {"tokens_per_second", of.prefill_rate()}}},
            {"first_token", {{"tokens", of.first_tokens}, {"seconds", of.first_s}}},
            {"decode",
             {{"tokens", of.decode_tokens},
              {"seconds", of.decode_s},
              {"tokens_per_second", of.decode_rate()}}}};
  }

  measure::RunRecorder recorder_;
  engine::Session& session_;
  const Json before_;
  const engine::Timings timings_;
};

}  // namespace

server::WatchJob record_requests(const std::string& folder) {
  return [folder](engine::Session& session,
                  const server::Job& job) -> std::unique_ptr<server::JobWatch> {
    try {
      return std::make_unique<RequestRecord>(folder, session, job);
    } catch (const Error& error) {
      log::warn("no record of the request: {}", error.what());
      return nullptr;
    }
  };
}

}  // namespace penstock::cli
