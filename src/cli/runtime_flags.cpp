#include "cli/runtime_flags.h"

#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/progress.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSampleModel = "sample-qwen4exp-q8_0.gguf";

}  // namespace

std::string sample_model_path() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = program.parent_path();
  for (const fs::path& place :
       {folder / "../../models", folder / "../share/penstock/models", folder / "models"}) {
    const fs::path candidate = place / kSampleModel;
    if (fs::exists(candidate, error)) return candidate.lexically_normal().string();
  }
  fail(ErrorKind::Usage,
       "the sample model ({}) is not beside the program: name a model with -m FILE", kSampleModel);
}

void RuntimeFlags::add_to(CLI::App& app) {
  app.add_option("-m,--model", model_, "GGUF file, or any shard of a set")
      ->default_str("the sample model");
  app.add_option("--memory", memory_,
                 "memory to live in, everything included: 8G, 6000M, or auto (what is available)")
      ->capture_default_str()
      ->group("Memory");
  app.add_option("--arena-slots", arena_slots_,
                 "experts held in memory, instead of what --memory allows")
      ->check(CLI::PositiveNumber)
      ->group("Memory");
  app.add_option("--ctx", ctx_, "context length in tokens")
      ->check(CLI::PositiveNumber)
      ->default_str("4096, or what the model was trained for")
      ->group("Memory");
  app.add_option("--prompt-chunk", prompt_chunk_, "prompt tokens evaluated together")
      ->check(CLI::Range(1, 1 << 16))
      ->default_str("512; less where memory is short, more where experts are streamed")
      ->group("Memory");
  app.add_option("--kv", kv_, "type of cached keys and values: f16, f32, auto (f16; f32 if exact)")
      ->check(CLI::IsMember({"auto", "f16", "f32"}))
      ->capture_default_str()
      ->group("Memory");
  app.add_option("--watchdog-ms", watchdog_ms_,
                 "how often the memory left is looked at, in milliseconds; 0: never")
      ->check(CLI::Range(0, 60000))
      ->capture_default_str()
      ->group("Memory");
  app.add_option("--swap-limit", swap_limit_,
                 "the run ends when this much was swapped out since its start")
      ->default_str("64M")
      ->group("Memory");
  add_dense(app);
  app.add_option("--io", io_,
                 "how experts are read: auto, uring, pread, buffered; mmap: not at all, they are "
                 "used in the mapped file and the kernel decides what stays in memory")
      ->check(CLI::IsMember({"auto", "uring", "pread", "buffered", "mmap"}))
      ->capture_default_str()
      ->group("Streaming");
  app.add_option("--pack", pack_,
                 "where experts are read from: a pack file, none (the model itself), or auto (a "
                 "pack beside the model that was made from it)")
      ->capture_default_str()
      ->group("Streaming");
  app.add_flag("--pack-unchecked", pack_unchecked_,
               "take the --pack FILE although it was made from another model of this shape")
      ->group("Streaming");
  app.add_option(
         "--verify", verify_,
         "check the checksums of records read from a pack: none, all, sample:N (every N-th)")
      ->capture_default_str()
      ->group("Streaming");
  app.add_option("--evict", evict_,
                 "which expert makes room: lfu (aged counts), lru, profile (lfu that starts from a "
                 "profile), cycle (lru of the layers gone by, for small arenas)")
      ->check(CLI::IsMember({"lfu", "lru", "profile", "cycle"}))
      ->capture_default_str()
      ->group("Streaming");
  app.add_option("--half-life", half_life_,
                 "decoded tokens after which all use counts are halved (lfu: 8, profile: 32)")
      ->check(CLI::Range(1, 1000000000))
      ->group("Streaming");
  app.add_option("--read-ahead", read_ahead_,
                 "read experts of the next layers before their routers have spoken: auto (while it "
                 "helps), on, off, probe (predict and compare only)")
      ->check(CLI::IsMember({"auto", "on", "off", "probe"}))
      ->capture_default_str()
      ->group("Streaming");
  app.add_option(
         "--predictor", predictor_,
         "what reading ahead asks the next layers' routers: residual, residual+shared (with "
         "the shared expert added), gate-input (this layer's, unchanged), auto (gate-input "
         "with several residual streams, else residual)")
      ->check(CLI::IsMember({"auto", "residual", "residual+shared", "gate-input"}))
      ->capture_default_str()
      ->group("Streaming");
  app.add_option("--profile", profile_,
                 "how often each expert is used, as --profile-out wrote it: a file, none, or auto "
                 "(MODEL.profile.json beside the model)")
      ->capture_default_str()
      ->group("Streaming");
  app.add_option("--fill", fill_,
                 "read the experts that the profile counts most: warm (before the first prompt), "
                 "lazy (in decode, when the disk is idle), none")
      ->check(CLI::IsMember({"warm", "lazy", "none"}))
      ->capture_default_str()
      ->group("Streaming");
  app.add_option("--hot-cap", hot_cap_,
                 "percent of the arena's slots whose experts, the most used of the turns before, "
                 "are evicted last")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str()
      ->group("Streaming");
  app.add_option("--io-depth", depth_,
                 "experts being read at once for a prompt; at most half as many ahead")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->group("Streaming");
  app.add_option("--huge-pages", huge_pages_,
                 "the arena on huge pages: auto (as far as the kernel has them), off (to compare)")
      ->check(CLI::IsMember({"auto", "off"}))
      ->capture_default_str()
      ->group("Streaming");
  app.add_flag("--alias-experts", alias_,
               "measure compute alone: all experts share a few slots, the output is meaningless")
      ->group("Streaming");
  add_moce(app);
  app.add_option("--ple", ple_, "separate file with the n-gram embedding table")->group("Model");
  app.add_option("--precision", precision_,
                 "fast (8-bit activations) or exact (f32 activations, for comparisons)")
      ->check(CLI::IsMember({"fast", "exact"}))
      ->capture_default_str()
      ->group("Compute");
  app.add_option("-t,--threads", threads_, "compute threads")
      ->check(CLI::Range(1, 1024))
      ->default_str("one per physical performance core")
      ->group("Compute");
}

