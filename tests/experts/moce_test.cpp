// Cache-aware routing against a reference written from spec/streaming.md §F.1 alone: the grid of
// §F.7, both levels, the concurrency test and the router that must fail it.
#include "experts/moce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "experts/expert_files.h"
#include "experts/faulty_backend.h"
#include "experts/residency.h"
#include "experts/route.h"

namespace penstock::experts::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kStride = 512;
constexpr size_t kWords = kStride / 64;
using Bits = std::array<uint64_t, kWords>;

struct Window {
  int n_expert;
  RouteRule rule;
  float bonus;
  int protect;
  std::vector<float> row;  // kStride values, rubbish from n_expert on
  Bits resident{};
  std::span<const float> logits() const { return {row.data(), static_cast<size_t>(n_expert)}; }
};

bool bit(const Bits& bits, int e) {
  return (bits[static_cast<size_t>(e) / 64] >> (e % 64) & 1) != 0;
}

struct Routed {
  std::vector<float> p = std::vector<float>(kStride);
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(const Window& w, const Bits& resident) {
  Routed r;
  r.ids.resize(static_cast<size_t>(w.rule.n_used));
  r.weights.resize(r.ids.size());
  std::vector<float> key(kStride);
  std::vector<int32_t> order(kStride);
  const CacheRule cache{
      .mode = Moce::Bonus, .protect = w.protect, .bonus = w.bonus, .factor = std::exp(w.bonus)};
  // Exactly as many rows as experts: what lies behind them is not even handed over.
  EXPECT_TRUE(route_row_cached(w.logits(), resident, w.rule, cache, r.p.data(), key.data(),
                               order.data(), r.ids.data(), r.weights.data()));
  return r;
}

// F.1 steps 2 to 4 with keys of any precision. `value` decides, then the logit, then the index.
template <typename T>
std::vector<int32_t> pick(const Window& w, const std::vector<T>& p, const std::vector<T>& key) {
  std::vector<int32_t> left(static_cast<size_t>(w.n_expert));
  std::iota(left.begin(), left.end(), 0);
  std::vector<int32_t> picked;
  while (picked.size() < static_cast<size_t>(w.rule.n_used)) {
    const std::vector<T>& value = static_cast<int>(picked.size()) < w.protect ? p : key;
    auto best = left.begin();
    for (auto it = left.begin(); it != left.end(); ++it) {
      const auto a = static_cast<size_t>(*it), b = static_cast<size_t>(*best);
      if (value[a] > value[b] || (value[a] == value[b] && w.row[a] > w.row[b])) best = it;
    }
    picked.push_back(*best);
    left.erase(best);
  }
  return picked;
}

std::vector<int32_t> reference_from_p(const Window& w, const Bits& resident,
                                      const std::vector<float>& p) {
  const float factor = std::exp(w.bonus);
  std::vector<float> key(p);
  for (int e = 0; e < w.n_expert; ++e) {
    if (bit(resident, e)) key[static_cast<size_t>(e)] = p[static_cast<size_t>(e)] * factor;
  }
  return pick(w, p, key);
}

struct Tally {
  uint64_t windows = 0, wrong = 0, wrong_from_logits = 0, near_ties = 0, wrong_weights = 0;
};

void check_from_logits(const Window& w, const Bits& resident, const Routed& got, Tally* tally) {
  const auto n = static_cast<size_t>(w.n_expert);
  std::vector<double> p(n);
  double most = -HUGE_VAL;
  for (size_t e = 0; e < n; ++e) most = std::max(most, static_cast<double>(w.row[e]));
  double sum = 0;
  for (size_t e = 0; e < n; ++e) sum += p[e] = std::exp(static_cast<double>(w.row[e]) - most);
  for (double& x : p) x /= sum;
  std::vector<double> key(p);
  for (int e = 0; e < w.n_expert; ++e) {
    if (bit(resident, e)) key[static_cast<size_t>(e)] *= std::exp(static_cast<double>(w.bonus));
  }
  const std::vector<int32_t> want = pick(w, p, key);
  double selected = 0;
  for (const int32_t e : got.ids) selected += p[static_cast<size_t>(e)];
  double total = 0;
  // Without renormalisation the rounding of the sum over all experts stays in the weights.
  const double tolerance =
      w.rule.renormalise ? 1e-6 : static_cast<double>(FLT_EPSILON) * w.n_expert / 2;
  for (size_t i = 0; i < want.size(); ++i) {
    const std::vector<double>& value = static_cast<int>(i) < w.protect ? p : key;
    const auto g = static_cast<size_t>(got.ids[i]), r = static_cast<size_t>(want[i]);
    if (g != r) {
      // Where p leaves the range of fp32 the logit decides, which the first level has checked.
      const bool near = std::abs(value[g] - value[r]) <= 1e-6 * std::max(value[g], value[r]) ||
                        std::max(p[g], p[r]) < static_cast<double>(FLT_MIN);
      ++(near ? tally->near_ties : tally->wrong_from_logits);
    }
    const double weight = w.rule.renormalise ? p[g] / selected : p[g];
    if (std::abs(static_cast<double>(got.weights[i]) - weight) > tolerance) ++tally->wrong_weights;
    total += static_cast<double>(got.weights[i]);
  }
  if (w.rule.renormalise && std::abs(total - 1) > 1e-6) ++tally->wrong_weights;
}

enum class Logits {
  Gauss1,
  Gauss3,
  Gauss10,
  Equal,
  Duplicates,
  MinusInfinity,
  Dominant,
  Underflow
};
constexpr int kLogitKinds = 8;

class Windows {
 public:
  explicit Windows(uint32_t seed) : random_(seed), captured_(capture()) {}

