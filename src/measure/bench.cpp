#include "measure/bench.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/memory.h"
#include "gguf/model.h"
#include "measure/archive.h"
#include "measure/child.h"
#include "measure/figures.h"
#include "measure/json_schema.h"
#include "measure/memory_group.h"
#include "measure/peer_run.h"
#include "measure/record.h"
#include "measure/spread.h"
#include "text/tokenizer.h"
#include "text/tokenizer_gguf.h"

namespace penstock::measure {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// Ids of ordinary tokens; of any, in a model without a vocabulary of text.
std::vector<int32_t> ordinary_ids(const gguf::Model& file, const text::Tokenizer* tokenizer) {
  std::vector<int32_t> ids;
  if (tokenizer == nullptr) {
    const gguf::Tensor* embedding = file.find("token_embd.weight");
    const uint64_t n = embedding == nullptr ? 0 : embedding->ne[1];
    for (uint64_t id = 0; id < n; ++id) ids.push_back(static_cast<int32_t>(id));
  } else {
    for (size_t id = 0; id < tokenizer->size(); ++id) {
      if (tokenizer->token_type(static_cast<int32_t>(id)) == text::TokenType::Normal) {
        ids.push_back(static_cast<int32_t>(id));
      }
    }
  }
  if (ids.empty()) fail(ErrorKind::Format, "the model has no ordinary tokens");
  return ids;
}

std::vector<int32_t> random_ids(const std::vector<int32_t>& from, uint64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(n);
  // The standard fixes this engine's numbers, not those of its distributions.
  for (int32_t& id : ids) id = from[random() % from.size()];
  return ids;
}

// Of the disks that there are: what the kernel reads ahead for mapped files, which decides much for
// peers that map theirs.
Json read_ahead_kb() {
  Json out = Json::object();
  std::error_code error;
  for (const auto& device : fs::directory_iterator("/sys/block", error)) {
    std::ifstream in(device.path() / "queue/read_ahead_kb");
    uint64_t value = 0;
    const std::string name = device.path().filename().string();
    if (in >> value && !name.starts_with("loop") && !name.starts_with("ram")) out[name] = value;
  }
  return out;
}

double hottest_celsius() {
  double most = 0;
  for (int i = 0; i < 64; ++i) {
    std::ifstream in(fmt::format("/sys/class/thermal/thermal_zone{}/temp", i));
    double value = 0;
    if (!(in >> value)) break;
    most = std::max(most, value / 1000);
  }
  return most;
}

std::string record_in(const std::string& path) {
  const std::string text = read_text_file(path);
  const std::string mark = "run record: ";
  const size_t at = text.rfind(mark);
  if (at == std::string::npos) return {};
  const size_t end = std::min(text.find('\n', at), text.size());
  return text.substr(at + mark.size(), end - at - mark.size());
}

Json run_json(size_t order, const Campaign& c, const CampaignRun& run) {
  return {
      {"order", order},       {"arm", c.arms[run.arm].name}, {"prompt", c.prompts[run.prompt].name},
      {"repeat", run.repeat}, {"control", run.control},      {"cold", c.cold},
      {"state", "waiting"},   {"record", nullptr},           {"reason", nullptr}};
}

}  // namespace

Bench::Bench(const Campaign& campaign, const BenchOptions& options)
    : campaign_(campaign), options_(options), schedule_(campaign_schedule(campaign)) {
  std::error_code error;
  fs::create_directories(fs::path(options.folder) / "files", error);
  fs::create_directories(fs::path(options.folder) / "work", error);
  if (error) fail(ErrorKind::Io, "{}: {}", options.folder, error.message());
  prepare_prompts();
  begin();
}

