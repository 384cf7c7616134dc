// What speed a plan promises, from a measured roofline (spec/streaming.md §M.1). Pure functions:
// the measurements come in, nothing is read here. What the model leaves out is in docs/plan.md.
#pragma once

#include <span>
#include <vector>

#include "experts/geometry.h"
#include "experts/shape.h"

namespace penstock::experts {

// What one MoE layer asks of the disk.
struct LayerLoad {
  int n_expert = 0;
  int n_used = 0;         // by one token
  double read_bytes = 0;  // asked for to read one expert, alignment and padding included; the mean
  double work = 1;        // of one expert's products, relative to the other layers' (its bytes)
};

// Layers as they are read from these files; `alignment` as StreamFiles::alignment().
std::vector<LayerLoad> layer_loads(const Geometry& geometry, uint32_t alignment);

// Times of one decode token with every expert in memory, in seconds.
struct DecodeCost {
  double token_s = 0;    // everything: t_c
  double experts_s = 0;  // of this, the routed experts' products
  double shared_s = 0;  // of this, what is computed between a layer's router and its routed experts
};

// Expert reads at random: a layer's m missing experts take latency_s + m * read_bytes /
// bytes_per_s.
struct DiskCost {
  double bytes_per_s = 0;  // W, above 0
  double latency_s = 0;
};

struct DecodePrediction {
  double hit_rate = 0;     // 0 to 1
  double misses = 0;       // reads per token
  double bytes = 0;        // B, per token
  double io_s = 0;         // t_io = B / W
  double overlap_s = 0;    // max(t_c, t_io): no engine is faster
  double serial_s = 0;     // t_c + t_io: nothing overlaps
  double predicted_s = 0;  // hits first, layer by layer
  double tokens_per_s() const noexcept { return predicted_s > 0 ? 1 / predicted_s : 0; }
  double overlap_tokens_per_s() const noexcept { return overlap_s > 0 ? 1 / overlap_s : 0; }
  double serial_tokens_per_s() const noexcept { return serial_s > 0 ? 1 / serial_s : 0; }
};

// Decode at a hit rate in [0, 1], the same for every use and independent of the others, so that a
// layer's misses are binomial. Per layer
//   t_l = t_dense + max(t_shared + t_hits, t_read(m_l)) + t_missed_compute
// and the sum over layers of its expected value.
DecodePrediction predict_decode(const std::vector<LayerLoad>& layers, const DecodeCost& compute,
                                const DiskCost& disk, double hit_rate);

// Reads per token up to which an engine that overlaps perfectly is bound by compute:
// m* = t_c * W / read_bytes, with the mean over a token's uses. 0 where there are no experts.
double break_even_reads(const std::vector<LayerLoad>& layers, const DecodeCost& compute,
                        const DiskCost& disk);

// The hit rate of an arena that holds what a profile counts most and never changes. `shares`: each
// expert's share of all uses, layer by layer. Precondition: they and `shape` belong to `layers`.
double static_hit_rate(const std::vector<LayerLoad>& layers, std::span<const float> shares,
                       const ArenaShape& shape);

struct PromptPrediction {
  double compute_s = 0;  // all tokens
  double bytes = 0;      // read
  double io_s = 0;
  double seconds = 0;  // max(compute_s, io_s)
  double tokens_per_s = 0;
};

// A prompt of n_tokens in chunks: every chunk reads each expert it touches once,
// touched_l = E * (1 - (1 - K/E)^chunk) as uniformly random routing has it, but for the share
// `resident` of them (0: an empty arena). token_s: compute per token, in seconds.
PromptPrediction predict_prompt(const std::vector<LayerLoad>& layers, double token_s,
                                const DiskCost& disk, int n_tokens, int chunk, double resident);

}  // namespace penstock::experts