  Window make(int n_expert, float bonus, int number) {
    constexpr std::array kUsed = {2, 8, 10};
    const int k = std::min(kUsed[static_cast<size_t>(number % 3)], n_expert);
    const std::array protect = {0, 1, 3, k};
    Window w{n_expert, {k, number % 5 != 0, 1.0f}, bonus, protect[number / 3 % 4], {}, {}};
    fill(&w, static_cast<Logits>(number % kLogitKinds));
    constexpr std::array kDensities = {0.0, 0.05, 0.22, 0.5, 1.0};
    const auto density = static_cast<size_t>(number / 12 % 6);
    if (density == kDensities.size()) {
      w.resident = captured_;
    } else {
      w.resident = random_bits(kDensities[density]);
    }
    return w;
  }

  Bits random_bits(double density) {
    Bits bits{};
    std::bernoulli_distribution in(density);
    for (size_t e = 0; e < kStride; ++e) bits[e / 64] |= uint64_t{in(random_)} << (e % 64);
    return bits;
  }

 private:
  void fill(Window* w, Logits kind) {
    const float spread = kind == Logits::Gauss1 ? 1.0f : kind == Logits::Gauss10 ? 10.0f : 3.0f;
    std::normal_distribution<float> normal(0, spread);
    w->row.assign(kStride, 0.0f);
    for (float& z : w->row) z = kind == Logits::Equal ? 0.75f : normal(random_);
    const auto any = [&] {
      return static_cast<size_t>(random_()) % static_cast<size_t>(w->n_expert);
    };
    if (kind == Logits::Duplicates) {
      for (float& z : w->row) z = std::round(z);
      for (int i = 0; i < 4; ++i) w->row[any()] = 12.0f;
    }
    if (kind == Logits::MinusInfinity) {
      for (int i = 0; i < w->n_expert / 3; ++i) w->row[any()] = -kInf;
      w->row[any()] = 1.0f;
    }
    if (kind == Logits::Dominant) w->row[any()] = 40.0f;
    if (kind == Logits::Underflow) w->row[any()] = 300.0f;
    for (size_t e = static_cast<size_t>(w->n_expert); e < kStride; ++e) {
      w->row[e] = e % 2 == 0 ? kNan : kInf;
    }
  }

  // The map of a layer after 300 tokens of skewed use, as the program's own residency leaves it.
  static Bits capture() {
    Geometry geometry;
    LayerGeometry layer;
    layer.n_expert = static_cast<int>(kStride);
    layer.n_used = 10;
    layer.gate.bytes = layer.up.bytes = layer.down.bytes = 4096;
    geometry.layers.push_back(layer);
    ArenaShape shape = arena_shape(geometry, 512);
    shape.classes[0].slots = 112;
    shape.transit = 2;
    Residency residency(geometry, shape, Evict::Lfu);
    std::mt19937 random(4);
    std::exponential_distribution<double> skew(0.02);
    for (uint64_t use = 1; use <= 3000; ++use) {
      const int e = std::min(511, static_cast<int>(skew(random)));
      int32_t id = residency.find(0, e);
      if (id == kNoSlot) {
        id = residency.acquire(0, e, ReadReason::Demand, true);
        residency.complete(id, true);
      }
      residency.pin(id);
      residency.count_use(0, e);
      residency.unpin(id, use);
      if (use % 320 == 0) residency.halve_frequencies();
    }
    Bits bits{};
    std::copy_n(residency.ready_bits(0).begin(), kWords, bits.begin());
    return bits;
  }

