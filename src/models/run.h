// What one pass over the layers carries along, and the scratch rows that the blocks share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "experts/stream.h"
#include "models/config.h"
#include "models/model.h"
#include "models/observer.h"
#include "models/state.h"
#include "ops/attention.h"
#include "ops/matmul.h"

namespace penstock::models {

// The largest sizes among all blocks: scratch is laid out once for all of them.
struct Extents {
  int64_t n_head = 0;  // query heads of a block
  int64_t n_head_kv = 0;
  int64_t heads_per_kv = 1;
  int64_t n_expert = 0;
  int64_t n_used = 0;
  int64_t n_ff = 0;
  int64_t n_ff_shared = 0;
  int64_t n_in = 0;  // of any matrix
  int64_t table_row_bytes = 0;
  int64_t index_block = 0;  // 0: no sparse attention
  bool draft = false;
};

struct Buffers {
  // Buffers for up to n_rows rows; blocks whose work never overlaps share memory.
  Buffers(ops::Layout& layout, const Config& config, const Extents& extents, int64_t n_rows,
          int64_t n_ctx);

  int64_t n_rows;

  // alive through a layer
  ops::Rows residual;  // [n_wide]
  ops::Rows x, y;      // [n_embd] input and output of a block
  ops::Rows inject;    // [n_streams]
  ops::Angles angles;  // of the rows' positions
  ops::Activations x_acts;
  std::span<float*> outs;  // for ops::matmul

  struct Hyper {
    ops::Rows norm, gate;  // [n_wide]
    ops::Rows low;         // [hc_rank]
    ops::Activations norm_acts, low_acts;
  } hyper;

  struct Attention {
    ops::Rows q_gate;  // q and gate rows as projected
    ops::Rows q, k, v, out;
    ops::Activations out_acts;
    ops::AttentionPartials partials;
    ops::Rows index_q, index_raw, index_mean;
    ops::Angles index_angles;
    ops::IndexScratch index;
    int32_t* positions = nullptr;
    int32_t* counts = nullptr;
  } attention;

  struct Delta {
    ops::Rows raw;  // projections, before the convolution
    ops::Rows qkv, decay, beta, z, out;
    ops::Activations out_acts;
  } delta;

  struct Moe {
    ops::Rows logits;  // [n_expert]
    ops::Rows shared_gate, shared_up, shared_y, shared_scale;
    ops::Activations shared_acts;
    ops::Rows gate, up, out;  // one row per (row, rank)
    ops::Activations hidden_acts;
    int32_t* sorted = nullptr;  // pairs by expert
    int32_t* starts = nullptr;  // [n_expert + 1]
    int32_t* batch_pairs = nullptr;
    const void** gate_acts = nullptr;  // by place in `sorted`
    const void** up_acts = nullptr;
    const void** hidden = nullptr;
    float** gate_outs = nullptr;
    float** up_outs = nullptr;
    float** down_outs = nullptr;
    ops::Job* jobs = nullptr;
    int64_t* job_starts = nullptr;
  } moe;

  // For predicting later layers' selections in decode; beside Moe, not in its place.
  struct Ahead {
    ops::Rows logits;    // [n_expert]
    ops::Rows x;         // [n_embd]
    ops::Rows residual;  // [n_embd], with the shared expert's output
    ops::Activations acts;
  } ahead;

  struct Ngram {
    int64_t* ids = nullptr;
    std::byte* bytes = nullptr;
    ops::Rows embedding;          // [heads * row_width]
    ops::Rows key, query, value;  // [n_wide], [n_wide], [n_embd]
    ops::Rows gated, norm, conv;  // [n_wide]
    ops::Activations acts;
  } ngram;

  struct Draft {
    ops::Rows hidden;  // [n_wide]
    ops::Rows concat;  // [2 n_embd]
    ops::Activations acts;
  } draft;
};

struct Run {
  ops::Context ops;
  Buffers& buffers;
  State& state;
  experts::Stream& stream;
  experts::Phase phase;
  int64_t first;  // position of row 0
  int64_t rows;
  bool keep;  // recurrent states advance; else the rows' inputs are held for commit()
  const Tap& tap;
  ComputeObserver* observer = nullptr;
  int64_t row0 =
      0;  // of these rows in what is laid out for several sequences: residual, n-gram ids

  ops::Rows residual() const noexcept { return buffers.residual.from(row0, rows); }

  // To the tap, if there is one; `position` is the first row's.
  void show(std::string_view what, int layer, int64_t position, const ops::Rows& values) const;
  void show_ids(std::string_view what, int layer, int64_t position, std::span<const int32_t> ids,
                int width) const;
  void products(ops::Activations& input, std::initializer_list<ops::Product> list) {
    if (observer != nullptr) {
      for (const ops::Product& product : list) observer->product(*product.matrix, input.rows());
    }
    ops::matmul(ops, input, {list.begin(), list.size()}, buffers.outs);
  }
};

}  // namespace penstock::models
