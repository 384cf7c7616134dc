#include "measure/sim.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "measure/sim_clairvoyant.h"
#include "measure/sim_replay.h"

namespace penstock::measure {
namespace {

// Either kind of replay.
struct Runner {
  std::unique_ptr<Replay> replay;
  std::unique_ptr<ClairvoyantReplay> clairvoyant;
  std::exception_ptr failure;

  void run(const TraceChunk& chunk) noexcept {
    if (failure) return;
    try {
      if (replay) {
        replay->run(chunk);
      } else {
        clairvoyant->run(chunk);
      }
    } catch (...) {
      failure = std::current_exception();
    }
  }
};

void check(const TraceModel& model, const SimRequest& request) {
  if (request.cost && model.read_bytes.empty()) {
    fail(ErrorKind::Usage,
         "{}: its header does not say how many bytes an expert has: no time can be estimated",
         model.path);
  }
  size_t n_experts = 0;
  for (const experts::LayerGeometry& layer : model.geometry.layers) {
    n_experts += static_cast<size_t>(layer.n_expert);
  }
  if (!request.shares.empty() && request.shares.size() != n_experts) {
    fail(ErrorKind::Usage, "{}: the profile is one of other experts", model.path);
  }
  for (const SimSetting& s : request.settings) {
    if (s.slots == 0 && model.shape.slots() == 0) {
      fail(ErrorKind::Usage, "{}: its header has no slots: give --slots", model.path);
    }
    if ((s.ahead.on || s.moce.on()) && !model.logits) {
      fail(ErrorKind::Usage,
           "{} has neither logits nor predictions: record it with --trace-logits to replay "
           "read-ahead or cache-aware routing",
           model.path);
    }
    const bool needs_profile = s.policy == SimPolicy::Profile || s.warm;
    if (needs_profile && !is_clairvoyant(s.policy) && request.shares.empty()) {
      fail(ErrorKind::Usage,
           "'{}' needs a profile: --profile FILE, or self for the trace's own counts",
           setting_text(s));
    }
    if (is_clairvoyant(s.policy) && !s.bounded()) {
      fail(ErrorKind::Usage, "the clairvoyant policies neither reroute nor read ahead");
    }
    experts::check_moce(s.moce);
  }
}

bool any_logits(const std::vector<SimSetting>& settings) {
  return std::any_of(settings.begin(), settings.end(),
                     [](const SimSetting& s) { return s.ahead.on || s.moce.on(); });
}

}  // namespace

std::vector<SimResult> simulate(const TraceModel& model, const SimRequest& request) {
  check(model, request);
  std::optional<NextUses> next;
  if (std::any_of(request.settings.begin(), request.settings.end(),
                  [](const SimSetting& s) { return is_clairvoyant(s.policy); })) {
    next.emplace(model);
  }
  const SimCost* cost = request.cost ? &*request.cost : nullptr;
  std::vector<SimResult> results;
  std::vector<Runner> runners;
  for (const SimSetting& s : request.settings) {
    const experts::ArenaShape shape = s.slots == 0 ? model.shape : model.with_slots(s.slots);
    results.push_back({.setting = s,
                       .slots = shape.slots(),
                       .arena_bytes = shape.arena_bytes(),
                       .counts = {},
                       .bound_misses = std::nullopt});
    Runner& runner = runners.emplace_back();
    if (is_clairvoyant(s.policy)) {
      runner.clairvoyant = std::make_unique<ClairvoyantReplay>(
          model, shape, s.policy == SimPolicy::ClairvoyantAdmits, s.warm, *next, cost);
    } else {
      runner.replay = std::make_unique<Replay>(model, shape, s, request.shares, cost);
    }
  }
  ThreadPool pool(std::max(1, request.threads));
  const uint64_t total = File::open_read(model.path).size();
  uint64_t done = 0;
  uint64_t predictions = 0;
  read_chunks(model.path, any_logits(request.settings), [&](const TraceChunk& chunk) {
    pool.parallel_for(static_cast<int64_t>(runners.size()),
                      [&](int64_t task, int) { runners[static_cast<size_t>(task)].run(chunk); });
    for (const TraceEvent& event : chunk.events) {
      predictions += event.kind == TraceEventKind::Predicted ? 1 : 0;
    }
    done += chunk.file_bytes;
    if (request.progress) request.progress(std::min(done, total), total);
  });
  if (request.progress) request.progress(total, total);
  for (size_t i = 0; i < runners.size(); ++i) {
    if (runners[i].failure) std::rethrow_exception(runners[i].failure);
    if (request.settings[i].ahead.on && predictions == 0) {
      fail(ErrorKind::Usage,
           "{} has no predictions: record it with --trace-logits and --read-ahead on or probe",
           model.path);
    }
    results[i].counts =
        runners[i].replay ? runners[i].replay->counts() : runners[i].clairvoyant->counts();
  }
  finish_results(results, request.cost);
  return results;
}

double replayed_hit_rate(const TraceModel& model, const experts::ArenaShape& shape,
                         const SimSetting& setting, std::span<const float> shares) {
  Replay replay(model, shape, setting, shares, nullptr);
  read_chunks(model.path, setting.moce.on(), [&](const TraceChunk& chunk) { replay.run(chunk); });
  return replay.counts().hit_rate();
}

void add_results(std::vector<SimResult>& sum, const std::vector<SimResult>& other) {
  if (sum.empty()) {
    sum = other;
    return;
  }
  for (size_t i = 0; i < sum.size(); ++i) sum[i].counts += other[i].counts;
}

void finish_results(std::vector<SimResult>& results, const std::optional<SimCost>& cost) {
  for (SimResult& r : results) {
    r.bound_misses.reset();
    if (r.setting.bounded()) {
      for (const SimResult& bound : results) {
        if (bound.setting.policy == SimPolicy::Clairvoyant && bound.slots == r.slots &&
            bound.setting.warm == r.setting.warm) {
          r.bound_misses = bound.counts.misses();
        }
      }
    }
    r.token_s = 0;
    if (cost && r.counts.tokens != 0) {
      r.token_s = cost->compute.token_s + r.counts.stall_s / static_cast<double>(r.counts.tokens);
    }
  }
}

std::vector<float> shares_of_trace(const TraceModel& model) {
  std::vector<size_t> base = {0};
  for (const experts::LayerGeometry& layer : model.geometry.layers) {
    base.push_back(base.back() + static_cast<size_t>(layer.n_expert));
  }
  std::vector<uint64_t> uses(base.back(), 0);
  read_chunks(model.path, false, [&](const TraceChunk& chunk) {
    for (const TraceEvent& e : chunk.events) {
      if (e.kind == TraceEventKind::Decode) {
        const uint32_t n = e.rows * static_cast<uint32_t>(model.geometry.layers[e.index].n_used);
        for (uint32_t i = 0; i < n; ++i) ++uses[base[e.index] + chunk.ids[e.at + i]];
      } else if (e.kind == TraceEventKind::Prompt) {
        for (int i = 0; i < model.geometry.layers[e.index].n_expert; ++i) {
          uses[base[e.index] + static_cast<size_t>(i)] += chunk.uses[e.at + static_cast<size_t>(i)];
        }
      }
    }
  });
  const auto sum = static_cast<double>(std::accumulate(uses.begin(), uses.end(), uint64_t{0}));
  std::vector<float> shares;
  for (const uint64_t n : uses) {
    shares.push_back(sum > 0 ? static_cast<float>(static_cast<double>(n) / sum) : 0.0f);
  }
  return shares;
}

std::vector<uint64_t> sweep_slots(const TraceModel& model, int n) {
  const auto low = static_cast<double>(experts::hard_floor(model.shape, model.depth));
  const auto high = static_cast<double>(model.shape.n_experts());
  std::vector<uint64_t> sizes;
  for (int i = 0; i < n; ++i) {
    const double share = n == 1 ? 1 : static_cast<double>(i) / (n - 1);
    const auto slots = static_cast<uint64_t>(std::llround(low * std::pow(high / low, share)));
    if (sizes.empty() || slots > sizes.back()) sizes.push_back(slots);
  }
  return sizes;
}

std::optional<size_t> find_knee(std::span<const double> x, std::span<const double> y) {
  if (x.size() < 3 || x.back() <= x.front() || y.back() <= y.front()) return std::nullopt;
  std::optional<size_t> best;
  double most = 0;
  for (size_t i = 1; i + 1 < x.size(); ++i) {
    const double right = (x[i] - x.front()) / (x.back() - x.front());
    const double up = (y[i] - y.front()) / (y.back() - y.front());
    if (up - right > most) {
      most = up - right;
      best = i;
    }
  }
  return best;
}

}  // namespace penstock::measure