  std::mt19937 random_;
  Bits captured_;
};

void run_grid(int share) {
  constexpr std::array kExperts = {8, 128, 255, 256, 288, 512};
  constexpr std::array kBonuses = {0.0f, 0.09f, 0.85f, 3.0f};
  Windows windows(41);
  Tally sum;
  for (const int n : kExperts) {
    for (const float b : kBonuses) {
      const bool main = (n == 256 || n == 512) && (b == 0.0f || b == 0.85f);
      const int count = (main ? 10000 : 1000) / share;
      Tally t;
      for (int i = 0; i < count; ++i) {
        const Window w = windows.make(n, b, i);
        const Routed got = route(w, w.resident);
        ++t.windows;
        if (got.ids != reference_from_p(w, w.resident, got.p)) ++t.wrong;
        check_from_logits(w, w.resident, got, &t);
        if (b == 0.0f) {
          // Exactly ordinary top-K, bit for bit.
          Routed plain;
          plain.ids.resize(got.ids.size());
          plain.weights.resize(got.ids.size());
          EXPECT_TRUE(route_row(w.logits(), w.rule, plain.p.data(), plain.ids.data(),
                                plain.weights.data()));
          EXPECT_EQ(plain.ids, got.ids);
          EXPECT_EQ(plain.weights, got.weights);
        }
      }
      std::printf(
          "parity: E=%d mask=E..511 b=%.2f K={2,8,10} J={0,1,3,K}: %d windows, %d mismatches "
          "(from p), %d (from logits), %d near ties, %d wrong weights\n",
          n, static_cast<double>(b), static_cast<int>(t.windows), static_cast<int>(t.wrong),
          static_cast<int>(t.wrong_from_logits), static_cast<int>(t.near_ties),
          static_cast<int>(t.wrong_weights));
      sum.wrong += t.wrong;
      sum.wrong_from_logits += t.wrong_from_logits;
      sum.wrong_weights += t.wrong_weights;
    }
  }
  EXPECT_EQ(sum.wrong, 0u);
  EXPECT_EQ(sum.wrong_from_logits, 0u);
  EXPECT_EQ(sum.wrong_weights, 0u);
}

// Seconds; a sanitizer build takes a twentieth of the windows.
TEST(MoceParity, TheWholeGrid) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  run_grid(20);
#else
  run_grid(1);
#endif
}

// A live map that another thread changes at random all the time.
class LiveMap {
 public:
  LiveMap() : thread_([this] { flip(); }) {}
  ~LiveMap() {
    stop_ = true;
    thread_.join();
  }
  Bits copy() const {
    Bits bits;
    for (size_t i = 0; i < kWords; ++i) bits[i] = words_[i].load(std::memory_order_relaxed);
    return bits;
  }
  void await_change() const {
    const uint64_t now = changes_.load();
    while (changes_.load() < now + 2) std::this_thread::yield();
  }

