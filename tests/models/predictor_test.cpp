// What `--predictor` foretells (spec/streaming.md §E.1). In a model whose attention and routed
// experts add nothing, a prediction must equal what the later router says: bit for bit, and with
// the shared expert but for rounding, because its addition is fused here and is not there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "experts/forwarding_stream.h"
#include "models/harness.h"

namespace penstock::testing {
namespace {

using experts::Predictor;

// Keeps what routers said, and what was foretold of them.
class PredictedStream final : public experts::ForwardingStream {
 public:
  PredictedStream(experts::Stream& inner, Predictor predictor)
      : ForwardingStream(inner),
        said(inner.geometry().layers.size()),
        foretold(said.size()),
        predictor_(predictor) {}

  experts::Routing begin(int index, const float* logits, int rows, const experts::RouteRule& rule,
                         experts::Phase phase) override {
    layer_ = index;
    said[static_cast<size_t>(index)] = copy(index, logits, rows);
    return ForwardingStream::begin(index, logits, rows, rule, phase);
  }
  int look_ahead() const override { return experts::kMostAhead; }
  Predictor predictor() const override { return predictor_; }
  void predict(int index, const float* logits, int rows) override {
    if (index == layer_ + 1) foretold[static_cast<size_t>(index)] = copy(index, logits, rows);
  }

  std::vector<std::vector<float>> said, foretold;  // by layer, [rows][n_expert]

 private:
  std::vector<float> copy(int index, const float* logits, int rows) const {
    const int n = geometry().layers[static_cast<size_t>(index)].n_expert;
    return {logits, logits + static_cast<ptrdiff_t>(n) * rows};
  }

  Predictor predictor_;
  int layer_ = -1;
};

// Of a step of three rows.
std::vector<float> logits_after_a_prompt(Harness& h, experts::Stream& stream) {
  h.forward(tiny_tokens(12));
  const std::vector<int32_t> tokens = {7, 5, 99};
  std::vector<float> logits(tokens.size() * h.vocab());
  h.model().step(h.state(), stream, {tokens, experts::Phase::Decode, models::Logits::All, nullptr},
                 logits.data());
  return logits;
}

const std::vector<std::string> kNoMixing = {"attn_output.weight", "ssm_out.weight",
                                            "ple_value.weight", "ffn_down_exps.weight"};

float most_apart(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    most = std::max(most, std::fabs(a[i] - b[i]));
  }
  return most;
}

// Layers of which the prediction is what the router then said, of those after the first.
std::pair<int, int> exact(const char* architecture, Predictor predictor, bool shared_is_zero,
                          float tolerance = 0) {
  HarnessOptions options;
  options.tiny.zero = kNoMixing;
  if (shared_is_zero) options.tiny.zero.push_back("ffn_down_shexp.weight");
  Harness h(architecture, options);
  PredictedStream stream(h.stream(), predictor);
  logits_after_a_prompt(h, stream);
  int same = 0;
  for (size_t l = 1; l < stream.said.size(); ++l) {
    EXPECT_EQ(stream.foretold[l].size(), stream.said[l].size()) << architecture << ' ' << l;
    same += most_apart(stream.foretold[l], stream.said[l]) <= tolerance ? 1 : 0;
  }
  return {same, static_cast<int>(stream.said.size()) - 1};
}

TEST(Predictor, TheResidualIsReadAsTheLaterBlockReadsIt) {
  for (const char* architecture : {"qwen3moe", "qwen3next", "qwen35moe", "qwen4exp"}) {
    const auto [same, layers] = exact(architecture, Predictor::Residual, true);
    EXPECT_EQ(same, layers) << architecture;
    EXPECT_GT(layers, 2);
  }
}

TEST(Predictor, TheSharedExpertIsAdded) {
  for (const char* architecture : {"qwen3next", "qwen35moe"}) {
    const float rounding = 1e-5f;
    const auto [same, layers] = exact(architecture, Predictor::ResidualShared, false, rounding);
    EXPECT_EQ(same, layers) << architecture;
    // And without it the prediction is another one.
    EXPECT_EQ(exact(architecture, Predictor::Residual, false, 100 * rounding).first, 0)
        << architecture;
  }
}

TEST(Predictor, AutoReadsWhereThatCostsNoMatrices) {
  EXPECT_EQ(exact("qwen3next", Predictor::Auto, true),
            exact("qwen3next", Predictor::Residual, true));
  // This layer's own input, through the later router: not what that router will be given.
  EXPECT_EQ(exact("qwen4exp", Predictor::Auto, true).first, 0);
  EXPECT_EQ(exact("qwen3next", Predictor::GateInput, true).first, 0);
}

TEST(Predictor, ChangesNoLogit) {
  for (const char* architecture : {"qwen3moe", "qwen3next", "qwen35moe", "qwen4exp"}) {
    const auto run = [&](Predictor predictor) {
      Harness h(architecture);
      PredictedStream stream(h.stream(), predictor);
      return logits_after_a_prompt(h, stream);
    };
    const std::vector<float> expected = run(Predictor::GateInput);
    EXPECT_EQ(run(Predictor::Residual), expected) << architecture;
    const models::Info info = Harness(architecture).info();
    if (!info.has_shared_expert || info.n_streams > 1) continue;
    EXPECT_EQ(run(Predictor::ResidualShared), expected) << architecture;
  }
}

}  // namespace
}  // namespace penstock::testing
