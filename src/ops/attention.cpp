#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/kernels.h"

namespace penstock::ops {
namespace {

constexpr int64_t kWave = 16;  // blocks per row whose results are held before they are joined

void decode_kv(const Kernels& kernel, const KvCache& cache, const std::byte* base, int64_t position,
               int64_t offset, int64_t dim, float* out) {
  const int64_t at = position * cache.width + offset;
  if (cache.type == KvType::F16) {
    kernel.from_half(reinterpret_cast<const uint16_t*>(base) + at, out, dim);
  } else {
    std::memcpy(out, reinterpret_cast<const float*>(base) + at,
                static_cast<size_t>(dim) * sizeof(float));
  }
}

// Queries that share a kv head: all of its heads for some rows, row-major.
struct Group {
  int64_t kv_head;
  int64_t first_row;
  int64_t n_rows;
};

// What a block of positions, or all so far, contributes to a query.
struct Part {
  float* maximum;  // [queries]
  float* sum;
  float* out;  // [queries] at out_stride
  int64_t out_stride;
};

class Attention {
 public:
  Attention(Context& context, const AttentionShape& shape, const KvCache& cache, int64_t first,
            const Rows& q, const Visible& visible)
      : context_(context),
        kernel_(kernels()),
        shape_(shape),
        cache_(cache),
        first_(first),
        q_(q),
        visible_(visible),
        heads_(shape.n_head / shape.n_head_kv) {}

  int64_t heads() const noexcept { return heads_; }
  bool dense(int64_t row) const noexcept {
    return visible_.counts == nullptr || visible_.counts[row] == 0;
  }
  int64_t count(int64_t row) const noexcept {
    return dense(row) ? first_ + row + 1 : visible_.counts[row];
  }
  int64_t blocks(int64_t row) const noexcept {
    return (count(row) + kAttentionBlock - 1) / kAttentionBlock;
  }

  // One block of the visible positions for every query of the group; rows that do not reach it are
  // left alone. Rows of a group of more than one are dense.
  void block(const Group& group, int64_t index, int thread, const Part& part) const {
    const Workspace::Thread& mine = context_.workspace.thread(thread);
    const int64_t dim = shape_.head_dim;
    const int64_t start = index * kAttentionBlock;
    const int64_t row0 = first_reaching(group, start);
    const int64_t n_queries = (group.n_rows - row0) * heads_;
    if (n_queries <= 0) return;
    const int64_t offset = group.kv_head * dim;
    for (int64_t i = 0; i < n_queries; ++i) {
      const int64_t row = group.first_row + row0 + i / heads_;
      mine.queries[i] = q_[row] + (group.kv_head * heads_ + i % heads_) * dim;
    }
    const int64_t end =
        std::min(start + kAttentionBlock, count(group.first_row + group.n_rows - 1));
    for (int64_t tile = start; tile < end; tile += kAttentionTile) {
      const int64_t n = std::min(kAttentionTile, end - tile);
      load_tile(group, tile, n, cache_.k, offset, mine.keys);
      kernel_.scores(mine.queries, n_queries, mine.keys, n, dim, shape_.scale,
                     mine.scores + (tile - start), kAttentionBlock);
    }
    for (int64_t i = 0; i < n_queries; ++i) {
      const int64_t query = row0 * heads_ + i;
      const int64_t n = visible_in_block(group.first_row + query / heads_, start);
      float* scores = mine.scores + i * kAttentionBlock;
      part.maximum[query] = kernel_.max(scores, n);
      part.sum[query] = kernel_.exp_minus(scores, part.maximum[query], n);
      std::memset(part.out + query * part.out_stride, 0, static_cast<size_t>(dim) * sizeof(float));
    }
    for (int64_t tile = start; tile < end; tile += kAttentionTile) {
      const int64_t n = std::min(kAttentionTile, end - tile);
      load_tile(group, tile, n, cache_.v, offset, mine.values);
      weigh_tile(group, row0, start, tile, n, mine, part);
    }
  }