 private:
  void flip() {
    std::mt19937_64 random(8);
    while (!stop_) {
      for (auto& word : words_) word.store(random() & random(), std::memory_order_relaxed);
      ++changes_;
      std::this_thread::yield();
    }
  }
  std::array<std::atomic<uint64_t>, kWords> words_{};
  std::atomic<uint64_t> changes_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// How often a router, given a snapshot of the map while the map changes, selects other experts than
// the reference does on that snapshot.
using Router = std::function<Routed(const Window&, const Bits& snapshot, const LiveMap&)>;
int disagreements(const Router& router, int n_windows) {
  Windows windows(17);
  const LiveMap live;
  int wrong = 0;
  for (int i = 0; i < n_windows; ++i) {
    const Window w = windows.make(i % 2 == 0 ? 256 : 512, 0.85f, i);
    const Bits snapshot = live.copy();
    live.await_change();
    const Routed got = router(w, snapshot, live);
    if (got.ids != reference_from_p(w, snapshot, got.p)) ++wrong;
  }
  return wrong;
}

TEST(MoceConcurrency, TheRouterGoesByTheSnapshotAlone) {
  EXPECT_EQ(disagreements([](const Window& w, const Bits& snapshot,
                             const LiveMap&) { return route(w, snapshot); },
                          1000),
            0);
}

// The reference system's race: residency looked at once more after the snapshot. The test above
// must be able to see it.
TEST(MoceConcurrency, ARouterThatReadsTheLiveMapAgainIsFoundOut) {
  EXPECT_GT(disagreements([](const Window& w, const Bits&,
                             const LiveMap& live) { return route(w, live.copy()); },
                          1000),
            100);
}

// ------------------------------------------------------------------------------- the variants

struct Small {
  std::vector<float> logits;
  std::vector<int> resident;
  RouteRule rule{4, true, 1.0f};
};

std::vector<int32_t> select(const Small& s, const CacheRule& cache) {
  Bits bits{};
  for (const int e : s.resident) bits[0] |= uint64_t{1} << e;
  std::vector<float> p(s.logits.size()), key(s.logits.size()), weights(4);
  std::vector<int32_t> order(s.logits.size()), ids(4);
  EXPECT_TRUE(route_row_cached(s.logits, bits, s.rule, cache, p.data(), key.data(), order.data(),
                               ids.data(), weights.data()));
  // Whatever was selected: its own probabilities, renormalised.
  float sum = 0;
  for (const int32_t e : ids) sum += p[static_cast<size_t>(e)];
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(weights[i], p[static_cast<size_t>(ids[i])] / sum);
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), 4u);
  return ids;
}

const Small kSmall{{8, 7, 6, 5, 4, 3, 2, 1}, {4, 6, 7}};
using Ids = std::vector<int32_t>;

