// A tiny model, opened, loaded and ready to run.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "models/memory_stream.h"
#include "models/model.h"
#include "models/tiny_models.h"

namespace penstock::testing {

struct HarnessOptions {
  TinyOptions tiny;
  models::OpenOptions open{.precision = quant::Precision::Exact};
  models::StateOptions state{.n_ctx = 128, .kv = models::KvType::F32};
  models::DenseMode dense = models::DenseMode::Copy;
  int threads = 1;
  Arrival arrival = Arrival::AllAtOnce;
};

class Harness {
 public:
  explicit Harness(const std::string& architecture, const HarnessOptions& options = {})
      : pool_(options.threads), options_(options) {
    models::Sources sources;
    sources.trunk = std::make_shared<gguf::Model>(
        gguf::Model::open(write_tiny(folder_.path(), architecture, options.tiny)));
    start(sources);
  }
  Harness(const models::Sources& sources, const HarnessOptions& options)
      : pool_(options.threads), options_(options) {
    start(sources);
  }

  models::Model& model() { return *model_; }
  models::State& state() { return *state_; }
  MemoryStream& stream() { return *stream_; }
  const models::Info& info() const { return model_->info(); }

  // Logits of every token, [tokens][n_vocab].
  std::vector<float> forward(const std::vector<int32_t>& tokens,
                             experts::Phase phase = experts::Phase::Prompt,
                             float* hidden = nullptr) {
    std::vector<float> logits(tokens.size() * vocab());
    model_->forward(*state_, *stream_, {tokens, phase, models::Logits::All, hidden}, logits.data());
    return logits;
  }
  std::vector<float> step(const std::vector<int32_t>& tokens) {
    std::vector<float> logits(tokens.size() * vocab());
    model_->step(*state_, *stream_, {tokens, experts::Phase::Decode, models::Logits::All, nullptr},
                 logits.data());
    return logits;
  }
  // The tokens in chunks of these sizes, the last repeated.
  std::vector<float> forward_chunks(const std::vector<int32_t>& tokens,
                                    const std::vector<size_t>& sizes, experts::Phase phase) {
    std::vector<float> all;
    size_t chunk = 0;
    for (size_t at = 0; at < tokens.size(); ++chunk) {
      const size_t n = std::min(sizes[std::min(chunk, sizes.size() - 1)], tokens.size() - at);
      const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(at);
      const std::vector<float> part =
          forward({first, first + static_cast<std::ptrdiff_t>(n)}, phase);
      all.insert(all.end(), part.begin(), part.end());
      at += n;
    }
    return all;
  }
  size_t vocab() const { return static_cast<size_t>(model_->info().n_vocab); }

 private:
  void start(const models::Sources& sources) {
    model_ = models::open(sources, options_.open);
    model_->load(pool_, options_.dense, {});
    state_ = model_->new_state(options_.state);
    stream_ = std::make_unique<MemoryStream>(model_->experts(), options_.arrival);
  }

  TemporaryFolder folder_;
  ThreadPool pool_;
  HarnessOptions options_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<models::State> state_;
  std::unique_ptr<MemoryStream> stream_;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace penstock::testing
