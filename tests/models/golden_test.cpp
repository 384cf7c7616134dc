// The models against values that independent f64 programs computed from the same closed-form
// weights (spec/qwen4exp.md §10.3, spec/moe-architectures.md §11), in Precision::Exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "models/harness.h"

namespace penstock::testing {
namespace {

struct Expected {
  const char* what;
  int layer;
  int64_t position;
  std::vector<double> values;  // the first ones
};

struct ExpectedLogits {
  int position;
  std::vector<double> values;
  int argmax;
  double maximum;
};

double& worst() {
  static double value = 0.0;
  return value;
}

void expect_close(const std::string& name, const float* got, const std::vector<double>& expected,
                  double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double deviation = std::fabs(static_cast<double>(got[i]) - expected[i]);
    worst() = std::max(worst(), deviation);
    EXPECT_LE(deviation, tolerance)
        << name << " [" << i << "]: " << got[i] << " instead of " << expected[i];
  }
}

void expect_logits(const float* got, size_t n, const ExpectedLogits& e, double tolerance) {
  const std::string name = "logits of position " + std::to_string(e.position);
  expect_close(name, got, e.values, tolerance);
  const float* best = std::max_element(got, got + n);
  EXPECT_EQ(best - got, e.argmax) << name;
  expect_close(name + " maximum", best, {e.maximum}, tolerance);
}

class Golden {
 public:
  Golden(const std::string& architecture, const HarnessOptions& options, double tolerance)
      : harness(architecture, options), tolerance_(tolerance) {
    worst() = 0.0;
    harness.model().set_tap(
        [this](std::string_view what, int layer, int64_t position, std::span<const float> values) {
          seen_[{std::string(what), layer, position}] = {values.begin(), values.end()};
        });
  }
  ~Golden() {
    ::testing::Test::RecordProperty("max_deviation", std::to_string(worst()));
    std::printf("[          ] largest deviation %.3g\n", worst());
  }

  void run(int n) {
    hidden.resize(static_cast<size_t>(n * harness.info().n_hidden));
    logits = harness.forward(tiny_tokens(n), experts::Phase::Prompt, hidden.data());
  }
  void check(const std::vector<Expected>& list) {
    for (const Expected& e : list) {
      const auto it = seen_.find({e.what, e.layer, e.position});
      ASSERT_NE(it, seen_.end()) << e.what << " " << e.layer << " " << e.position;
      expect_close(std::string(e.what) + " of layer " + std::to_string(e.layer) + ", position " +
                       std::to_string(e.position),
                   it->second.data(), e.values, tolerance_);
    }
  }
  void check_residual_rms(int64_t position, const std::vector<double>& by_layer) {
    for (size_t l = 0; l < by_layer.size(); ++l) {
      const std::vector<float>& r = seen_.at({"residual", static_cast<int>(l), position});
      double sum = 0.0;
      for (const float v : r) sum += static_cast<double>(v) * static_cast<double>(v);
      const auto rms = static_cast<float>(std::sqrt(sum / static_cast<double>(r.size())));
      expect_close("rms after layer " + std::to_string(l), &rms, {by_layer[l]}, tolerance_);
    }
  }
  void check_logits(const std::vector<ExpectedLogits>& list) {
    for (const ExpectedLogits& e : list) {
      expect_logits(logits.data() + static_cast<size_t>(e.position) * harness.vocab(),
                    harness.vocab(), e, tolerance_);
    }
  }
  // Pairs (t_{p+1}, hidden of p) for p in [first, last]; the last one's logits.
  void draft(int first, int last, const ExpectedLogits& e) {
    std::vector<int32_t> tokens = tiny_tokens(last + 2);
    tokens.erase(tokens.begin(), tokens.begin() + first + 1);
    draft_tokens(tokens, hidden.data() + first * harness.info().n_hidden, e);
  }
  void draft_chained(int32_t token, const ExpectedLogits& e) {
    const std::vector<float> from = draft_hidden;
    draft_tokens({token}, from.data(), e);
  }

  Harness harness;
  std::vector<float> logits, hidden, draft_hidden;

 private:
  void draft_tokens(const std::vector<int32_t>& tokens, const float* from,
                    const ExpectedLogits& e) {
    std::vector<float> out(harness.vocab());
    draft_hidden.resize(static_cast<size_t>(harness.info().n_hidden));
    harness.model().draft(harness.state(), harness.stream(), tokens, from, out.data(),
                          draft_hidden.data());
    expect_logits(out.data(), out.size(), e, tolerance_);
  }