TEST(MoceVariants, PriorAddsAShareOfTheMeanRange) {
  EXPECT_EQ(select(kSmall, {.mode = Moce::Prior, .protect = 2, .bonus = 0.5f}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(select(kSmall, {.mode = Moce::Prior, .protect = 2, .bonus = 1.5f}), (Ids{0, 1, 2, 4}));
  EXPECT_EQ(select(kSmall, {.mode = Moce::Prior, .protect = 2, .bonus = 50}), (Ids{0, 1, 4, 6}));
  EXPECT_EQ(select(kSmall, {.mode = Moce::Prior, .protect = 0, .bonus = 50}), (Ids{4, 6, 7, 0}));
}

TEST(MoceVariants, MaxRankPrefersResidentOnesInsideTheWindow) {
  EXPECT_EQ(select(kSmall, {.mode = Moce::MaxRank, .protect = 2, .window = 4}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(select(kSmall, {.mode = Moce::MaxRank, .protect = 2, .window = 5}), (Ids{0, 1, 4, 2}));
  EXPECT_EQ(select(kSmall, {.mode = Moce::MaxRank, .protect = 2, .window = 8}), (Ids{0, 1, 4, 6}));
  EXPECT_EQ(select(kSmall, {.mode = Moce::MaxRank, .protect = 0, .window = 99}), (Ids{4, 6, 7, 0}));
}

TEST(MoceVariants, CumProbMakesTheWindowAsWideAsTheMass) {
  // p of these logits: 0.63, 0.23, 0.086, 0.031, 0.012, 0.0043, ...
  EXPECT_EQ(select(kSmall, {.mode = Moce::CumProb, .protect = 1, .mass = 0.5f}),
            (Ids{0, 1, 2, 3}));  // at least n_used
  EXPECT_EQ(select(kSmall, {.mode = Moce::CumProb, .protect = 1, .mass = 0.985f}),
            (Ids{0, 4, 1, 2}));
  EXPECT_EQ(select(kSmall, {.mode = Moce::CumProb, .protect = 1, .mass = 1.0f}), (Ids{0, 4, 6, 7}));
}

TEST(MoceRouter, MetersAndTheMeanRange) {
  Geometry geometry;
  geometry.layers.resize(2);
  for (LayerGeometry& layer : geometry.layers) layer.n_expert = 8;
  MoceOptions options;
  options.mode = Moce::Prior;
  options.lambda = 0.25f;
  options.protect = 1;
  CacheRouter router(options, geometry);
  std::vector<float> p(8), weights(2);
  Ids ids(2);
  const RouteRule rule{2, true, 1.0f};
  const uint64_t resident[] = {uint64_t{1} << 2};
  // Range 4: resident experts gain 1. Expert 2 would need 2 to replace expert 1.
  const std::vector<float> first = {4, 3, 1, 0, 0, 0, 0, 0};
  ASSERT_TRUE(router.route(0, first, resident, rule, p.data(), ids.data(), weights.data()));
  EXPECT_EQ(ids, (Ids{0, 1}));
  EXPECT_FLOAT_EQ(router.bonus(0), 1.0f);
  EXPECT_EQ(router.bonus(1), 0.0f);
  // Range 12, mean 8: they gain 2.
  const std::vector<float> second = {12, 3, 1.5f, 0, 0, 0, 0, 0};
  ASSERT_TRUE(router.route(0, second, resident, rule, p.data(), ids.data(), weights.data()));
  EXPECT_EQ(ids, (Ids{0, 2}));
  EXPECT_FLOAT_EQ(router.bonus(0), 2.0f);
  const MoceMeasures m = router.total();
  EXPECT_EQ(m.rows, 2u);
  EXPECT_EQ(m.slots, 4u);
  EXPECT_EQ(m.replaced, 1u);
  const double best = 1 + std::exp(-9.0), got = 1 + std::exp(-10.5);
  EXPECT_NEAR(m.mass_lost, 1 - got / best, 1e-7);
  EXPECT_NEAR(m.route_kl, std::log(best / got), 1e-7);
}

TEST(MoceRouter, TheGuardHalvesWhatCostsTooMuch) {
  Geometry geometry;
  geometry.layers.resize(1);
  geometry.layers[0].n_expert = 4;
  MoceOptions options;
  options.mode = Moce::Bonus;
  options.bonus = 3;
  options.protect = 0;
  options.guard = 0.05f;
  CacheRouter router(options, geometry);
  std::vector<float> p(4), weights(1);
  Ids ids(1);
  const uint64_t resident[] = {uint64_t{1} << 3};
  const std::vector<float> logits = {2, 0, 0, 0};  // the resident one loses 86 % of the mass
  for (int token = 0; token < 255; ++token) {
    router.route(0, logits, resident, {1, true, 1.0f}, p.data(), ids.data(), weights.data());
    router.end_step(1);
  }
  EXPECT_EQ(ids[0], 3);
  EXPECT_EQ(router.guard_events(), 0u);
  router.end_step(1);
  EXPECT_EQ(router.guard_events(), 1u);
  EXPECT_EQ(router.options().bonus, 1.5f);
  router.route(0, logits, resident, {1, true, 1.0f}, p.data(), ids.data(), weights.data());
  EXPECT_EQ(ids[0], 0);
}

TEST(MoceOptionsTest, ValuesOutOfRangeAreRefused) {
  const auto refused = [](auto set) {
    MoceOptions options;
    set(options);
    EXPECT_THROW(check_moce(options), Error);
  };
  refused([](MoceOptions& o) { o.bonus = -1; });
  refused([](MoceOptions& o) { o.bonus = kNan; });
  refused([](MoceOptions& o) { o.lambda = 1.5f; });
  refused([](MoceOptions& o) { o.protect = -1; });
  refused([](MoceOptions& o) { o.window = 0; });
  refused([](MoceOptions& o) { o.mass = 0; });
  refused([](MoceOptions& o) { o.guard = 1; });
  check_moce({});
}

// ------------------------------------------------------------------------------- in the stream

struct Ran {
  std::vector<int32_t> ids;
  Counters counters;
  MoceMeasures moce;
};

// 60 tokens with random logits through four layers, on a third of the slots, the disk being late
// at random.
Ran run_stream(const Geometry& geometry, const StreamOptions& base, uint32_t disk_seed,
               uint64_t slots = 24, bool trunk = true) {
  StreamOptions options = base;
  options.depth = 2;
  options.decorate = [disk_seed](std::unique_ptr<IoBackend> inner) {
    return std::make_unique<FaultyBackend>(std::move(inner),
                                           Faults{.seed = disk_seed, .hold = 0.7, .reorder = true});
  };
  const auto files = open_expert_files(geometry, options.io);
  ArenaShape shape = arena_shape(geometry, files->alignment());
  share_slots(shape, slots, options.depth, static_cast<uint64_t>(options.transit_slots()));
  const auto stream = make_stream(geometry, files, shape, options);
  std::mt19937 random(23);
  std::normal_distribution<float> normal(0, 1);
  Ran run;
  const auto n_layers = static_cast<int>(geometry.layers.size());
  for (int token = 0; token < 60; ++token) {
    std::vector<std::vector<float>> logits;
    for (const LayerGeometry& layer : geometry.layers) {
      auto& row = logits.emplace_back(static_cast<size_t>(layer.n_expert));
      for (float& z : row) z = normal(random);
    }
    for (int l = 0; l < n_layers; ++l) {
      const RouteRule rule{geometry.layers[static_cast<size_t>(l)].n_used, true, 1.0f, trunk};
      const Routing routing =
          stream->begin(l, logits[static_cast<size_t>(l)].data(), 1, rule, Phase::Decode);
      run.ids.insert(run.ids.end(), routing.ids.begin(), routing.ids.end());
      for (int d = 1; d <= stream->look_ahead() && l + d < n_layers; ++d) {
        stream->predict(l + d, logits[static_cast<size_t>(l + d)].data(), 1);
      }
      while (!stream->next().empty()) {
      }
      stream->end();
    }
    stream->end_step(1);
  }
  run.counters = stream->counters();
  if (stream->moce() != nullptr) run.moce = stream->moce()->total();
  return run;
}

const std::vector<LayerSpec> kLayers(4, LayerSpec{.n_expert = 16});

TEST(MoceStream, EpochResidencyMakesTheOutputIndependentOfTheDisk) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, kLayers);
  StreamOptions options;
  options.moce.mode = Moce::Bonus;
  options.moce.residency = MoceResidency::Epoch;
  options.read_ahead = ReadAhead::Auto;  // becomes off
  const Ran a = run_stream(geometry, options, 1);
  EXPECT_GT(a.moce.replaced, 0u);
  for (const uint32_t seed : {2u, 3u}) {
    const Ran b = run_stream(geometry, options, seed);
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(a.counters.steady.miss_issued, b.counters.steady.miss_issued);
    EXPECT_EQ(a.moce.replaced, b.moce.replaced);
  }
  options.io = IoMode::Pread;
  EXPECT_EQ(run_stream(geometry, options, 4).ids, a.ids);
}

TEST(MoceStream, EpochRefusesWhatDependsOnTiming) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, kLayers);
  StreamOptions options;
  options.moce.mode = Moce::Bonus;
  options.moce.residency = MoceResidency::Epoch;
  options.read_ahead = ReadAhead::On;
  EXPECT_THROW(run_stream(geometry, options, 1), Error);
  options.read_ahead = ReadAhead::Off;
  options.fill = Fill::Lazy;
  EXPECT_THROW(run_stream(geometry, options, 1), Error);
}

