#include "ops/matmul.h"

#include <algorithm>

#include "base/error.h"

namespace penstock::ops {
namespace {

constexpr int64_t kTaskBytes = 96 << 10;  // weights of one task when there are enough of them
constexpr int64_t kActBytes = 256 << 10;  // activations of one task, so that they stay in L2

struct Split {
  int64_t rows;    // weight rows per task
  int64_t tokens;  // activation rows per task
  int64_t row_blocks;
  int64_t token_tiles;
};

// Any split gives the same bits; this one keeps the threads busy and the operands in cache.
Split split(const Job& job, quant::Precision precision, int n_threads) noexcept {
  const auto row_bytes = static_cast<int64_t>(job.row_bytes);
  int64_t rows = std::max<int64_t>(8, kTaskBytes / std::max<int64_t>(1, row_bytes));
  const int64_t share = (job.n_out + 4 * n_threads - 1) / (4 * n_threads);
  rows = std::clamp<int64_t>((std::min(rows, share) + 7) / 8 * 8, 8, 512);
  const auto act =
      static_cast<int64_t>(quant::act_bytes(quant::act_kind(job.type, precision), job.n_in));
  const int64_t tokens = std::clamp<int64_t>(kActBytes / std::max<int64_t>(1, act), 16, kTokenTile);
  return {rows, tokens, (job.n_out + rows - 1) / rows, (job.n_tokens + tokens - 1) / tokens};
}

}  // namespace

Activations::Activations(Layout& layout, int64_t max_rows, int64_t width) : width_(width) {
  for (int kind = 0; kind < 3; ++kind) {
    Form& form = forms_[kind];
    form.pointers = layout.take<const void*>(max_rows);
    if (kind == static_cast<int>(quant::ActKind::F32)) continue;
    const auto bytes =
        static_cast<int64_t>(quant::act_bytes(static_cast<quant::ActKind>(kind), width));
    form.data = layout.take<std::byte>(max_rows * bytes);
  }
}

void Activations::set(Rows rows) noexcept {
  rows_ = rows;
  width_ = rows.width;
  for (Form& form : forms_) form.made = false;
}

const void* const* Activations::begin_form(gguf::TypeId type, quant::Precision precision) {
  const quant::ActKind kind = quant::act_kind(type, precision);
  Form& form = forms_[static_cast<int>(kind)];
  const size_t bytes = quant::act_bytes(kind, width_);
  for (int64_t r = 0; r < rows_.count; ++r) {
    form.pointers[r] = kind == quant::ActKind::F32 ? static_cast<const void*>(rows_[r])
                                                   : form.data + static_cast<size_t>(r) * bytes;
  }
  form.made = true;
  return form.pointers;
}

void Activations::make_row(quant::ActKind kind, int64_t row) const noexcept {
  if (kind == quant::ActKind::F32) return;
  const Form& form = forms_[static_cast<int>(kind)];
  quant::quantize_act(kind, rows_[row],
                      form.data + static_cast<size_t>(row) * quant::act_bytes(kind, width_),
                      width_);
}

const void* const* Activations::form(Context& context, gguf::TypeId type) {
  const quant::ActKind kind = quant::act_kind(type, context.precision);
  if (!forms_[static_cast<int>(kind)].made) {
    begin_form(type, context.precision);
    if (kind != quant::ActKind::F32) {
      for_ranges(context.pool, rows_.count, width_, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) make_row(kind, r);
      });
    }
  }
  return forms_[static_cast<int>(kind)].pointers;
}

void run_jobs(Context& context, std::span<const Job> jobs, std::span<int64_t> starts) {
  const int n_threads = context.pool.size();
  int64_t n_tasks = 0;
  for (size_t j = 0; j < jobs.size(); ++j) {
    starts[j] = n_tasks;
    const Split s = split(jobs[j], context.precision, n_threads);
    n_tasks += s.row_blocks * s.token_tiles;
  }
  starts[jobs.size()] = n_tasks;
  const auto body = [&](int64_t task, int thread) {
    const auto last = starts.begin() + static_cast<std::ptrdiff_t>(jobs.size());
    const auto j =
        static_cast<size_t>(std::upper_bound(starts.begin(), last, task) - starts.begin() - 1);
    const Job& job = jobs[j];
    const Split s = split(job, context.precision, n_threads);
    const int64_t local = task - starts[j];
    const int64_t row = (local / s.token_tiles) * s.rows;
    const int64_t token = (local % s.token_tiles) * s.tokens;
    const Workspace::Thread& mine = context.workspace.thread(thread);
    const int64_t n_tokens = std::min(s.tokens, job.n_tokens - token);
    for (int64_t t = 0; t < n_tokens; ++t) mine.outs[t] = job.outs[token + t] + row;
    quant::matmul(job.type, context.precision,
                  {.weights = job.weights + static_cast<uint64_t>(row) * job.row_bytes,
                   .row_bytes = job.row_bytes,
                   .n_rows = std::min(s.rows, job.n_out - row),
                   .n_in = job.n_in,
                   .acts = job.acts + token,
                   .out = mine.outs,
                   .n_tokens = n_tokens,
                   .scratch = mine.matmul});
  };
  context.pool.parallel_for(n_tasks, body);
}

void matmul(Context& context, Activations& input, std::span<const Product> products,
            std::span<float*> outs) {
  Job jobs[kMaxProducts];
  int64_t starts[kMaxProducts + 1];
  const int64_t n_rows = input.rows().count;
  if (products.size() > kMaxProducts ||
      outs.size() < products.size() * static_cast<size_t>(n_rows)) {
    fail(ErrorKind::Internal, "matmul: {} products of {} rows do not fit", products.size(), n_rows);
  }
  for (size_t i = 0; i < products.size(); ++i) {
    const Matrix& matrix = *products[i].matrix;
    float** rows = outs.data() + i * static_cast<size_t>(n_rows);
    for (int64_t r = 0; r < n_rows; ++r) rows[r] = products[i].out[r];
    jobs[i] = {.type = matrix.type,
               .weights = matrix.data,
               .row_bytes = matrix.row_bytes,
               .n_in = matrix.n_in,
               .n_out = matrix.n_out,
               .acts = input.form(context, matrix.type),
               .outs = rows,
               .n_tokens = n_rows};
  }
  run_jobs(context, {jobs, products.size()}, {starts, products.size() + 1});
}

}  // namespace penstock::ops
