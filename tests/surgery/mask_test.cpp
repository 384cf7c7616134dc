// A pruned model is the model with the other experts masked: bit for bit, for every architecture.
#include <limits>

#include "experts/forwarding_stream.h"
#include "models/harness.h"
#include "surgery/rewritten.h"

namespace penstock::surgery {
namespace {

using experts::Phase;
using testing::Harness;
using testing::HarnessOptions;
using testing::same_bits;

// Sets the logits of all experts that a map leaves out to minus infinity. Routing then gives them
// exp(-inf) = 0 exactly, so the sum of the softmax, which runs in the order of ids, is the same
// without them, and no expert with a finite logit ranks below one of them.
class MaskedStream final : public experts::ForwardingStream {
 public:
  MaskedStream(experts::Stream& inner, const KeepMap& map) : ForwardingStream(inner) {
    for (const KeptLayer& layer : map.layers) {
      kept_.emplace_back(layer.n_expert, false);
      for (const uint32_t id : layer.kept) kept_.back()[id] = true;
    }
  }
  experts::Routing begin(int index, const float* logits, int rows, const experts::RouteRule& rule,
                         Phase phase) override {
    const std::vector<bool>& kept = kept_[static_cast<size_t>(index)];
    masked_.assign(logits, logits + static_cast<size_t>(rows) * kept.size());
    for (size_t i = 0; i < masked_.size(); ++i) {
      if (!kept[i % kept.size()]) masked_[i] = -std::numeric_limits<float>::infinity();
    }
    return ForwardingStream::begin(index, masked_.data(), rows, rule, phase);
  }

 private:
  std::vector<std::vector<bool>> kept_;  // by MoE layer, by expert
  std::vector<float> masked_;
};

struct Case {
  std::string architecture;
  quant::Precision precision;
  bool merged;
};

class Mask : public ::testing::TestWithParam<Case> {
 protected:
  HarnessOptions options() const {
    HarnessOptions options;
    options.open.precision = GetParam().precision;
    if (GetParam().precision == quant::Precision::Fast) {
      options.tiny.matrices = gguf::TypeId::Q8_0;
    }
    options.tiny.merged_gate_up = GetParam().merged;
    return options;
  }
  std::shared_ptr<gguf::Model> source() const {
    return std::make_shared<gguf::Model>(gguf::Model::open(testing::write_tiny(
        folder_.path(), GetParam().architecture, options().tiny, "source.gguf")));
  }
  std::vector<float> run(const std::shared_ptr<gguf::Model>& file, const KeepMap* mask) const {
    models::Sources sources;
    sources.trunk = file;
    Harness h(sources, options());
    const std::vector<int32_t> tokens = testing::tiny_tokens(40);
    std::vector<float> logits(tokens.size() * h.vocab());
    MaskedStream masked(h.stream(), mask != nullptr ? *mask : KeepMap{});
    experts::Stream& stream = mask != nullptr ? static_cast<experts::Stream&>(masked) : h.stream();
    // A prompt of 23 tokens, then one by one.
    const std::span<const int32_t> all(tokens);
    h.model().forward(h.state(), stream,
                      {all.first(23), Phase::Prompt, models::Logits::All, nullptr}, logits.data());
    for (size_t t = 23; t < tokens.size(); ++t) {
      h.model().forward(h.state(), stream,
                        {all.subspan(t, 1), Phase::Decode, models::Logits::All, nullptr},
                        logits.data() + t * h.vocab());
    }
    return logits;
  }
  testing::TemporaryFolder folder_;
};

TEST_P(Mask, UniformAndPerLayer) {
  const auto file = source();
  const std::vector<float> whole = run(file, nullptr);
  const std::vector<std::vector<std::vector<uint32_t>>> choices = {
      {{0, 2, 3, 5, 7}},
      {{1, 2, 4, 6, 7}, {0, 1, 2, 3}, {0, 1, 2, 3, 4, 5, 6, 7}, {3, 4, 5, 6}},
  };
  for (const auto& kept : choices) {
    const KeepMap map = map_for(*file, kept);
    const std::string out =
        prune_to(*file, map, folder_.path() + "/" + std::to_string(kept.size()) + ".gguf");
    const std::vector<float> pruned =
        run(std::make_shared<gguf::Model>(gguf::Model::open(out)), nullptr);
    EXPECT_TRUE(same_bits(pruned, run(file, &map)));
    EXPECT_FALSE(same_bits(pruned, whole));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Mask,
                         ::testing::Values(Case{"qwen3moe", quant::Precision::Exact, false},
                                           Case{"qwen3moe", quant::Precision::Fast, false},
                                           Case{"qwen35moe", quant::Precision::Exact, false},
                                           Case{"qwen35moe", quant::Precision::Fast, true},
                                           Case{"qwen3next", quant::Precision::Exact, true},
                                           Case{"qwen3next", quant::Precision::Fast, false},
                                           Case{"qwen4exp", quant::Precision::Exact, false},
                                           Case{"qwen4exp", quant::Precision::Fast, false}),
                         [](const auto& test) {
                           return test.param.architecture +
                                  (test.param.precision == quant::Precision::Fast ? "_fast"
                                                                                  : "_exact") +
                                  (test.param.merged ? "_merged" : "");
                         });

// The draft block has a router and experts of its own, which pruning leaves alone.
TEST(MaskDraft, DraftBlockKeepsItsWidthAndItsBits) {
  const testing::TemporaryFolder folder;
  for (const char* architecture : {"qwen35moe", "qwen4exp"}) {
    testing::TinyOptions tiny;
    tiny.draft = true;
    const auto file = std::make_shared<gguf::Model>(
        gguf::Model::open(testing::write_tiny(folder.path(), architecture, tiny)));
    const KeepMap map = map_for(*file, {{0, 1, 4, 6}, {2, 3, 4, 5, 7}});
    const auto pruned = std::make_shared<gguf::Model>(gguf::Model::open(
        prune_to(*file, map, folder.path() + "/" + architecture + "-pruned.gguf")));
    const auto run = [&](const std::shared_ptr<gguf::Model>& model, bool masked) {
      HarnessOptions options;
      options.open.draft = true;
      models::Sources sources;
      sources.trunk = model;
      Harness h(sources, options);
      // Past the map's layers nothing is masked.
      KeepMap mask = map;
      mask.layers.push_back({8, 8, {0, 1, 2, 3, 4, 5, 6, 7}});
      MaskedStream stream(h.stream(), mask);
      experts::Stream& used = masked ? static_cast<experts::Stream&>(stream) : h.stream();
      const std::vector<int32_t> tokens = testing::tiny_tokens(12);
      const auto width = static_cast<size_t>(h.info().n_hidden);
      std::vector<float> hidden(tokens.size() * width), logits(h.vocab()), all(12 * h.vocab());
      h.model().forward(h.state(), used,
                        {tokens, Phase::Prompt, models::Logits::All, hidden.data()}, all.data());
      h.model().draft(h.state(), used, std::span(tokens).subspan(1), hidden.data(), logits.data(),
                      nullptr);
      return logits;
    };
    EXPECT_TRUE(same_bits(run(pruned, false), run(file, true))) << architecture;
  }
}

}  // namespace
}  // namespace penstock::surgery
