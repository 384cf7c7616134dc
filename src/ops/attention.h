// Causal attention over a cache of keys and values, dense or over a list of positions, and the
// block selection of sparse attention.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/context.h"
#include "ops/rows.h"

namespace penstock::ops {

enum class KvType : uint8_t { F32, F16 };
constexpr uint64_t kv_bytes(KvType type) noexcept {
  return type == KvType::F16 ? 2 : 4;
}

// One layer's cache: position p at p * width elements.
struct KvCache {
  KvType type = KvType::F16;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t width = 0;  // n_head_kv * head_dim
};

void store_kv(Context& context, const KvCache& cache, int64_t position, const Rows& k,
              const Rows& v);

struct AttentionShape {
  int64_t n_head = 0;
  int64_t n_head_kv = 0;
  int64_t head_dim = 0;  // a multiple of 8
  float scale = 0.0f;
};

// Positions visible to each row, ascending; count 0: dense, positions 0..p.
struct Visible {
  const int32_t* positions = nullptr;  // row r at r * stride
  int64_t stride = 0;
  const int32_t* counts = nullptr;  // null: every row is dense
};

// Room for the block results of few rows, whose work is split over positions too.
struct AttentionPartials {
  float* data = nullptr;
  int64_t max_rows = 0;
};
AttentionPartials attention_partials(Layout& layout, const AttentionShape& shape, int64_t max_rows);

// Row r is the query at position first + r: out = softmax(scale q.k) v over the visible positions,
// query head h with kv head h / (n_head / n_head_kv). The visible positions are taken in blocks of
// 256; each block's maximum, sum and weighted values are formed alone and joined in order, so the
// bits do not depend on the number of rows or threads.
void attend(Context& context, const AttentionShape& shape, const KvCache& cache, int64_t first,
            const Rows& q, const Visible& visible, const AttentionPartials& partials,
            const Rows& out);

// Sparse selection (spec/qwen4exp.md §3.2): the `budget` best complete blocks of `block` tokens by
// sum_h relu(q_h . key_b) / sqrt(dim), then the tail; rows that see no more than `budget` complete
// blocks are dense.
struct IndexShape {
  int64_t n_head = 0;
  int64_t dim = 0;
  int64_t block = 0;
  int64_t budget = 0;
  int64_t list_length() const noexcept { return budget * block + block - 1; }
};
struct IndexScratch {
  float* scores = nullptr;   // [kIndexRows][max_blocks]
  int32_t* order = nullptr;  // [kIndexRows][max_blocks]
  int64_t max_blocks = 0;
};
inline constexpr int64_t kIndexRows = 8;
IndexScratch index_scratch(Layout& layout, int64_t max_blocks);

// keys: [blocks][dim]. positions: [rows][list_length], counts: [rows].
void select_blocks(Context& context, const IndexShape& shape, const float* keys, int64_t first,
                   const Rows& q, const IndexScratch& scratch, int32_t* positions, int32_t* counts);

}  // namespace penstock::ops