  std::map<std::tuple<std::string, int, int64_t>, std::vector<float>> seen_;
  double tolerance_;
};

HarnessOptions with(TinyOptions tiny, bool draft = false) {
  HarnessOptions options;
  options.tiny = std::move(tiny);
  options.open.draft = draft;
  return options;
}

TEST(TinyModels, ClosedForm) {
  const auto row = [](const char* name, uint64_t start, uint64_t ne0,
                      const std::vector<double>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(tiny_value(name, start + i, ne0), expected[i], 5e-8) << name;
    }
  };
  row("token_embd.weight", 0, 64, {0.19982529, 0.02065468, 0.35309601});
  row("blk.0.attn_qkv.weight", 0, 64, {-0.07282972, 0.02727795, -0.09733033});
  row("blk.0.ssm_a", 0, 6, {-3.4184761, -2.65231705, -3.05429077});
  row("blk.0.hc_attn_norm.weight", 0, 256, {1.1080327, 0.80681276, 0.9640255});
  row("blk.0.ffn_down_exps.weight", 2048, 32, {0.05820131, 0.1484375});
  row("output_norm.weight", 0, 64, {1.06197643, 1.1409235, 0.86688757});
}

const std::vector<ExpectedLogits> kQwen4expLogits = {
    {0, {-0.203074, 0.179136, 0.159719, -0.620357, -0.039758, -0.102847}, 61, 0.879345},
    {10, {-0.110059, -0.386751, 0.258440, -0.313427, 0.034685, 0.367547}, 77, 0.677828},
    {11, {0.092157, 0.193532, -0.172290, 0.148807, 0.107674, -0.123547}, 111, 0.611511},
    {23, {-0.184396, 0.055268, 0.177491, 0.068080, -0.251916, 0.080173}, 90, 0.855365},
    {63, {0.003590, 0.412684, -0.145280, -0.258223, 0.560018, 0.086713}, 4, 0.560018},
};

TEST(Golden, Qwen4exp) {
  Golden g("qwen4exp", {}, 1e-5);
  g.run(64);
  g.check({
      {"mixer_in", 0, 0, {-0.806803, -0.282235, 0.017900, -0.259598}},
      {"mixer_inject", 0, 0, {1.081482, 1.099440, 0.924490, 0.930609}},
      {"delta", 0, 0, {0.202351, 0.213329, -0.106153, 0.516158}},
      {"moe_in", 0, 0, {-0.505227, -0.102010, -0.072392, 0.156169}},
      {"moe_inject", 0, 0, {1.055294, 0.924944, 0.991167, 0.865702}},
      {"moe", 0, 0, {-0.011924, -0.027238, -0.015722, -0.001454}},
      {"experts", 0, 0, {4, 6, 1}},
      {"ngram", 1, 0, {-0.017216, 0.471009, -0.042902, -0.076185}},
      {"ngram", 1, 11, {-0.377674, -0.327141, 0.638320, 0.619334}},
      {"delta", 0, 11, {-0.135026, -0.220119, 0.243871, -0.114967}},
      {"attention", 3, 11, {-0.075539, 0.120416, -0.017883, 0.036386}},
      {"moe", 3, 11, {-0.012692, -0.028345, 0.006172, -0.004722}},
      {"experts", 3, 11, {5, 3, 0}},
      {"attention", 7, 11, {0.038517, -0.038866, 0.040478, 0.027092}},
      {"attention", 7, 23, {-0.018936, 0.014198, 0.033017, 0.013176}},
      {"head_in", -1, 63, {0.034815, 0.627057, 0.027982, 0.231390}},
  });
  g.check_residual_rms(
      23, {0.605721, 0.719901, 0.739378, 0.749193, 0.727752, 0.752212, 0.825436, 0.829531});
  g.check_logits(kQwen4expLogits);
}

TEST(Golden, Qwen4expMergedGateUp) {
  Golden g("qwen4exp", with({.merged_gate_up = true}), 1e-5);
  g.run(64);
  g.check_logits(kQwen4expLogits);
}

TEST(Golden, Qwen4expDraft) {
  Golden g("qwen4exp", with({.draft = true}, true), 1e-5);
  g.run(23);
  g.draft(0, 22,
          {22, {0.202812, 0.017740, -0.407018, 0.100089, 0.128210, -0.536143}, 76, 0.767094});
  std::vector<double> chained{0.428916, 0.269074, 0.010887, 0.274794};
  std::vector<float> out(g.harness.vocab());
  const std::vector<int32_t> token{76};
  g.harness.model().draft(g.harness.state(), g.harness.stream(), token, g.draft_hidden.data(),
                          out.data(), nullptr);
  expect_close("chained draft", out.data(), chained, 1e-5);
  EXPECT_EQ(std::max_element(out.begin(), out.end()) - out.begin(), 78);
}

