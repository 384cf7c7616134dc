#include "experts/predict.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "experts/record.h"

namespace penstock::experts {
namespace {

// Probabilities of 0..n misses among n uses.
std::vector<double> binomial(int n, double miss_rate) {
  std::vector<double> p(static_cast<size_t>(n) + 1, 0.0);
  p[0] = 1;
  for (int use = 0; use < n; ++use) {
    for (size_t m = static_cast<size_t>(use) + 1; m > 0; --m) {
      p[m] = p[m] * (1 - miss_rate) + p[m - 1] * miss_rate;
    }
    p[0] *= 1 - miss_rate;
  }
  return p;
}

double uses_of(const std::vector<LayerLoad>& layers) {
  double uses = 0;
  for (const LayerLoad& layer : layers) uses += layer.n_used;
  return uses;
}

double bytes_of(const std::vector<LayerLoad>& layers) {
  double bytes = 0;
  for (const LayerLoad& layer : layers) bytes += layer.n_used * layer.read_bytes;
  return bytes;
}

}  // namespace

std::vector<LayerLoad> layer_loads(const Geometry& geometry, uint32_t alignment) {
  std::vector<LayerLoad> loads;
  for (const LayerGeometry& layer : geometry.layers) {
    const RecordLayout layout = record_layout(layer, alignment);
    double bytes = 0;
    for (int e = 0; e < layer.n_expert; ++e) {
      for (int p = 0; p < layout.n_parts; ++p) bytes += part_read(layout, p, e).bytes;
    }
    loads.push_back({.n_expert = layer.n_expert,
                     .n_used = layer.n_used,
                     .read_bytes = bytes / std::max(1, layer.n_expert),
                     .work = static_cast<double>(layer.expert_bytes())});
  }
  return loads;
}

DecodePrediction predict_decode(const std::vector<LayerLoad>& layers, const DecodeCost& compute,
                                const DiskCost& disk, double hit_rate) {
  DecodePrediction out;
  out.hit_rate = std::clamp(hit_rate, 0.0, 1.0);
  const double miss_rate = 1 - out.hit_rate;
  out.misses = uses_of(layers) * miss_rate;
  out.bytes = bytes_of(layers) * miss_rate;
  out.io_s = out.bytes / disk.bytes_per_s;
  out.overlap_s = std::max(compute.token_s, out.io_s);
  out.serial_s = compute.token_s + out.io_s;

  double work = 0;
  for (const LayerLoad& layer : layers) work += layer.n_used * layer.work;
  out.predicted_s = std::max(0.0, compute.token_s - compute.experts_s - compute.shared_s);
  for (const LayerLoad& layer : layers) {
    const double use_s = work > 0 ? compute.experts_s * layer.work / work : 0;
    const double shared_s = compute.shared_s / static_cast<double>(layers.size());
    const std::vector<double> p = binomial(layer.n_used, miss_rate);
    for (int m = 0; m <= layer.n_used; ++m) {
      const double hits_s = shared_s + (layer.n_used - m) * use_s;
      const double read_s = m == 0 ? 0 : disk.latency_s + m * layer.read_bytes / disk.bytes_per_s;
      out.predicted_s += p[static_cast<size_t>(m)] * (std::max(hits_s, read_s) + m * use_s);
    }
  }
  return out;
}

double break_even_reads(const std::vector<LayerLoad>& layers, const DecodeCost& compute,
                        const DiskCost& disk) {
  const double bytes = bytes_of(layers);
  return bytes > 0 ? compute.token_s * disk.bytes_per_s * uses_of(layers) / bytes : 0;
}

double static_hit_rate(const std::vector<LayerLoad>& layers, std::span<const float> shares,
                       const ArenaShape& shape) {
  std::vector<std::vector<float>> by_class(shape.classes.size());
  size_t at = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    std::vector<float>& list = by_class[shape.class_of[l]];
    const auto n = static_cast<size_t>(layers[l].n_expert);
    const std::span<const float> mine = shares.subspan(at, n);
    list.insert(list.end(), mine.begin(), mine.end());
    at += n;
  }
  double rate = 0;
  for (size_t c = 0; c < by_class.size(); ++c) {
    std::vector<float>& list = by_class[c];
    std::sort(list.begin(), list.end(), std::greater<>());
    const size_t held = std::min<size_t>(list.size(), shape.classes[c].slots);
    for (size_t i = 0; i < held; ++i) rate += static_cast<double>(list[i]);
  }
  return std::clamp(rate, 0.0, 1.0);
}

PromptPrediction predict_prompt(const std::vector<LayerLoad>& layers, double token_s,
                                const DiskCost& disk, int n_tokens, int chunk, double resident) {
  PromptPrediction out;
  out.compute_s = token_s * n_tokens;
  for (int done = 0; done < n_tokens; done += chunk) {
    const int n = std::min(chunk, n_tokens - done);
    for (const LayerLoad& layer : layers) {
      if (layer.n_expert == 0) continue;
      const double untouched = std::pow(1 - static_cast<double>(layer.n_used) / layer.n_expert, n);
      out.bytes += (1 - resident) * layer.n_expert * (1 - untouched) * layer.read_bytes;
    }
  }
  out.io_s = out.bytes / disk.bytes_per_s;
  out.seconds = std::max(out.compute_s, out.io_s);
  out.tokens_per_s = out.seconds > 0 ? n_tokens / out.seconds : 0;
  return out;
}

}  // namespace penstock::experts