std::vector<std::string> files_of(const CampaignArm& arm, const std::string& model) {
  std::set<std::string> out = {model};
  const gguf::Model file = gguf::Model::open(model, {.allow_missing_experts = true});
  for (const gguf::Shard& shard : file.shards()) out.insert(shard.path);
  const auto is_file = [](const std::string& path) {
    std::error_code error;
    return fs::is_regular_file(path, error);
  };
  // What the command line names: packs, tables of n-grams, profiles, programs.
  for (const std::vector<std::string>* words : {&arm.options, &arm.command}) {
    for (const std::string& word : *words) {
      const size_t equals = word.find('=');
      for (const std::string& path :
           {word, equals == std::string::npos ? "" : word.substr(equals + 1)})
        if (is_file(path)) out.insert(path);
    }
  }
  // What is found by itself beside the model.
  std::error_code error;
  fs::path folder = fs::path(model).parent_path();
  if (folder.empty()) folder = ".";
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".xpk") out.insert(entry.path().string());
  }
  return {out.begin(), out.end()};
}

std::string Bench::model_of(const CampaignArm& arm) const {
  return arm.model.empty() ? campaign_.model : arm.model;
}

void Bench::prepare_prompts() {
  const gguf::Model file =
      gguf::Model::open(model_of(campaign_.arms[0]), {.allow_missing_experts = true});
  std::optional<text::Tokenizer> tokenizer;
  const bool words = std::any_of(campaign_.prompts.begin(), campaign_.prompts.end(),
                                 [](const CampaignPrompt& p) { return p.random_tokens == 0; });
  if (words || file.metadata().has("tokenizer.ggml.tokens")) {
    tokenizer.emplace(text::load_tokenizer(file.metadata()));
  }
  for (const CampaignPrompt& wanted : campaign_.prompts) {
    Prompt prompt;
    if (wanted.random_tokens != 0) {
      prompt.ids = random_ids(ordinary_ids(file, tokenizer ? &*tokenizer : nullptr),
                              wanted.random_tokens, wanted.seed);
    } else {
      prompt.text = wanted.file.empty() ? wanted.text : read_text_file(wanted.file);
      prompt.ids = tokenizer->encode(prompt.text, false);
      tokenizer->prepend_bos(prompt.ids);
    }
    if (prompt.ids.empty()) fail(ErrorKind::Usage, "prompt '{}' is empty", wanted.name);
    std::string lines;
    for (const int32_t id : prompt.ids) lines += fmt::format("{}\n", id);
    prompt.sha256 = archive_bytes(options_.folder, lines);
    prompt.path = options_.folder + "/files/" + prompt.sha256;
    prompts_.push_back(std::move(prompt));
  }
}

