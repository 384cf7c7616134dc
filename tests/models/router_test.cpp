// A router has as many rows as the layer has experts, in prompts and in decoding
// (spec/streaming.md §G.2): the reference system computed twice as many.
#include <gtest/gtest.h>

#include <algorithm>

#include "models/harness.h"

namespace penstock::testing {
namespace {

// Counts what routers compute.
struct RouterRows final : models::ComputeObserver {
  void product(const ops::Matrix& matrix, const ops::Rows& input) override {
    if (!matrix.name.ends_with("ffn_gate_inp.weight")) return;
    ++products;
    rows += matrix.n_out * input.count;
    widest = std::max(widest, matrix.n_out);
    bytes = std::max(bytes, matrix.n_out * static_cast<int64_t>(matrix.row_bytes));
  }
  void experts(const models::ExpertsSeen& seen, ThreadPool&) override {
    logits += seen.logits.width * seen.logits.count;
  }
  int products = 0;
  int64_t rows = 0, widest = 0, bytes = 0, logits = 0;
};

TEST(Router, ComputesOneRowForEachExpert) {
  for (const char* architecture : {"qwen3moe", "qwen3next", "qwen4exp"}) {
    for (const int n_expert : {256, 24}) {
      HarnessOptions options;
      options.tiny.n_expert = n_expert;
      Harness h(architecture, options);
      const auto n_layers = static_cast<int>(h.model().experts().layers.size());
      RouterRows seen;
      h.model().set_observer(&seen);
      h.forward(tiny_tokens(11));
      EXPECT_EQ(seen.products, n_layers) << architecture;
      EXPECT_EQ(seen.rows, int64_t{n_layers} * 11 * n_expert) << architecture;
      h.forward({3}, experts::Phase::Decode);
      h.step({5, 7});
      EXPECT_EQ(seen.products, 3 * n_layers) << architecture;
      EXPECT_EQ(seen.rows, int64_t{n_layers} * (11 + 1 + 2) * n_expert) << architecture;
      EXPECT_EQ(seen.logits, seen.rows) << architecture;
      EXPECT_EQ(seen.widest, n_expert) << architecture;
      EXPECT_EQ(seen.bytes, int64_t{n_expert} * h.info().n_embd * 4) << architecture;
      h.model().set_observer(nullptr);
    }
  }
}

}  // namespace
}  // namespace penstock::testing