  // total = total joined with part; the first part is taken as it is.
  void join(int64_t query, int64_t index, const Part& part, const Part& total) const {
    const int64_t dim = shape_.head_dim;
    float* out = total.out + query * total.out_stride;
    const float* in = part.out + query * part.out_stride;
    if (index == 0) {
      total.maximum[query] = part.maximum[query];
      total.sum[query] = part.sum[query];
      std::memcpy(out, in, static_cast<size_t>(dim) * sizeof(float));
      return;
    }
    const float maximum = std::max(total.maximum[query], part.maximum[query]);
    float factors[2] = {total.maximum[query] - maximum, part.maximum[query] - maximum};
    kernel_.exp(factors, factors, 2);
    total.maximum[query] = maximum;
    total.sum[query] = std::fma(part.sum[query], factors[1], total.sum[query] * factors[0]);
    kernel_.scale(out, factors[0], out, dim);
    kernel_.axpy(factors[1], in, out, dim);
  }

  void finish(int64_t row, int64_t head, const float* total, float sum, const Rows& out) const {
    kernel_.scale(total, 1.0f / sum, out[row] + head * shape_.head_dim, shape_.head_dim);
  }

  // All blocks of a group, on one thread.
  void run_group(const Group& group, int thread, const Rows& out) const {
    const Workspace::Thread& mine = context_.workspace.thread(thread);
    const int64_t dim = shape_.head_dim;
    const int64_t capacity = Workspace::max_queries(context_.workspace.limits());
    const Part part{mine.sums, mine.sums + capacity, mine.partial, dim};
    const Part total{mine.sums + 2 * capacity, mine.sums + 3 * capacity, mine.running, dim};
    const int64_t n_blocks = blocks(group.first_row + group.n_rows - 1);
    for (int64_t b = 0; b < n_blocks; ++b) {
      block(group, b, thread, part);
      for (int64_t i = first_reaching(group, b * kAttentionBlock) * heads_;
           i < group.n_rows * heads_; ++i) {
        join(i, b, part, total);
      }
    }
    for (int64_t i = 0; i < group.n_rows * heads_; ++i) {
      finish(group.first_row + i / heads_, group.kv_head * heads_ + i % heads_, total.out + i * dim,
             total.sum[i], out);
    }
  }

 private:
  int64_t visible_in_block(int64_t row, int64_t start) const noexcept {
    return std::min(kAttentionBlock, count(row) - start);
  }

  // The first row of the group that sees a position at or after `start` of its list.
  int64_t first_reaching(const Group& group, int64_t start) const noexcept {
    int64_t row = 0;
    while (row < group.n_rows && count(group.first_row + row) <= start) ++row;
    return row;
  }

  void load_tile(const Group& group, int64_t start, int64_t n, const std::byte* base,
                 int64_t offset, float* out) const {
    const bool listed = !dense(group.first_row);
    const int32_t* list =
        listed ? visible_.positions + group.first_row * visible_.stride + start : nullptr;
    for (int64_t p = 0; p < n; ++p) {
      decode_kv(kernel_, cache_, base, listed ? list[p] : start + p, offset, shape_.head_dim,
                out + p * shape_.head_dim);
    }
  }

  void weigh_tile(const Group& group, int64_t row0, int64_t start, int64_t tile, int64_t n,
                  const Workspace::Thread& mine, const Part& part) const {
    const int64_t dim = shape_.head_dim;
    const auto call = [&](int64_t row, int64_t n_rows, int64_t n_positions) {
      const int64_t query = row * heads_;
      kernel_.weigh(mine.scores + (query - row0 * heads_) * kAttentionBlock + (tile - start),
                    kAttentionBlock, n_rows * heads_, mine.values, n_positions, dim,
                    part.out + query * part.out_stride, part.out_stride);
    };
    int64_t row = row0;
    for (; row < group.n_rows; ++row) {  // rows that end inside the tile
      const int64_t seen = count(group.first_row + row) - tile;
      if (seen >= n) break;
      if (seen > 0) call(row, 1, seen);
    }
    if (row < group.n_rows) call(row, group.n_rows - row, n);
  }