void Bench::begin() {
  const Json definition = campaign_json(campaign_);
  const std::string digest = hex(sha256(canonical_text(definition)));
  unfinished_ = (fs::path(options_.folder) / "campaign.unfinished.json").string();
  if (fs::exists(unfinished_)) {
    manifest_ = parse_json(read_text_file(unfinished_), unfinished_);
    if (!manifest_.is_object() || manifest_.value("definition_sha256", Json()) != digest) {
      fail(ErrorKind::Usage,
           "{} is of another campaign that was not finished: finish it, remove the file, or take "
           "another folder with -o",
           unfinished_);
    }
    size_t done = 0;
    for (const Json& run : manifest_.at("runs")) done += run.at("state") != "waiting";
    log::info("going on with an unfinished campaign: {} of {} runs are there", done,
              manifest_["runs"].size());
    return;
  }
  manifest_ = {{"schema", kCampaignSchema},
               {"version", 1},
               {"name", campaign_.name},
               {"started", unix_seconds()},
               {"ended", nullptr},
               {"producer", producer_json(options_.producer)},
               {"argv", command_line()},
               {"definition", definition},
               {"definition_sha256", digest},
               {"machine", machine_json(model_of(campaign_.arms[0]))},
               {"measured", nullptr},
               {"control", nullptr},
               {"outcome", {{"state", "interrupted"}}}};
  manifest_["producer"]["diff_archived"] = false;
  manifest_["run_id"] =
      hex(sha256(fmt::format("{} {} {}", unix_seconds(), ::getpid(), digest))).substr(0, 32);
  Json models = Json::object();
  for (const CampaignArm& arm : campaign_.arms) {
    const std::string path = model_of(arm);
    if (models.contains(path)) continue;
    models[path] = hex(gguf::Model::open(path, {.allow_missing_experts = true}).model_id());
  }
  manifest_["inputs"] = {{"models", models}};
  bool limited = false;
  for (const CampaignArm& arm : campaign_.arms) limited |= (arm.limit || campaign_.limit);
  const std::string no_group = limited ? why_no_memory_group() : std::string();
  manifest_["conditions"] = {
      {"drop_caches", !campaign_.cold                                   ? "no"
                      : ::access("/proc/sys/vm/drop_caches", W_OK) == 0 ? "all"
                                                                        : "of the files named"},
      {"memory_limits", !limited           ? "none"
                        : no_group.empty() ? "memory cgroup"
                                           : "refused: " + no_group},
      {"read_ahead_kb", read_ahead_kb()}};
  for (const char* name : {"arms", "prompts", "runs"}) manifest_[name] = Json::array();
  for (const Json& arm : definition["arms"]) {
    manifest_["arms"].push_back(arm);
    manifest_["arms"].back()["model_id"] =
        models[arm["model"] == "" ? campaign_.model : arm["model"].get<std::string>()];
  }
  for (size_t i = 0; i < prompts_.size(); ++i) {
    manifest_["prompts"].push_back({{"name", campaign_.prompts[i].name},
                                    {"file", prompts_[i].sha256},
                                    {"tokens", prompts_[i].ids.size()}});
  }
  for (size_t i = 0; i < schedule_.size(); ++i) {
    manifest_["runs"].push_back(run_json(i, campaign_, schedule_[i]));
  }
  save();
}

void Bench::save() const {
  AtomicFile file(unfinished_);
  const std::string text = canonical_text(manifest_);
  file.write(text.data(), text.size());
  file.commit();
}

uint64_t Bench::context_of(const Prompt& prompt) const {
  if (campaign_.context != 0) return campaign_.context;
  return round_up(prompt.ids.size() + campaign_.tokens + 8, 256);
}

std::string Bench::why_not_now() const {
  const MemoryFacts memory = memory_facts();
  if (memory.available < campaign_.min_available) {
    return fmt::format("{} of memory available, {} wanted", format_bytes(memory.available),
                       format_bytes(campaign_.min_available));
  }
  const double celsius = hottest_celsius();
  if (celsius > campaign_.max_celsius) {
    return fmt::format("{:.0f} degrees, at most {:.0f} wanted", celsius, campaign_.max_celsius);
  }
  return {};
}