void RuntimeFlags::add_dense(CLI::App& app) {
  app.add_option("--dense", dense_,
                 "dense weights: copy (read directly into huge pages) or map (in place)")
      ->check(CLI::IsMember({"copy", "map"}))
      ->capture_default_str()
      ->group("Memory");
  app.add_option("--lock", lock_,
                 "lock the dense weights in memory: auto (a warning where the system refuses), off")
      ->check(CLI::IsMember({"auto", "off"}))
      ->capture_default_str()
      ->group("Memory");
  app.add_flag("--require-lock", require_lock_,
               "end with an error where not all dense weights can be locked")
      ->group("Memory");
  app.add_option(
         "--dense-convert", dense_convert_,
         "PATTERN=TYPE: hold dense matrices whose names match (*, ?) in another type, as in "
         "'blk.*.attn_*=Q8_0'; may be given several times, the last match counts. Changes "
         "the output")
      ->type_name("PATTERN=TYPE")
      ->allow_extra_args(false)
      ->group("Memory");
}

void RuntimeFlags::add_moce(CLI::App& app) {
  const char* const group = "Cache-aware routing (changes the output)";
  experts::MoceOptions& o = moce_options_;
  app.add_option("--moce", moce_,
                 "prefer experts that are in memory: off, bonus, prior, maxrank, cumprob")
      ->check(CLI::IsMember({"off", "bonus", "prior", "maxrank", "cumprob"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--moce-bonus", o.bonus, "bonus: added to the router's logits of those")
      ->capture_default_str()
      ->group(group);
  app.add_option("--moce-lambda", o.lambda, "prior: the same as a share of the logits' mean range")
      ->capture_default_str()
      ->group(group);
  app.add_option("--moce-window", o.window, "maxrank: those of a lower rank than this go first")
      ->capture_default_str()
      ->group(group);
  app.add_option("--moce-mass", o.mass, "cumprob: those among this much probability go first")
      ->capture_default_str()
      ->group(group);
  app.add_option("--moce-protect", o.protect, "ranks that are selected in memory or not")
      ->capture_default_str()
      ->group(group);
  app.add_option("--moce-residency", moce_residency_,
                 "what counts as in memory: live (depends on the disk's timing) or epoch (what was "
                 "there when the token began: reproducible)")
      ->check(CLI::IsMember({"live", "epoch"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--moce-guard", o.guard,
                 "above 0: halve the preference when, over 256 tokens, more than this share of the "
                 "selected probability was lost")
      ->capture_default_str()
      ->group(group);
}

engine::RuntimeOptions RuntimeFlags::options() const {
  engine::RuntimeOptions options;
  options.model_path = model_.empty() ? sample_model_path() : model_;
  options.ple_path = ple_;
  options.precision = precision_ == "exact" ? quant::Precision::Exact : quant::Precision::Fast;
  options.threads = threads_;
  options.n_ctx = ctx_;
  options.prompt_chunk = prompt_chunk_;
  if (kv_ != "auto") options.kv = kv_ == "f32" ? models::KvType::F32 : models::KvType::F16;
  options.dense = dense_ == "map" ? models::DenseMode::Map : models::DenseMode::Copy;
  options.lock_dense = lock_ == "auto";
  options.require_lock = require_lock_;
  if (require_lock_ && !options.lock_dense) {
    fail(ErrorKind::Usage, "--require-lock needs --lock auto");
  }
  for (const std::string& rule : dense_convert_) {
    options.dense_convert.push_back(models::parse_convert_rule(rule));
  }
  if (memory_ != "auto") options.memory = parse_size(memory_);
  if (arena_slots_ > 0) options.arena_slots = static_cast<uint64_t>(arena_slots_);
  options.stream.io = experts::parse_io_mode(io_);
  options.stream.evict = experts::parse_evict(evict_);
  options.stream.half_life = half_life_.value_or(experts::default_half_life(options.stream.evict));
  options.stream.read_ahead = experts::parse_read_ahead(read_ahead_);
  options.stream.predictor = experts::parse_predictor(predictor_);
  options.watchdog_ms = watchdog_ms_;
  if (!swap_limit_.empty()) options.swap_limit = parse_size(swap_limit_);
  options.profile = profile_;
  options.stream.fill = experts::parse_fill(fill_);
  options.stream.hot_share = hot_cap_ / 100;
  options.stream.moce = moce_options_;
  options.stream.moce.mode = experts::parse_moce(moce_);
  options.stream.moce.residency = experts::parse_moce_residency(moce_residency_);
  experts::check_moce(options.stream.moce);
  options.stream.depth = depth_;
  if (huge_pages_ == "off") options.stream.huge_seconds = 0;
  options.stream.alias = alias_;
  options.stream.pack = {pack_, pack_unchecked_};
  options.stream.verify_every = experts::parse_verify(verify_);
  return options;
}

engine::Runtime::Progress progress_line() {
  struct Line {
    std::string phase;
    std::unique_ptr<Progress> bar;
  };
  return [line = std::make_shared<Line>()](std::string_view phase, uint64_t done, uint64_t total) {
    if (line->phase != phase) {
      line->phase = phase;
      line->bar = std::make_unique<Progress>(line->phase, total);
    }
    line->bar->set(done);
  };
}

std::unique_ptr<engine::Runtime> open_runtime(const RuntimeFlags& flags) {
  return engine::Runtime::open(flags.options(), progress_line());
}

void check_unchanged(const engine::Runtime& runtime) {
  const std::string changed = runtime.source().changed();
  if (changed.empty()) return;
  fail(ErrorKind::Io,
       "{}: what was computed with it cannot be relied on; check the file and run again", changed);
}

}  // namespace penstock::cli
