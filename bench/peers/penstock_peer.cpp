// Penstock as one side of a comparison: the counterpart of tools/oracle/llama_peer.cpp, with the
// same commands on standard input and the same one-line answers.
//
//   penstock_peer MODEL.gguf [--threads N] [--batch N] [--ctx N] [--kv f16|f32] [--memory 8G]
//
//   prompt N SEED   empties the state, times N pseudo-random ids; only the last logits
//   decode N        times N greedy tokens after whatever is in the state
//   bandwidth       GB/s at which the threads read 512 MiB of memory, best of three
//   counters        expert and table bytes read so far, seconds stalled in decode and in prompts
//   reuse N SEED    empties the state, decodes N pseudo-random ids: hits of least-recently-used
//                   caches of so many slots per layer, each beside the published rate of a model
//                   with as many experts where there is one (slots:rate/published), and the share
//                   of selections that repeat the previous token's
//   quit
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/machine.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "engine/runtime.h"
#include "engine/session.h"
#include "surgery/reuse.h"

namespace {

using namespace penstock;

engine::RuntimeOptions parse(int argc, char** argv) {
  engine::RuntimeOptions options;
  if (argc < 2) fail(ErrorKind::Usage, "usage: penstock_peer MODEL.gguf [options]");
  options.model_path = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--threads") {
      options.threads = std::stoi(value);
    } else if (name == "--batch") {
      options.prompt_chunk = std::stoi(value);
    } else if (name == "--ctx") {
      options.n_ctx = std::stoll(value);
    } else if (name == "--kv") {
      options.kv = value == "f32" ? models::KvType::F32 : models::KvType::F16;
    } else if (name == "--memory") {
      options.memory = parse_size(value);
    } else {
      fail(ErrorKind::Usage, "unknown option {}", name);
    }
  }
  return options;
}

class Timer {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The same ids as llama_peer makes.
std::vector<int32_t> ids(size_t n, uint64_t seed, uint64_t n_vocab) {
  std::vector<int32_t> out(n);
  for (int32_t& id : out) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((seed >> 33) % n_vocab);
  }
  return out;
}

double read_bandwidth(int threads) {
  constexpr int64_t kPiece = int64_t{1} << 16;  // words
  constexpr int64_t kPieces = 1024;
  const std::vector<uint64_t> words(static_cast<size_t>(kPiece * kPieces), 1);
  std::vector<uint64_t> sums(static_cast<size_t>(kPieces));
  ThreadPool pool(threads);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const Timer timer;
    pool.parallel_for(kPieces, [&](int64_t piece, int) {
      const uint64_t* at = words.data() + piece * kPiece;
      uint64_t sum[8] = {};
      for (int64_t i = 0; i < kPiece; i += 8) {
        for (int lane = 0; lane < 8; ++lane) sum[lane] += at[i + lane];
      }
      for (const uint64_t lane : sum) sums[static_cast<size_t>(piece)] += lane;
    });
    const double bytes = static_cast<double>(words.size() * sizeof(uint64_t));
    best = std::max(best, bytes / timer.seconds() * 1e-9);
  }
  return sums[0] == 0 ? 0 : best;  // the sums are used: the loops stay
}

// Passes decode's selections on to a meter while there is one.
struct Watcher final : experts::RouteObserver {
  surgery::ReuseMeter* meter = nullptr;
  void selected(int index, int, experts::Phase phase, std::span<const int32_t> ids,
                std::span<const float>) override {
    if (meter != nullptr && phase == experts::Phase::Decode) meter->add(index, ids);
  }
};

std::string reuse(engine::Runtime& runtime, engine::Session& session, Watcher& watcher,
                  const std::vector<int32_t>& tokens) {
  const experts::Geometry& geometry = runtime.stream().geometry();
  const int n_expert = geometry.layers.front().n_expert;
  surgery::ReuseMeter meter(static_cast<int>(geometry.layers.size()), n_expert);
  watcher.meter = &meter;
  session.reset();
  session.prefill({tokens.data(), 1});
  for (const int32_t token : tokens) {
    session.expect(token);
    session.decode(token);
  }
  watcher.meter = nullptr;
  std::string out = fmt::format("ok repeat {:.4f}", meter.repeat_rate());
  bool published = false;
  for (const surgery::PublishedCurve& curve : surgery::published_curves()) {
    if (curve.n_expert != n_expert) continue;
    published = true;
    for (const auto& [slots, rate] : curve.points) {
      out += fmt::format(" {}:{:.4f}/{:.3f}", slots, meter.hit_rate(slots), rate);
    }
  }
  for (int eighths = 1; !published && eighths <= 8; ++eighths) {
    const int slots = n_expert * eighths / 8;
    out += fmt::format(" {}:{:.4f}/-", slots, meter.hit_rate(slots));
  }
  return out;
}

std::string answer(const std::string& line, engine::Runtime& runtime, engine::Session& session,
                   Watcher& watcher) {
  std::istringstream words(line);
  std::string command;
  size_t n = 0;
  uint64_t seed = 1;
  words >> command >> n >> seed;
  if (command == "prompt") {
    const auto tokens = ids(n, seed, static_cast<uint64_t>(runtime.info().n_vocab));
    session.reset();
    const Timer timer;
    session.prefill(tokens);
    return fmt::format("ok {:.9f}", timer.seconds());
  }
  if (command == "decode") {
    const Timer timer;
    for (size_t i = 0; i < n; ++i) {
      const int32_t token = argmax(session.logits());
      session.expect(token);
      session.decode(token);
    }
    return fmt::format("ok {:.9f}", timer.seconds());
  }
  if (command == "bandwidth")
    return fmt::format("ok {:.3f}", read_bandwidth(runtime.options().threads));
  if (command == "counters") {
    const experts::Counters c = runtime.counters();
    return fmt::format(
        "ok {} {:.6f} {:.6f}", c.demand.bytes + c.prompt.bytes + c.fill.bytes + c.spec.bytes,
        static_cast<double>(c.stall_ns) * 1e-9, static_cast<double>(c.prompt_stall_ns) * 1e-9);
  }
  if (command == "reuse") {
    return reuse(runtime, session, watcher,
                 ids(n, seed, static_cast<uint64_t>(runtime.info().n_vocab)));
  }
  return "error unknown command " + command;
}

}  // namespace

int main(int argc, char** argv) try {
  const auto runtime = engine::Runtime::open(parse(argc, argv), {});
  engine::Session session(*runtime);
  Watcher watcher;
  runtime->stream().observe(&watcher);
  fmt::print("ok ready n_vocab {} {}\n", runtime->info().n_vocab,
             quant::isa_name(quant::current_isa()));
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    try {
      fmt::print("{}\n", answer(line, *runtime, session, watcher));
    } catch (const std::exception& e) {
      fmt::print("error {}\n", e.what());
    }
    std::fflush(stdout);
  }
  return 0;
} catch (const std::exception& e) {
  fmt::print("error {}\n", e.what());
  return 1;
}