bool Bench::wait_for_conditions(std::string* reason) {
  const int64_t started = now_ns();
  uint64_t swapped = swapped_out();
  while (!stopped()) {
    *reason = why_not_now();
    const uint64_t now = swapped_out();
    if (reason->empty() && now > swapped + (uint64_t{1} << 20)) *reason = "the machine is swapping";
    swapped = now;
    if (reason->empty()) return true;
    if (seconds_since(started) > campaign_.start_wait_s) return false;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  return false;
}

void Bench::drop_caches(const CampaignArm& arm) const {
  for (const std::string& path : files_of(arm, model_of(arm))) {
    int error = 0;
    const File file = File::try_open(path, O_RDONLY, &error);
    if (file) ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
  std::ofstream all("/proc/sys/vm/drop_caches");
  if (all) all << "3\n";
}

Bench::Outcome Bench::run_penstock(const CampaignArm& arm, const Prompt& prompt) {
  const std::string work = options_.folder + "/work";
  std::unique_ptr<MemoryGroup> group;
  const std::optional<uint64_t> limit = arm.limit ? arm.limit : campaign_.limit;
  if (limit) group = std::make_unique<MemoryGroup>(*limit);
  ChildRequest child;
  child.executable = options_.executable;
  child.argv = {"penstock",     "run",
                "-m",           model_of(arm),
                "--ids",        prompt.path,
                "-n",           fmt::format("{}", campaign_.tokens),
                "--ctx",        fmt::format("{}", context_of(prompt)),
                "--temp",       "0",
                "--seed",       "1",
                "--ignore-eos", "--record",
                options_.folder};
  child.argv.insert(child.argv.end(), arm.options.begin(), arm.options.end());
  child.environment = arm.environment;
  child.out_path = work + "/stdout";
  child.err_path = work + "/stderr";
  child.group = group.get();
  child.timeout_s = campaign_.timeout_s;
  child.policy = {.fuse = campaign_.min_available, .swap_limit = campaign_.swap_limit};
  Child running(child, options_.interrupted);
  const ChildReport report = running.wait();
  Outcome out{report.state == "finished" ? "finished" : "failed", report.reason, {}, nullptr};
  if (group) {
    out.group = {{"limit", *limit}, {"peak", group->peak()}, {"oom_kills", group->oom_kills()}};
    if (report.state == "error" && group->oom_kills() != 0) {
      out.reason += fmt::format(": out of memory under its limit of {}", format_bytes(*limit));
    }
  }
  const std::string record = record_in(child.err_path);
  if (!record.empty()) out.record = fs::path(record).stem().string();
  if (out.state == "failed" && report.state == "error") {
    const std::string said = last_line(read_text_file(child.err_path));
    if (record.empty() && !said.empty()) out.reason += ": " + said;
    if (!record.empty()) {
      const Json written = parse_json(read_text_file(record), record);
      const Json* error = resolve_pointer(written, "/outcome/error");
      if (error != nullptr && error->is_string()) out.reason += ": " + error->get<std::string>();
    }
  }
  if (out.state == "finished" && out.record.empty()) {
    return {"failed", "it left no record", {}, out.group};
  }
  return out;
}

Bench::Outcome Bench::run_one(const CampaignRun& run) {
  const CampaignArm& arm = campaign_.arms[run.arm];
  const Prompt& prompt = prompts_[run.prompt];
  std::string reason;
  if (!wait_for_conditions(&reason)) return {"refused", reason, {}, nullptr};
  try {
    if (campaign_.cold) drop_caches(arm);
    if (arm.program == ArmProgram::Penstock) return run_penstock(arm, prompt);
    PeerRequest request;
    request.arm = &arm;
    request.model_path = model_of(arm);
    request.model_id = manifest_["inputs"]["models"][request.model_path];
    request.ids = prompt.ids;
    request.ids_path = prompt.path;
    request.ids_sha256 = prompt.sha256;
    request.text = prompt.text;
    request.tokens = campaign_.tokens;
    request.context = context_of(prompt);
    request.limit = arm.limit ? arm.limit : campaign_.limit;
    request.timeout_s = campaign_.timeout_s;
    request.policy = {.fuse = campaign_.min_available, .swap_limit = campaign_.swap_limit};
    request.folder = options_.folder;
    request.recorder = manifest_["producer"];
    const PeerResult result = run_peer(request, options_.interrupted);
    return {result.state == "finished" ? "finished" : "failed", result.reason,
            fs::path(result.record_path).stem().string(), nullptr};
  } catch (const Error& error) {
    return {error.exit_code() == static_cast<int>(ErrorKind::Unsupported) ? "refused" : "failed",
            error.what(),
            {},
            nullptr};
  }
}

std::string Bench::line_of(size_t index, const CampaignRun& run, const Outcome& outcome,
                           double seconds) const {
  std::string text =
      fmt::format("[{}/{}] {}, {}{}: ", index + 1, schedule_.size(), campaign_.arms[run.arm].name,
                  campaign_.prompts[run.prompt].name, run.control ? " (control)" : "");
  if (outcome.state != "finished") return text + outcome.state + ": " + outcome.reason;
  const std::string path = options_.folder + "/" + outcome.record + ".json";
  const Json record = parse_json(read_text_file(path), path);
  for (const char* name : {"prefill_tok_s", "decode_tok_s"}) {
    const Figure* figure = find_figure(record["schema"], name);
    const auto value = figure == nullptr ? std::nullopt : figure_value(*figure, record);
    if (value)
      text += fmt::format("{} {:.{}f} {}, ", figure->title, *value, figure->digits, figure->unit);
  }
  return text + fmt::format("{:.1f} s", seconds);
}

std::string Bench::run() {
  if (campaign_.roofline && !has_roofline("before")) measure_roofline("before");
  if (stopped()) return {};
  double spent = 0;
  size_t ran = 0;
  for (size_t i = 0; i < schedule_.size(); ++i) {
    if (manifest_["runs"][i]["state"] != "waiting") continue;
    const int64_t started = now_ns();
    const Outcome outcome = run_one(schedule_[i]);
    if (stopped()) return {};  // this run is done again
    Json& entry = manifest_["runs"][i];
    entry["state"] = outcome.state;
    entry["record"] = outcome.record.empty() ? Json() : Json(outcome.record);
    entry["reason"] = outcome.reason.empty() ? Json() : Json(outcome.reason);
    if (outcome.group.is_object()) entry["memory_group"] = outcome.group;
    save();
    spent += seconds_since(started);
    ++ran;
    const double left =
        spent / static_cast<double>(ran) * static_cast<double>(schedule_.size() - i - 1);
    std::string line = line_of(i, schedule_[i], outcome, seconds_since(started));
    if (i + 1 < schedule_.size()) line += fmt::format("; about {:.0f} s left", left);
    options_.say(line);
    if (i + 1 < schedule_.size() && !stopped()) {
      std::this_thread::sleep_for(std::chrono::duration<double>(campaign_.cool_down_s));
    }
  }
  if (campaign_.roofline) measure_roofline("after");
  if (stopped()) return {};  // what was measured afterwards is measured again
  note_compute();
  judge_control();
  manifest_["ended"] = unix_seconds();
  manifest_["outcome"]["state"] = "finished";
  const std::string path = write_record(options_.folder, manifest_);
  std::error_code error;
  fs::remove(unfinished_, error);
  fs::remove_all(options_.folder + "/work", error);
  return path;
}

// Once idle and once beside memory traffic.
bool Bench::has_roofline(const char* when) const {
  const Json* found = resolve_pointer(manifest_, fmt::format("/measured/iobench/{}", when));
  return found != nullptr && found->is_array() && found->size() == 2;
}

// Random reads of the model's own experts, alone and beside memory traffic, a few seconds each.
void Bench::measure_roofline(const char* when) {
  if (manifest_["measured"].is_null()) manifest_["measured"] = Json::object();
  const std::string model = model_of(campaign_.arms[0]);
  options_.say(fmt::format("measuring disk and memory, {}", when));
  const std::string work = options_.folder + "/work";
  manifest_["measured"]["iobench"][when] = Json::array();
  for (const bool busy : {false, true}) {
    ChildRequest child;
    child.executable = options_.executable;
    child.argv = {"penstock", "iobench",   model, "--json",    "--depths",
                  "8",        "--seconds", "3",   "--warm-up", "0.5"};
    if (busy) {
      child.argv.push_back("--busy");
      child.argv.push_back(fmt::format("{}", cpu_facts().performance.size()));
    }
    child.out_path = work + "/stdout";
    child.err_path = work + "/stderr";
    child.policy = {.fuse = campaign_.min_available, .swap_limit = campaign_.swap_limit};
    Child running(child, options_.interrupted);
    if (running.wait().state != "finished") {
      log::warn("iobench failed: {}", last_line(read_text_file(child.err_path)));
      return;
    }
    Json found = parse_json(read_text_file(child.out_path), "iobench");
    found.erase("model");
    manifest_["measured"]["iobench"][when].push_back(std::move(found));
  }
  const auto put = [&](const char* name, const char* member, int which) {
    std::vector<double> values;
    for (const Json& runs : manifest_["measured"]["iobench"]) {
      const Json* value = resolve_pointer(runs, fmt::format("/{}/rows/0/{}", which, member));
      if (value != nullptr && value->is_number()) values.push_back(value->get<double>());
    }
    manifest_["measured"][name] = spread_of(values).median;
  };
  put("disk_bytes_per_s", "bytes_per_s", 0);
  put("disk_busy_bytes_per_s", "bytes_per_s", 1);
  put("memory_bytes_per_s", "busy_bytes_per_s", 1);
  save();
}

// t_c: what decoding takes when nothing is read, from the arm that reads nothing.
void Bench::note_compute() {
  std::vector<double> values;
  for (size_t i = 0; i < schedule_.size(); ++i) {
    const std::vector<std::string>& options = campaign_.arms[schedule_[i].arm].options;
    if (std::find(options.begin(), options.end(), "--alias-experts") == options.end()) continue;
    const Json& id = manifest_["runs"][i]["record"];
    if (!id.is_string() || manifest_["runs"][i]["state"] != "finished") continue;
    const std::string path = options_.folder + "/" + id.get<std::string>() + ".json";
    const Json record = parse_json(read_text_file(path), path);
    const Figure* figure = find_figure(record["schema"], "decode_ms");
    if (const auto value = figure_value(*figure, record)) values.push_back(*value);
  }
  if (values.empty()) return;
  if (manifest_["measured"].is_null()) manifest_["measured"] = Json::object();
  manifest_["measured"]["compute_ms"] = spread_of(values).median;
}

// The speed that tells whether the machine stayed the same: decoding, where the control's runs have
// decode results (rule R12), else the prompt, which is then what the campaign measures.
std::string Bench::control_figure(const std::vector<Json>& records) const {
  const bool decodes = std::all_of(records.begin(), records.end(), [](const Json& record) {
    return why_no_decode(record).empty();
  });
  return decodes ? "decode_tok_s" : "prefill_tok_s";
}

// Whether the machine stayed the same: the first arm's first runs against its last ones.
void Bench::judge_control() {
  std::vector<Json> first, last, all;
  for (size_t i = 0; i < schedule_.size(); ++i) {
    const CampaignRun& run = schedule_[i];
    const Json& id = manifest_["runs"][i]["record"];
    if (run.arm != 0 || run.prompt != 0 || !id.is_string() ||
        manifest_["runs"][i]["state"] != "finished") {
      continue;
    }
    const std::string path = options_.folder + "/" + id.get<std::string>() + ".json";
    Json record = parse_json(read_text_file(path), path);
    if (!run.control && run.repeat >= 3) continue;
    all.push_back(record);
    (run.control ? last : first).push_back(std::move(record));
  }
  const std::string name = control_figure(all);
  const auto values = [&](const std::vector<Json>& records) {
    std::vector<double> out;
    for (const Json& record : records) {
      const Figure* figure = find_figure(record["schema"], name);
      const auto value = figure == nullptr ? std::nullopt : figure_value(*figure, record);
      if (value) out.push_back(*value);
    }
    return out;
  };
  const std::vector<double> firsts = values(first), lasts = values(last);
  if (firsts.empty() || lasts.empty()) return;
  const double before = spread_of(firsts).median, after = spread_of(lasts).median;
  const double moved = before == 0 ? 0 : after / before - 1;
  manifest_["control"] = {{"arm", campaign_.arms[0].name},
                          {"figure", name},
                          {"phase", name == "decode_tok_s" ? "decode" : "prompt"},
                          {"first", before},
                          {"last", after},
                          {"moved", moved},
                          {"void", std::fabs(moved) > campaign_.control_limit}};
}

}  // namespace penstock::measure
