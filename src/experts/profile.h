// An expert profile: how often each expert was used, in which text (spec/streaming.md §D.5,
// docs/profiles.md). For warm fill, the hot set and the eviction policy `profile`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "experts/geometry.h"
#include "experts/stream.h"

namespace penstock::experts {

struct LayerUses {
  int layer = 0;                 // the model's block index
  std::vector<uint64_t> decode;  // by expert: selected for a token in decode
  std::vector<uint64_t> prompt;  // and for a token of a prompt
};

struct Profile {
  Sha256 model_id{};        // of the model whose experts were counted
  std::string keep_map_id;  // of a pruned model, as its metadata gives it; else empty
  std::string routing;      // "exact", or the cache-aware variant that bent it
  std::vector<LayerUses> layers;
  uint64_t n_tokens = 0;          // of the text
  Sha256 tokens_id{};             // SHA-256 over its token ids, 32-bit little-endian
  std::vector<uint64_t> windows;  // sorted: window_hashes() of the text

  uint64_t uses() const noexcept;
  uint64_t memory_bytes() const noexcept;
  // Each expert's share of all uses, prompt and decode together, layer by layer.
  std::vector<float> shares() const;
};

// Throws Error(Io); Error(Format) naming the field when the file is no profile or makes no sense.
Profile read_profile(const std::string& path);
void write_profile(const std::string& path, const Profile& profile);

// Throws Error(Format) when the profile was not made from this model: another identity, other
// layers or expert counts.
void check_profile(const Profile& profile, const std::string& path, const Geometry& geometry,
                   const Sha256& model_id);

// A hash of every 13 tokens in a row, sorted, each once.
std::vector<uint64_t> window_hashes(std::span<const int32_t> tokens);
// Whether the text shares 13 tokens in a row with the profile's: its hit rates are then no
// prediction for unseen text.
bool in_sample(const Profile& profile, std::span<const int32_t> tokens);

// Counts what a stream selects.
class UseCounter final : public RouteObserver {
 public:
  explicit UseCounter(const Geometry& geometry);
  void selected(int index, int row, Phase phase, std::span<const int32_t> ids,
                std::span<const float> logits) override;
  std::vector<LayerUses> layers() const { return layers_; }

 private:
  std::vector<LayerUses> layers_;
};

}  // namespace penstock::experts
