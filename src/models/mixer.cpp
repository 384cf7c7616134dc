#include "models/mixer.h"

namespace penstock::models {

MixerNames hyper_names(const std::string& prefix, bool inject) {
  return {prefix + "norm.weight", prefix + "down.weight", prefix + "up.weight",
          inject ? prefix + "inject.weight" : ""};
}

Mixer::Mixer(Binder& binder, const Config& config, const MixerNames& names)
    : n_streams_(config.n_streams), norm_{nullptr, config.n_wide(), config.n_embd, config.eps} {
  binder.floats(&norm_.weight, names.norm, config.n_wide());
  if (n_streams_ == 1) return;
  binder.matrix(&down_, names.down, config.n_wide(), config.hc_rank);
  binder.matrix(&up_, names.up, config.hc_rank, config.n_wide());
  if (!names.inject.empty()) {
    binder.matrix(&inject_, names.inject, config.n_wide(), config.n_streams);
  }
}

void Mixer::read(Run& run, const ops::Rows& residual, const ops::Rows& x,
                 const ops::Rows& inject) const {
  if (n_streams_ == 1) {
    ops::rms_norm(run.ops, norm_, residual, x);
    return;
  }
  Buffers::Hyper& b = run.buffers.hyper;
  const auto streams = static_cast<float>(n_streams_);
  const ops::Rows norm = b.norm.first(residual.count);
  const ops::Rows low = b.low.first(residual.count);
  const ops::Rows gate = b.gate.first(residual.count);
  ops::rms_norm(run.ops, norm_, residual, norm);
  b.norm_acts.set(norm);
  if (inject_ && inject.data != nullptr) {
    run.products(b.norm_acts, {{&down_, low}, {&inject_, inject}});
    ops::sigmoid_scaled(run.ops, inject, streams, 2.0f, inject);
  } else {
    run.products(b.norm_acts, {{&down_, low}});
  }
  ops::silu_scaled(run.ops, low, streams, low);
  b.low_acts.set(low);
  run.products(b.low_acts, {{&up_, gate}});
  ops::gated_mean(run.ops, gate, norm, n_streams_, x);
}

void Mixer::write(Run& run, const ops::Rows& y, const ops::Rows& inject,
                  const ops::Rows& residual) const {
  if (n_streams_ == 1) {
    ops::add(run.ops, y, residual);
  } else {
    ops::inject(run.ops, inject, y, n_streams_, residual);
  }
}

}  // namespace penstock::models