  Context& context_;
  const Kernels& kernel_;
  const AttentionShape& shape_;
  const KvCache& cache_;
  int64_t first_;
  const Rows& q_;
  const Visible& visible_;
  int64_t heads_;
};

int64_t partial_stride(const AttentionShape& shape) noexcept {
  return shape.head_dim + 8;
}

// Few rows: tasks are (row, kv head, block), a wave of blocks at a time.
void attend_few(Context& context, const Attention& attention, const AttentionShape& shape,
                const AttentionPartials& partials, const Rows& q, const Rows& out) {
  const int64_t heads = attention.heads();
  const int64_t stride = partial_stride(shape);
  // [rows][n_head_kv][kWave + 1][heads][stride]; slot kWave is the running total
  const auto place = [&](int64_t row, int64_t kv_head, int64_t slot) {
    float* data =
        partials.data + ((row * shape.n_head_kv + kv_head) * (kWave + 1) + slot) * heads * stride;
    float* sums = data + heads * shape.head_dim;
    return Part{sums, sums + heads, data, shape.head_dim};
  };
  int64_t most = 0;
  for (int64_t r = 0; r < q.count; ++r) most = std::max(most, attention.blocks(r));
  for (int64_t wave = 0; wave < most; wave += kWave) {
    const int64_t n_slots = std::min(kWave, most - wave);
    context.pool.parallel_for(q.count * shape.n_head_kv * n_slots, [&](int64_t task, int thread) {
      const int64_t slot = task % n_slots;
      const int64_t kv_head = task / n_slots % shape.n_head_kv;
      const int64_t row = task / n_slots / shape.n_head_kv;
      if (wave + slot >= attention.blocks(row)) return;
      attention.block({kv_head, row, 1}, wave + slot, thread, place(row, kv_head, slot));
    });
    for_ranges(context.pool, q.count * shape.n_head_kv, heads * n_slots * shape.head_dim,
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t row = i / shape.n_head_kv;
                   const int64_t kv_head = i % shape.n_head_kv;
                   const int64_t stop = std::min(n_slots, attention.blocks(row) - wave);
                   const Part total = place(row, kv_head, kWave);
                   for (int64_t slot = 0; slot < stop; ++slot) {
                     for (int64_t h = 0; h < heads; ++h) {
                       attention.join(h, wave + slot, place(row, kv_head, slot), total);
                     }
                   }
                 }
               });
  }
  for (int64_t row = 0; row < q.count; ++row) {
    for (int64_t kv_head = 0; kv_head < shape.n_head_kv; ++kv_head) {
      const Part total = place(row, kv_head, kWave);
      for (int64_t h = 0; h < heads; ++h) {
        attention.finish(row, kv_head * heads + h, total.out + h * total.out_stride, total.sum[h],
                         out);
      }
    }
  }
}

}  // namespace

void store_kv(Context& context, const KvCache& cache, int64_t position, const Rows& k,
              const Rows& v) {
  const Kernels& kernel = kernels();
  const uint64_t row_bytes = static_cast<uint64_t>(cache.width) * kv_bytes(cache.type);
  for_ranges(context.pool, k.count, 2 * cache.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const uint64_t at = static_cast<uint64_t>(position + r) * row_bytes;
      if (cache.type == KvType::F16) {
        kernel.to_half(k[r], reinterpret_cast<uint16_t*>(cache.k + at), cache.width);
        kernel.to_half(v[r], reinterpret_cast<uint16_t*>(cache.v + at), cache.width);
      } else {
        std::memcpy(cache.k + at, k[r], row_bytes);
        std::memcpy(cache.v + at, v[r], row_bytes);
      }
    }
  });
}

AttentionPartials attention_partials(Layout& layout, const AttentionShape& shape,
                                     int64_t max_rows) {
  return {layout.take<float>(max_rows * shape.n_head * (kWave + 1) * partial_stride(shape)),
          max_rows};
}