TEST(Golden, Qwen4expDraftPerStreamNorm) {
  HarnessOptions options = with({.draft = true}, true);
  options.open.draft_norm = models::DraftNorm::PerStream;
  Golden g("qwen4exp", options, 1e-5);
  g.run(23);
  g.draft(0, 22,
          {22, {0.203507, 0.017850, -0.407027, 0.099835, 0.127643, -0.536300}, 76, 0.766949});
  std::vector<float> out(g.harness.vocab());
  const std::vector<int32_t> token{76};
  g.harness.model().draft(g.harness.state(), g.harness.stream(), token, g.draft_hidden.data(),
                          out.data(), nullptr);
  expect_close("chained draft", out.data(), {0.428274, 0.268961, 0.010163, 0.274997}, 1e-5);
}

TEST(Golden, Qwen4expDraftInItsOwnFile) {
  TemporaryFolder folder;
  models::Sources sources;
  sources.trunk = std::make_shared<gguf::Model>(
      gguf::Model::open(write_tiny(folder.path(), "qwen4exp", {}, "trunk.gguf")));
  sources.draft = std::make_shared<gguf::Model>(
      gguf::Model::open(write_tiny(folder.path(), "qwen4exp", {.only_draft = true}, "draft.gguf")));
  HarnessOptions options = with({}, true);
  Harness side(sources, options);
  Harness inside("qwen4exp", with({.draft = true}, true));
  std::vector<std::vector<float>> results;
  for (Harness* h : {&side, &inside}) {
    ASSERT_TRUE(h->info().has_draft);
    std::vector<float> hidden(static_cast<size_t>(9 * h->info().n_hidden));
    h->forward(tiny_tokens(9), experts::Phase::Prompt, hidden.data());
    const std::vector<int32_t> tokens = tiny_tokens(9);
    results.emplace_back(h->vocab());
    h->model().draft(h->state(), h->stream(), std::span(tokens).subspan(1), hidden.data(),
                     results.back().data(), nullptr);
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

const std::vector<ExpectedLogits> kQwen3moeLogits = {
    {0, {-0.363110, 0.235938, 0.141606, -0.874754, 0.453479, -0.053599}, 69, 1.060997},
    {1, {0.818390, 0.025143, -0.290720, -0.334718, 0.315954, 0.304205}, 18, 1.329750},
    {11, {0.160189, 0.020546, 0.353725, -0.157577, 0.870643, -0.067434}, 105, 1.501319},
    {23, {-0.021925, -0.209477, -0.165609, -0.082407, -0.051606, 0.556312}, 43, 1.945393},
    {63, {0.489519, 0.822462, 0.213584, -0.507889, 1.062657, 0.026623}, 42, 1.213909},
};

TEST(Golden, Qwen3moe) {
  Golden g("qwen3moe", {}, 1e-5);
  g.run(64);
  g.check({
      {"attention", 0, 0, {0.211425, -0.504372, -0.006769, 0.161271}},
      {"moe", 0, 0, {0.080773, 0.091345, 0.008213, 0.031290}},
      {"experts", 0, 0, {2, 1, 4}},
      {"residual", 0, 0, {-0.610070, -0.746415, 0.024125, -0.123234}},
      {"attention", 0, 11, {-0.019001, -0.064045, 0.380289, 0.044161}},
      {"attention", 3, 11, {-0.018881, 0.210636, 0.102857, 0.283514}},
      {"moe", 3, 11, {0.121786, -0.030312, 0.010747, -0.143568}},
      {"experts", 3, 11, {3, 0, 4}},
      {"head_in", -1, 63, {-1.399137, 0.938130, 0.913260, 0.479460}},
  });
  g.check_residual_rms(23, {0.629064, 0.690065, 0.719243, 0.735280});
  g.check_logits(kQwen3moeLogits);
}

TEST(Golden, Qwen3moeMapped) {
  HarnessOptions options;
  options.dense = models::DenseMode::Map;
  Golden g("qwen3moe", options, 1e-5);
  g.run(64);
  g.check_logits(kQwen3moeLogits);
}

const std::vector<ExpectedLogits> kQwen3nextLogits = {
    {0, {-0.045151, 0.030764, 0.438536, -0.366763, 0.274937, 0.391968}, 61, 1.353212},
    {1, {1.284833, -0.035609, 0.890419, -0.474575, 0.468861, -0.106554}, 0, 1.284833},
    {11, {0.542359, -0.452626, -0.187724, 0.250908, -0.170628, -0.589212}, 76, 1.214645},
    {23, {-0.068849, -0.653126, -0.213587, 0.070518, -0.793810, 0.244316}, 25, 1.438913},
    {63, {0.071785, 0.351389, 0.839403, -0.505428, 1.198361, 0.646958}, 11, 1.266257},
};

TEST(Golden, Qwen3next) {
  Golden g("qwen3next", {}, 2e-5);
  g.run(64);
  g.check({
      {"delta", 0, 0, {0.275018, 0.016690, 0.138844, 0.328774}},
      {"moe", 0, 0, {-0.095991, -0.064212, -0.085943, -0.157210}},
      {"experts", 0, 0, {4, 1, 6, 2}},
      {"delta", 0, 11, {-0.001588, -0.300010, -0.379436, -0.391445}},
      {"attention", 3, 11, {-0.060328, 0.078972, -0.029827, -0.002584}},
      {"moe", 3, 11, {0.204232, 0.181206, 0.029171, -0.220159}},
      {"experts", 3, 11, {3, 0, 5, 7}},
      {"head_in", -1, 63, {-1.305310, 0.960232, -0.046214, 1.277726}},
  });
  g.check_residual_rms(23, {0.586478, 0.664245, 0.732090, 0.730675});
  g.check_logits(kQwen3nextLogits);
}

TEST(Golden, Qwen3nextLegacyInput) {
  Golden g("qwen3next", with({.legacy_input = true}), 2e-5);
  g.run(64);
  g.check_logits(kQwen3nextLogits);
}

TEST(Golden, Qwen35moe) {
  Golden g("qwen35moe", {}, 2e-5);
  g.run(64);
  g.check({
      {"delta", 0, 0, {0.024317, -0.018985, -0.082263, 0.047684}},
      {"moe", 0, 0, {0.000952, 0.102161, -0.037417, 0.225382}},
      {"experts", 0, 0, {1, 4, 2}},
      {"delta", 0, 11, {0.246281, -0.035693, 0.103200, -0.019282}},
      {"attention", 3, 11, {-0.078368, 0.202974, 0.067318, 0.088840}},
      {"moe", 3, 11, {-0.049996, 0.153387, -0.049402, -0.022430}},
      {"experts", 3, 11, {0, 3, 5}},
      {"attention", 7, 63, {0.019776, 0.028877, 0.073852, -0.041456}},
      {"head_in", -1, 63, {-0.088847, 0.677180, -0.863261, -0.018637}},
  });
  g.check_residual_rms(
      23, {0.617851, 0.636505, 0.676428, 0.678767, 0.760223, 0.768268, 0.797613, 0.834430});
  g.check_logits({
      {0, {-0.021015, -0.526741, 0.783021, -1.056206, 0.874562, -0.409706}, 88, 1.391048},
      {1, {1.380504, 0.706350, 0.362591, -0.759904, 0.070649, -0.820572}, 0, 1.380504},
      {11, {-0.307630, -0.072116, 0.536377, -0.036184, 1.002072, -0.372525}, 103, 1.436235},
      {23, {-0.080426, -0.097186, 0.204201, 0.279616, 0.330740, 0.475457}, 69, 1.367737},
      {63, {0.469616, 0.473462, 0.260646, -0.226325, 0.927018, 0.066980}, 65, 1.535939},
  });
}

TEST(Golden, Qwen35moeDraft) {
  Golden g("qwen35moe", with({.draft = true}, true), 2e-5);
  g.run(64);
  g.draft(0, 0,
          {1, {-0.874509, 0.328255, -0.620121, -0.419375, 0.646891, -0.407995}, 96, 1.500561});
  g.draft(1, 22,
          {23, {0.253802, -0.644384, -0.736955, -0.100505, 0.448537, -0.513840}, 85, 1.459547});
  g.draft(23, 62,
          {63, {0.110599, 0.762935, 1.569906, -0.725494, 0.070968, -0.453857}, 2, 1.569906});
  g.draft_chained(
      2, {64, {0.108136, 0.763415, 0.217862, -0.964525, 0.506730, -0.092907}, 28, 1.584125});
}

}  // namespace
}  // namespace penstock::testing
