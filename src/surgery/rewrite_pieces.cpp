#include "surgery/rewrite_pieces.h"

#include <algorithm>

namespace penstock::surgery {
namespace {

using gguf::Tensor;

constexpr uint64_t kCopyBytes = uint64_t{2} << 20;      // of a piece that is copied
constexpr uint64_t kEncodeWeights = uint64_t{1} << 19;  // of a piece that is encoded: 2 MiB of F32

// Runs of neighbouring places along the last dimension, as (first, count).
std::vector<std::pair<uint64_t, uint64_t>> runs(const OutputTensor& tensor) {
  if (tensor.kept.empty()) return {{0, tensor.n_places()}};
  std::vector<std::pair<uint64_t, uint64_t>> out;
  for (const uint32_t place : tensor.kept) {
    if (!out.empty() && out.back().first + out.back().second == place) {
      ++out.back().second;
    } else {
      out.emplace_back(place, 1);
    }
  }
  return out;
}

}  // namespace

PieceList::PieceList(const RewritePlan& plan) : plan_(plan) {
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    if (plan.tensors[t].encoded()) {
      add_encoded(static_cast<uint32_t>(t), plan.tensors[t]);
    } else {
      add_copied(static_cast<uint32_t>(t), plan.tensors[t]);
    }
  }
}

uint64_t PieceList::out_bytes(const Piece& piece) const noexcept {
  if (piece.n_rows == 0) return piece.bytes;
  const OutputTensor& to = tensor(piece);
  return piece.n_rows * gguf::row_bytes(to.type, to.source->ne[0]);
}

void PieceList::add(const Piece& piece) {
  pieces_.push_back(piece);
  bytes_ += piece.bytes;
}

void PieceList::add_copied(uint32_t index, const OutputTensor& tensor) {
  const uint64_t place_bytes = tensor.source_bytes() / tensor.n_places();
  uint64_t to = 0;
  for (const auto& [first, count] : runs(tensor)) {
    uint64_t from = first * place_bytes;
    for (uint64_t left = count * place_bytes; left > 0;) {
      const uint64_t n = std::min(left, kCopyBytes);
      add({index, 0, from, to, n, 0});
      from += n;
      to += n;
      left -= n;
    }
  }
}

// A piece never crosses from one matrix into the next: each may have its own importance.
void PieceList::add_encoded(uint32_t index, const OutputTensor& tensor) {
  const Tensor& source = *tensor.source;
  const uint64_t rows_per_place =
      source.n_dims > 2 ? source.rows() / source.ne[source.n_dims - 1] : 1;
  const uint64_t out_row = gguf::row_bytes(tensor.type, source.ne[0]);
  const uint64_t most = std::max<uint64_t>(1, kEncodeWeights / source.ne[0]);
  uint64_t to = 0;
  for (const auto& [first, count] : runs(tensor)) {
    const bool bank = source.n_dims > 2;
    const uint64_t n_mats = bank ? count : 1;
    for (uint64_t m = 0; m < n_mats; ++m) {
      uint64_t row = (first + m) * rows_per_place;
      for (uint64_t left = bank ? rows_per_place : count; left > 0;) {
        const uint64_t n = std::min(left, most);
        add({index, bank ? static_cast<uint32_t>(first + m) : 0u, row * source.row_bytes, to,
             n * source.row_bytes, n});
        row += n;
        to += n * out_row;
        left -= n;
      }
    }
  }
}

}  // namespace penstock::surgery
