// How a block reads the residual and writes back: a norm and an addition, or a hyper-connection
// over several streams (spec/qwen4exp.md §1).
#pragma once

#include <string>

#include "models/binder.h"
#include "models/run.h"

namespace penstock::models {

// Tensor names of a mixer; a plain one has only the norm, the final one no inject.
struct MixerNames {
  std::string norm, down, up, inject;
};
// "<prefix>norm.weight" and so on
MixerNames hyper_names(const std::string& prefix, bool inject);

class Mixer {
 public:
  Mixer(Binder& binder, const Config& config, const MixerNames& names);
  Mixer(const Mixer&) = delete;
  Mixer& operator=(const Mixer&) = delete;

  // residual: [rows][n_wide]; x: [rows][n_embd]; inject: [rows][n_streams], for write(), or
  // none where nothing will be written
  void read(Run& run, const ops::Rows& residual, const ops::Rows& x, const ops::Rows& inject) const;
  void write(Run& run, const ops::Rows& y, const ops::Rows& inject,
             const ops::Rows& residual) const;

 private:
  int n_streams_;
  ops::Norm norm_;
  ops::Matrix down_, up_, inject_;
};

}  // namespace penstock::models