void attend(Context& context, const AttentionShape& shape, const KvCache& cache, int64_t first,
            const Rows& q, const Visible& visible, const AttentionPartials& partials,
            const Rows& out) {
  const Attention attention(context, shape, cache, first, q, visible);
  if (q.count <= partials.max_rows) {
    attend_few(context, attention, shape, partials, q, out);
    return;
  }
  // Many rows: tasks are (kv head, rows), each walking all its blocks. A row with a list stands
  // alone; dense rows share the decoded keys.
  const int64_t per_task =
      visible.counts != nullptr ? 1 : std::max<int64_t>(1, kQueryTile / attention.heads());
  const int64_t n_groups = (q.count + per_task - 1) / per_task;
  context.pool.parallel_for(n_groups * shape.n_head_kv, [&](int64_t task, int thread) {
    const int64_t index = n_groups - 1 - task / shape.n_head_kv;  // the longest first
    const int64_t row = index * per_task;
    attention.run_group({task % shape.n_head_kv, row, std::min(per_task, q.count - row)}, thread,
                        out);
  });
}

IndexScratch index_scratch(Layout& layout, int64_t max_blocks) {
  return {layout.take<float>(kIndexRows * max_blocks),
          layout.take<int32_t>(kIndexRows * max_blocks), max_blocks};
}

void select_blocks(Context& context, const IndexShape& shape, const float* keys, int64_t first,
                   const Rows& q, const IndexScratch& scratch, int32_t* positions,
                   int32_t* counts) {
  const Kernels& kernel = kernels();
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(shape.dim)));
  const auto complete = [&](int64_t row) { return (first + row + 1) / shape.block; };
  for (int64_t row0 = 0; row0 < q.count; row0 += kIndexRows) {
    const int64_t n_rows = std::min(kIndexRows, q.count - row0);
    if (complete(row0 + n_rows - 1) <= shape.budget) {
      std::fill_n(counts + row0, n_rows, 0);
      continue;
    }
    const int64_t range = kAttentionBlock;
    const int64_t n_ranges = (complete(row0 + n_rows - 1) + range - 1) / range;
    context.pool.parallel_for(n_rows * n_ranges, [&](int64_t task, int thread) {
      const Workspace::Thread& mine = context.workspace.thread(thread);
      const int64_t local = task / n_ranges;
      const int64_t start = (task % n_ranges) * range;
      const int64_t n = std::min(range, complete(row0 + local) - start);
      if (n <= 0 || complete(row0 + local) <= shape.budget) return;
      for (int64_t h = 0; h < shape.n_head; ++h) mine.queries[h] = q[row0 + local] + h * shape.dim;
      kernel.scores(mine.queries, shape.n_head, keys + start * shape.dim, n, shape.dim, 1.0f,
                    mine.scores, range);
      float* out = scratch.scores + local * scratch.max_blocks + start;
      for (int64_t b = 0; b < n; ++b) {
        float total = 0.0f;
        for (int64_t h = 0; h < shape.n_head; ++h) {
          const float score = mine.scores[h * range + b];
          total += score > 0.0f ? score : 0.0f;
        }
        out[b] = total / root;
      }
    });
    context.pool.parallel_for(n_rows, [&](int64_t local, int) {
      const int64_t row = row0 + local;
      const int64_t n_blocks = complete(row);
      counts[row] = 0;
      if (n_blocks <= shape.budget) return;
      const float* scores = scratch.scores + local * scratch.max_blocks;
      int32_t* order = scratch.order + local * scratch.max_blocks;
      for (int64_t b = 0; b < n_blocks; ++b) order[b] = static_cast<int32_t>(b);
      std::nth_element(order, order + shape.budget, order + n_blocks, [&](int32_t a, int32_t b) {
        return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
      });
      std::sort(order, order + shape.budget);
      int32_t* list = positions + row * shape.list_length();
      int32_t n = 0;
      for (int64_t b = 0; b < shape.budget; ++b) {
        for (int64_t i = 0; i < shape.block; ++i) {
          list[n++] = static_cast<int32_t>(order[b] * shape.block + i);
        }
      }
      for (int64_t p = n_blocks * shape.block; p <= first + row; ++p) {
        list[n++] = static_cast<int32_t>(p);
      }
      counts[row] = n;
    });
  }
}

}  // namespace penstock::ops