TEST(MoceStream, FewerMissesThanExactRouting) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, kLayers);
  const Ran exact = run_stream(geometry, {}, 1);
  for (const Moce mode : {Moce::Bonus, Moce::Prior, Moce::MaxRank, Moce::CumProb}) {
    StreamOptions options;
    options.moce.mode = mode;
    options.moce.bonus = 1;
    options.moce.lambda = 0.3f;
    options.moce.window = 8;
    options.moce.mass = 0.8f;
    options.moce.protect = 1;
    const Ran run = run_stream(geometry, options, 1);
    EXPECT_LT(run.counters.steady.miss_issued, exact.counters.steady.miss_issued)
        << moce_name(mode);
    EXPECT_GT(run.moce.replaced, 0u);
    EXPECT_EQ(run.moce.rows, 240u);
    // With read-ahead too, whose candidates are ranked by the same rule.
    options.read_ahead = ReadAhead::On;
    const Ran ahead = run_stream(geometry, options, 1);
    EXPECT_EQ(ahead.counters.uses_expected, 960u);
    EXPECT_GT(ahead.counters.ahead.used(), 0u);
  }
}

TEST(MoceStream, InertWithoutStreamingWithoutABonusAndInDraftBlocks) {
  const Directory directory;
  const Geometry geometry = write_experts(directory, kLayers);
  const Ran exact = run_stream(geometry, {}, 1);
  StreamOptions options;
  options.moce.mode = Moce::Bonus;
  EXPECT_NE(run_stream(geometry, options, 1).ids, exact.ids);
  EXPECT_EQ(run_stream(geometry, options, 1, 64).ids, exact.ids);  // every expert has a slot
  EXPECT_EQ(run_stream(geometry, options, 1, 24, false).ids, exact.ids);
  options.moce.bonus = 0;
  EXPECT_EQ(run_stream(geometry, options, 1).ids, exact.ids);
  options.moce.bonus = 3;
  options.moce.protect = 4;  // all ranks
  EXPECT_EQ(run_stream(geometry, options, 1).ids, exact.ids);
}

}  // namespace
}  // namespace penstock::experts::test
