#include "cli/rewriting.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "cli/interrupt.h"
#include "cli/version.h"

namespace penstock::cli {
namespace {

using Json = nlohmann::ordered_json;
using surgery::EncodedTensor;
using surgery::ErrorSums;
using surgery::RewritePlan;
using surgery::RewriteResult;
using surgery::TensorClass;
using surgery::TypeChange;

double giga(uint64_t n) {
  return static_cast<double>(n) * 1e-9;
}

double bits(uint64_t bytes, uint64_t weights) {
  return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
}

std::string percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

// The tensors of one line of the report.
struct ClassErrors {
  TypeChange change;
  ErrorSums errors;
  const EncodedTensor* worst = nullptr;  // by relative RMSE
  uint64_t n_weighted = 0;
};

std::vector<ClassErrors> by_class(const RewriteResult& result) {
  std::map<std::tuple<TensorClass, gguf::TypeId, gguf::TypeId>, ClassErrors> lines;
  for (const EncodedTensor& encoded : result.encoded) {
    const gguf::Tensor& source = *encoded.tensor->source;
    const TensorClass kind = surgery::tensor_class(source);
    ClassErrors& line = lines[{kind, source.type, encoded.tensor->type}];
    line.change.kind = kind;
    line.change.from = source.type;
    line.change.to = encoded.tensor->type;
    ++line.change.n_tensors;
    line.change.n_elements += encoded.tensor->n_elements();
    line.n_weighted += encoded.weighted ? 1 : 0;
    line.errors.add(encoded.errors, 0);
    if (line.worst == nullptr ||
        encoded.errors.relative_rmse() > line.worst->errors.relative_rmse()) {
      line.worst = &encoded;
    }
  }
  std::vector<ClassErrors> out;
  for (const auto& [key, line] : lines) out.push_back(line);
  return out;
}

constexpr const char* kErrorHead = "{:<26} {:<8} {:<6} {:>6} {:>10} {:>9} {:>9} {:>9} {:>9}  {}\n";

void print_errors(std::FILE* to, const RewriteResult& result) {
  if (result.encoded.empty()) return;
  fmt::print(to, "\n{}",
             fmt::format(kErrorHead, "errors", "from", "to", "bpw", "RMSE", "relative", "weighted",
                         "cosine", "worst", "largest"));
  for (const ClassErrors& line : by_class(result)) {
    fmt::print(
        to, "{}",
        fmt::format(
            kErrorHead,
            fmt::format("{} ({})", surgery::class_name(line.change.kind), line.change.n_tensors),
            gguf::type_name(line.change.from), gguf::type_name(line.change.to),
            fmt::format("{:.3g}", surgery::bits_per_weight(line.change.to)),
            fmt::format("{:.4g}", line.errors.rmse(line.change.n_elements)),
            percent(line.errors.relative_rmse()),
            line.n_weighted == 0 ? "-" : percent(line.errors.weighted_relative_rmse()),
            fmt::format("{:.5f}", line.errors.cosine()), percent(line.errors.worst),
            fmt::format("{} {}", percent(line.worst->errors.relative_rmse()),
                        line.worst->tensor->source->name)));
  }
  fmt::print(
      to,
      "relative: RMSE / RMS of the values; weighted: the same by importance. worst: relative, "
      "of one block. largest: relative, of one tensor.\n");
  if (log::level() < log::Level::Debug) return;
  fmt::print(to, "\n");
  for (const EncodedTensor& encoded : result.encoded) {
    fmt::print(
        to, "{}",
        fmt::format(
            kErrorHead, encoded.tensor->source->name, gguf::type_name(encoded.tensor->source->type),
            gguf::type_name(encoded.tensor->type),
            fmt::format("{:.3g}", surgery::bits_per_weight(encoded.tensor->type)),
            fmt::format("{:.4g}", encoded.errors.rmse(encoded.tensor->n_elements())),
            percent(encoded.errors.relative_rmse()),
            encoded.weighted ? percent(encoded.errors.weighted_relative_rmse()) : "-",
            fmt::format("{:.5f}", encoded.errors.cosine()), percent(encoded.errors.worst), ""));
  }
}

// `n`: weights that were added to the errors.
Json errors_json(const ErrorSums& errors, uint64_t n, bool weighted) {
  return {{"rmse", errors.rmse(n)},
          {"relative_rmse", errors.relative_rmse()},
          {"weighted_relative_rmse", weighted ? Json(errors.weighted_relative_rmse()) : Json()},
          {"cosine", errors.cosine()},
          {"worst_block_relative_rmse", errors.worst}};
}

Json report_json(const RewriteResult& result, const RewritePlan& plan, uint64_t peak) {
  Json out = {{"source", plan.source->path()},
              {"files", result.files},
              {"bytes", result.bytes},
              {"read_bytes", result.read_bytes},
              {"resumed_bytes", result.resumed_bytes},
              {"weights", plan.n_elements()},
              {"bits_per_weight", bits(plan.data_bytes(), plan.n_elements())},
              {"weights_encoded", result.n_encoded},
              {"seconds", result.seconds},
              {"peak_memory_bytes", peak}};
  Json& classes = out["classes"] = Json::array();
  for (const ClassErrors& line : by_class(result)) {
    Json entry = {{"class", surgery::class_name(line.change.kind)},
                  {"from", gguf::type_name(line.change.from)},
                  {"to", gguf::type_name(line.change.to)},
                  {"tensors", line.change.n_tensors},
                  {"weights", line.change.n_elements}};
    entry.update(errors_json(line.errors, line.change.n_elements, line.n_weighted != 0));
    classes.push_back(entry);
  }
  Json& tensors = out["tensors"] = Json::array();
  for (const EncodedTensor& encoded : result.encoded) {
    Json entry = {{"name", encoded.tensor->source->name},
                  {"from", gguf::type_name(encoded.tensor->source->type)},
                  {"to", gguf::type_name(encoded.tensor->type)},
                  {"weights", encoded.tensor->n_elements()},
                  {"bits_per_weight", surgery::bits_per_weight(encoded.tensor->type)}};
    entry.update(errors_json(encoded.errors, encoded.tensor->n_elements(), encoded.weighted));
    entry["worst_block_element"] = encoded.errors.worst_at;
    tensors.push_back(entry);
  }
  return out;
}

void write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    fmt::print("{}", text);
    return;
  }
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

// Values that were rounded once are rounded again.
void warn_of_quantised(const std::vector<TypeChange>& changes) {
  std::string types;
  uint64_t n = 0;
  for (const TypeChange& change : changes) {
    if (surgery::is_float(change.from)) continue;
    n += change.n_tensors;
    const std::string type = fmt::format("{} ({:.4g} bpw)", gguf::type_name(change.from),
                                         surgery::bits_per_weight(change.from));
    if (types.find(type) == std::string::npos) types += (types.empty() ? "" : ", ") + type;
  }
  if (n == 0) return;
  log::warn(
      "{} of the tensors are quantised already: {}. Rounding again adds to the error, and the "
      "figures below are against these values, not against the original weights: start from the "
      "unquantised model if you can, and measure the result",
      n, types);
}

void check_importance(const RewriteFlags& flags, const GivenImatrix& given,
                      const RewritePlan& plan) {
  const std::vector<std::string> missing =
      surgery::without_importance(plan, given.imatrix, flags.imatrix);
  if (missing.empty()) return;
  constexpr size_t kShown = 8;
  const size_t shown =
      log::level() >= log::Level::Debug ? missing.size() : std::min(missing.size(), kShown);
  const std::string list = fmt::format(
      "{}{}",
      fmt::join(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      shown < missing.size() ? ", ..." : "");
  if (flags.require_imatrix) {
    fail(ErrorKind::Format, "{} says nothing of {} tensors to be encoded: {}", flags.imatrix,
         missing.size(), list);
  }
  log::warn("{} says nothing of {} tensors to be encoded, which get equal weights: {}",
            flags.imatrix, missing.size(), list);
}

}  // namespace

void RewriteFlags::add_output(CLI::App& app) {
  app.add_option("model", model, "GGUF file, or any shard of a set")->required();
  app.add_option("-o,--out", out, "the GGUF file to write; without it nothing is written");
  app.add_option("--max-shard-size", max_shard, "split into files of at most this size, as 40G")
      ->default_str("one file");
  app.add_option(
      "--json", json,
      "also write the report as JSON to this file (-: to standard output, and the text to "
      "standard error)");
  app.add_flag("--force", force, "replace files of that name");
  app.add_option("-t,--threads", threads, "threads")
      ->check(CLI::Range(1, 1024))
      ->default_str("one per physical core");
}

void RewriteFlags::add_types(CLI::App& app) {
  app.add_option("--experts", experts, "type of all routed experts, as Q2_0");
  app.add_option("--dense", dense, "type of the other matrices of the blocks");
  app.add_option("--embedding", embedding, "type of the token embedding");
  app.add_option("--head", head, "type of the output head");
  app.add_option("--table", table, "type of the n-gram table");
  app.add_option(
      "--keep-type", keep_types,
      "PATTERN=TYPE: tensors of these names (* stands for any characters, ? for one) get this "
      "type; "
      "the last that fits decides. May be repeated");
  app.add_option("--imatrix", imatrix,
                 "importance of the weights' columns (GGUF, as `calibrate --imatrix-out` and "
                 "llama.cpp write it)");
  app.add_flag("--require-imatrix", require_imatrix,
               "fail when it says nothing of a tensor to be encoded");
  app.add_flag("--positive-d", positive_scales,
               "no negative scales in Q2_0, for readers that cannot take them; costs accuracy");
}

std::FILE* RewriteFlags::text() const noexcept {
  return json == "-" ? stderr : stdout;
}

surgery::TypeRules RewriteFlags::rules() const {
  surgery::TypeRules rules;
  const auto set = [](const char* flag, const std::string& name,
                      std::optional<gguf::TypeId>* type) {
    if (!name.empty()) *type = surgery::parse_writable(flag, name);
  };
  set("--experts", experts, &rules.experts);
  set("--dense", dense, &rules.dense);
  set("--embedding", embedding, &rules.embedding);
  set("--head", head, &rules.head);
  set("--table", table, &rules.table);
  for (const std::string& text : keep_types) {
    rules.patterns.push_back(surgery::parse_pattern(text));
  }
  return rules;
}

std::optional<GivenImatrix> read_importance(const RewriteFlags& flags) {
  if (flags.imatrix.empty()) {
    if (flags.require_imatrix) fail(ErrorKind::Usage, "--require-imatrix needs --imatrix FILE");
    return std::nullopt;
  }
  return GivenImatrix{surgery::read_imatrix(flags.imatrix),
                      std::filesystem::path(flags.imatrix).filename().string(),
                      sha256_file(flags.imatrix)};
}

void print_changes(std::FILE* to, const RewritePlan& plan,
                   const std::vector<surgery::Fallback>& fallbacks) {
  uint64_t copied = 0, encoded = 0;
  for (const surgery::OutputTensor& tensor : plan.tensors) {
    (tensor.encoded() ? encoded : copied) += 1;
  }
  for (const TypeChange& change : surgery::type_changes(plan)) {
    fmt::print(to, "{:<16} {:>5} tensors {:>9.3f} B weights   {} ({:.4g} bpw) to {} ({:.4g} bpw)\n",
               surgery::class_name(change.kind), change.n_tensors, giga(change.n_elements),
               gguf::type_name(change.from), surgery::bits_per_weight(change.from),
               gguf::type_name(change.to), surgery::bits_per_weight(change.to));
  }
  fmt::print(to, "{:<16} {:>5} tensors keep their type\n", "copied", copied);
  if (encoded > 0) fmt::print(to, "rule: {}\n", surgery::kept_rule());
  for (const surgery::Fallback& f : fallbacks) {
    fmt::print(to, "rows of {} hold no whole blocks of {}: {} tensors get {}\n", f.row,
               gguf::type_name(f.wanted), f.n_tensors, gguf::type_name(f.got));
  }
  uint64_t before = 0;
  for (const gguf::Tensor& tensor : plan.source->tensors()) before += tensor.bytes;
  fmt::print(to, "tensors: {} of {}, {:.3f} B weights, {:.3f} bpw\n",
             format_bytes(plan.data_bytes()), format_bytes(before), giga(plan.n_elements()),
             bits(plan.data_bytes(), plan.n_elements()));
}

void plan_types(const RewriteFlags& flags, const Sha256& source_id,
                const std::optional<GivenImatrix>& imatrix, RewritePlan* plan) {
  const surgery::TypeRules rules = flags.rules();
  std::vector<surgery::Fallback> fallbacks;
  if (!rules.empty()) fallbacks = surgery::apply_types(rules, plan);
  const std::vector<TypeChange> changes = surgery::type_changes(*plan);
  print_changes(flags.text(), *plan, fallbacks);
  if (changes.empty()) return;
  warn_of_quantised(changes);
  surgery::RequantiseNote note;
  note.tool = tool_name();
  note.source_model_id = hex(source_id);
  note.source_name = std::string(plan->source->metadata().get_string("general.name", ""));
  note.positive_scales = flags.positive_scales;
  if (imatrix) {
    check_importance(flags, *imatrix, *plan);
    note.imatrix_name = imatrix->name;
    note.imatrix_sha256 = hex(imatrix->file_id);
    note.imatrix_datasets = imatrix->imatrix.datasets;
    note.imatrix_entries = static_cast<uint32_t>(imatrix->imatrix.tensors.size());
    note.imatrix_chunks = imatrix->imatrix.n_chunks;
  }
  surgery::record_requantise(note, plan);
}

RewriteResult carry_out(const RewriteFlags& flags, const std::optional<GivenImatrix>& imatrix,
                        const RewritePlan& plan) {
  const int threads =
      flags.threads > 0 ? flags.threads : static_cast<int>(cpu_facts().cores.size());
  ThreadPool pool(std::max(threads, 1));
  std::unique_ptr<Progress> bar;
  surgery::RewriteRequest request;
  request.plan = &plan;
  request.out = flags.out;
  request.max_shard_bytes = parse_size(flags.max_shard);
  request.replace = flags.force;
  request.imatrix = imatrix ? &imatrix->imatrix : nullptr;
  request.positive_scales = flags.positive_scales;
  request.pool = &pool;
  request.cancel = &interrupt_flag();
  std::string_view stage;
  request.progress = [&](std::string_view what, uint64_t done, uint64_t total) {
    if (!bar || what != stage) {
      bar.reset();
      bar = std::make_unique<Progress>(std::string(what), total);
      stage = what;
    }
    bar->set(done);
  };
  RewriteResult result = surgery::rewrite(request);
  if (bar) bar->finish();
  const uint64_t peak = footprint().peak_rss;
  std::FILE* const to = flags.text();
  for (const std::string& file : result.files) fmt::print(to, "{}\n", file);
  fmt::print(to, "{} read, {} written in {:.1f} s", format_bytes(result.read_bytes),
             format_bytes(result.bytes), result.seconds);
  if (result.resumed_bytes > 0) {
    fmt::print(to, " ({} of it by an earlier run)", format_bytes(result.resumed_bytes));
  }
  const uint64_t encoded = result.n_encoded - result.resumed_encoded;
  if (encoded > 0) {
    fmt::print(to, ", {:.3f} B weights encoded ({:.0f} M/s on {} threads)", giga(encoded),
               static_cast<double>(encoded) * 1e-6 / result.seconds, pool.size());
  }
  fmt::print(to, ", peak memory {}\n", format_bytes(peak));
  print_errors(to, result);
  if (!flags.json.empty()) {
    write_text(
        flags.json,
        report_json(result, plan, peak).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return result;
}

}  // namespace penstock::cli
