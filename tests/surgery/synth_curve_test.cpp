// The reuse of experts on a synthetic model's real forward pass, beside the published curves
// (spec: within 3 points). Hidden and expert widths are reduced; experts, experts used, layers of
// each kind and the router's construction are as in the full preset.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "engine/runtime.h"
#include "engine/session.h"
#include "gguf/raw_gguf.h"
#include "surgery/block_fill.h"
#include "surgery/reuse.h"
#include "surgery/synth.h"

namespace penstock::surgery {
namespace {

constexpr double kTolerance = 0.03;

struct Measured {
  ReuseMeter meter;
  float largest_logit = 0;
};

// Random tokens: 64 as a context, then 300 that count, as in the published replay. The last layer
// is left out, since a prompt needs only its last token there.
Measured measure(const std::string& preset, int64_t n_layer) {
  const gguf::test::TempDir dir;
  SynthOptions options;
  options.preset = preset;
  options.layers = n_layer;
  options.scale = 0.1;
  options.ple_rows = 20000;
  ThreadPool pool(2);
  write_synthetic(options, dir.file("m.gguf"), 0, pool, {});

  engine::RuntimeOptions runtime_options;
  runtime_options.model_path = dir.file("m.gguf");
  runtime_options.threads = 2;
  runtime_options.n_ctx = 512;
  runtime_options.prompt_chunk = 64;
  const auto runtime = engine::Runtime::open(runtime_options, [](auto, auto, auto) {});
  const experts::Geometry& geometry = runtime->model().experts();
  const int last = static_cast<int>(geometry.layers.size()) - 1;
  Measured out{ReuseMeter(last, geometry.layers.front().n_expert)};
  bool counting = false;
  struct Observer final : experts::RouteObserver {
    std::function<void(int, std::span<const int32_t>)> see;
    void selected(int layer, int, experts::Phase, std::span<const int32_t> ids,
                  std::span<const float>) override {
      see(layer, ids);
    }
  } observer;
  observer.see = [&](int layer, std::span<const int32_t> ids) {
    if (counting && layer < last) out.meter.add(layer, ids);
  };
  runtime->stream().observe(&observer);
  Random random(5);
  const auto draw = [&](int n) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < n; ++i) {
      tokens.push_back(static_cast<int32_t>(
          256 + random.next() % static_cast<uint64_t>(runtime->info().n_vocab - 512)));
    }
    return tokens;
  };
  engine::Session session(*runtime);
  session.prefill(draw(64));
  counting = true;
  session.prefill(draw(300));
  for (const float logit : session.logits()) {
    EXPECT_TRUE(std::isfinite(logit));
    out.largest_logit = std::max(out.largest_logit, std::fabs(logit));
  }
  return out;
}

const PublishedCurve& curve_of(std::string_view model) {
  for (const PublishedCurve& curve : published_curves()) {
    if (curve.model == model) return curve;
  }
  ADD_FAILURE() << model;
  return published_curves().front();
}

void compare(const ReuseMeter& meter, const PublishedCurve& curve) {
  for (const PublishedPoint& point : curve.points) {
    EXPECT_NEAR(meter.hit_rate(point.slots), point.hit_rate, kTolerance) << point.slots << " slots";
  }
  if (curve.repeat_rate > 0) {
    EXPECT_NEAR(meter.repeat_rate(), curve.repeat_rate, kTolerance);
  }
}

TEST(SynthCurve, FlashNext) {
  const Measured measured = measure("qwen3.8-flash-next", 4);
  EXPECT_EQ(measured.meter.uses(), 3u * 300 * 10);
  compare(measured.meter, curve_of("Qwen3.8-Flash-Next"));
  // Sane logits: neither flat nor a single winner.
  EXPECT_GT(measured.largest_logit, 4.0f);
  EXPECT_LT(measured.largest_logit, 40.0f);
}

TEST(SynthCurve, Qwen3_30b) {
  const Measured measured = measure("qwen3-30b-a3b", 5);
  EXPECT_EQ(measured.meter.uses(), 4u * 300 * 8);
  compare(measured.meter, curve_of("Qwen3-30B-A3B"));
  EXPECT_GT(measured.largest_logit, 4.0f);
  EXPECT_LT(measured.largest_logit, 40.0f);
}

// Without the context part the same router reuses far less: the test above can fail.
TEST(SynthCurve, TheMeterTellsRoutersApart) {
  ReuseMeter meter(1, 512);
  Random random(1);
  for (int t = 0; t < 300; ++t) {
    std::vector<int32_t> ids;
    while (ids.size() < 10) {
      const auto id = static_cast<int32_t>(random.next() % 512);
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    meter.add(0, ids);
  }
  EXPECT_LT(meter.hit_rate(93), 0.25);
  EXPECT_LT(meter.repeat_rate(), 0.05);
}

}  // namespace
}  // namespace penstock::surgery
