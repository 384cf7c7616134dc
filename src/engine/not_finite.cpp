#include "engine/not_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace penstock::engine {
namespace {

bool finite(std::span<const float> values) noexcept {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

// The first block whose output is not finite, as the tap shows them; -1: none so far.
class FirstBad {
 public:
  explicit FirstBad(models::Model& model) : model_(model) {
    model_.set_tap(
        [this](std::string_view what, int layer, int64_t, std::span<const float> values) {
          if (layer_ < 0 && what == "residual" && !finite(values)) layer_ = layer;
        });
  }
  ~FirstBad() { model_.set_tap({}); }
  FirstBad(const FirstBad&) = delete;
  FirstBad& operator=(const FirstBad&) = delete;
  int layer() const noexcept { return layer_; }

 private:
  models::Model& model_;
  int layer_ = -1;
};

}  // namespace

std::string find_not_finite(Runtime& runtime, std::span<const int32_t> tokens) {
  const auto state = runtime.model().new_state(
      {.n_ctx = static_cast<int64_t>(tokens.size()), .kv = *runtime.options().kv});
  std::vector<float> logits(static_cast<size_t>(runtime.info().n_vocab));
  const FirstBad bad(runtime.model());
  for (size_t i = 0; i < tokens.size(); ++i) {
    try {
      runtime.model().forward(
          *state, runtime.stream(),
          {tokens.subspan(i, 1), experts::Phase::Decode, models::Logits::Last, nullptr},
          logits.data());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Numeric) throw;
      return fmt::format("position {}: {}", i, error.what());
    }
    if (bad.layer() >= 0) {
      return fmt::format("position {}: layer {} is the first whose output is not finite", i,
                         bad.layer());
    }
    if (!finite(logits)) {
      return fmt::format(
          "position {}: every layer's output is finite, the logits are not: the output matrix or "
          "its norm",
          i);
    }
  }
  return {};
}

}  // namespace penstock::engine
