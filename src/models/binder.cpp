#include "models/binder.h"

#include "base/error.h"
#include "models/params.h"
#include "quant/codec.h"
#include "quant/matmul.h"

namespace penstock::models {

namespace {

ops::Matrix as_stored(const gguf::Tensor& tensor) {
  return {tensor.type,
          nullptr,
          tensor.row_bytes,
          static_cast<int64_t>(tensor.ne[0]),
          static_cast<int64_t>(tensor.rows()),
          tensor.name};
}

}  // namespace

std::string block_name(int layer, std::string_view suffix) {
  return fmt::format("blk.{}.{}", layer, suffix);
}

const gguf::Tensor& Binder::take(const std::string& name) {
  const gguf::Tensor* tensor = file_.find(name);
  if (tensor == nullptr) {
    fail(ErrorKind::Format,
         "{}: tensor {} is missing; the file is incomplete or not of architecture {}", file_.path(),
         name, file_.architecture());
  }
  const std::string scale = name.substr(0, name.rfind('.')) + ".scale";
  if (tensor->type == gguf::TypeId::NVFP4 || file_.find(scale) != nullptr) {
    fail(ErrorKind::Unsupported, "{}: tensor {} is NVFP4 with a separate scale, which is not known",
         file_.path(), name);
  }
  taken_.insert(name);
  return *tensor;
}

void Binder::wrong_shape(const gguf::Tensor& tensor, const std::string& wanted) const {
  fail(ErrorKind::Format,
       "{}: tensor {} has shape {} where the hyper-parameters ask for {}; the file is damaged or a "
       "private variant",
       file_.path(), tensor.name, gguf::shape_text(tensor), wanted);
}

void Binder::check_kernel(const gguf::Tensor& tensor) const {
  if (!quant::has_kernel(tensor.type)) {
    fail(ErrorKind::Unsupported, "{}: tensor {} has type {}, for which there is no kernel",
         file_.path(), tensor.name, gguf::type_name(tensor.type));
  }
}

void Binder::check_matrix(const gguf::Tensor& tensor, int64_t n_in, int64_t n_out) const {
  const auto ne0 = static_cast<int64_t>(tensor.ne[0]);
  const auto ne1 = static_cast<int64_t>(tensor.rows());
  if (ne0 != n_in || tensor.ne[2] != 1 || tensor.ne[3] != 1 || (n_out >= 0 && ne1 != n_out)) {
    wrong_shape(tensor,
                n_out >= 0 ? fmt::format("[{}, {}]", n_in, n_out) : fmt::format("[{}, any]", n_in));
  }
}

void Binder::matrix(ops::Matrix* out, const std::string& name, int64_t n_in, int64_t n_out) {
  const gguf::Tensor& tensor = take(name);
  check_matrix(tensor, n_in, n_out);
  check_kernel(tensor);
  *out = as_stored(tensor);
  store_.add_matrix(out, file_, tensor);
}

void Binder::f32_matrix(ops::Matrix* out, const std::string& name, int64_t n_in, int64_t n_out) {
  const gguf::Tensor& tensor = take(name);
  check_matrix(tensor, n_in, n_out);
  if (tensor.type == gguf::TypeId::F32) {
    check_kernel(tensor);
    *out = as_stored(tensor);
    store_.add_verbatim(out, file_, tensor);
    return;
  }
  if (!quant::can_decode(tensor.type)) check_kernel(tensor);
  *out = {gguf::TypeId::F32,
          nullptr,
          static_cast<uint64_t>(n_in) * 4,
          n_in,
          static_cast<int64_t>(tensor.rows()),
          name};
  store_.add_decoded(out, file_, tensor);
}

void Binder::gathered(ops::Matrix* out, const std::string& name, int64_t n_in, int64_t n_out,
                      std::vector<int64_t> rows, int64_t tensor_rows) {
  const gguf::Tensor& tensor = take(name);
  check_matrix(tensor, n_in, tensor_rows);
  check_kernel(tensor);
  *out = {tensor.type, nullptr, tensor.row_bytes, n_in, n_out, name};
  store_.add_gathered(out, file_, tensor, std::move(rows));
}

void Binder::floats(const float** out, const std::string& name, int64_t n) {
  const gguf::Tensor& tensor = take(name);
  if (tensor.n_elements() != static_cast<uint64_t>(n) || !quant::can_decode(tensor.type)) {
    wrong_shape(tensor, fmt::format("[{}] of floats", n));
  }
  store_.add_floats(out, file_, tensor, false);
}

bool Binder::floats_if_present(const float** out, const std::string& name, int64_t n) {
  if (!has(name)) return false;
  floats(out, name, n);
  return true;
}

void Binder::convolution(const float** out, const std::string& name, int64_t n_taps,
                         int64_t channels) {
  const gguf::Tensor& tensor = take(name);
  check_matrix(tensor, n_taps, channels);
  if (!quant::can_decode(tensor.type)) check_kernel(tensor);
  store_.add_floats(out, file_, tensor, true);
}

experts::MatrixGeometry Binder::part(const gguf::Tensor& tensor, int64_t n_out, uint64_t first_row,
                                     uint32_t first_shard) const {
  check_kernel(tensor);
  return {tensor.type,
          static_cast<int64_t>(tensor.ne[0]),
          n_out,
          tensor.row_bytes,
          static_cast<uint64_t>(n_out) * tensor.row_bytes,
          first_shard + tensor.shard,
          tensor.offset + first_row * tensor.row_bytes,
          tensor.slice_bytes()};
}

// spec/moe-architectures.md §1.5: counts, widths and types may differ per layer.
experts::LayerGeometry Binder::bank(int layer, int64_t n_embd, int n_used, uint32_t first_shard) {
  experts::LayerGeometry g;
  g.layer = layer;
  g.n_used = n_used;
  const gguf::Tensor& down = take(block_name(layer, "ffn_down_exps.weight"));
  const auto n_ff = static_cast<int64_t>(down.ne[0]);
  const uint64_t n_expert = down.ne[2];
  const auto check = [&](const gguf::Tensor& t, int64_t n_in, int64_t n_out) {
    if (t.ne[0] != static_cast<uint64_t>(n_in) || t.ne[1] != static_cast<uint64_t>(n_out) ||
        t.ne[2] != n_expert || t.ne[3] != 1) {
      wrong_shape(t, fmt::format("[{}, {}, {}]", n_in, n_out, n_expert));
    }
  };
  if (n_ff < 1 || n_ff > kMostWidth || n_expert < 1 || n_expert > kMostExperts) {
    wrong_shape(down, fmt::format("[1..{}, {}, 1..{}]", kMostWidth, n_embd, kMostExperts));
  }
  check(down, n_ff, n_embd);
  g.n_expert = static_cast<int>(n_expert);
  if (n_used > g.n_expert) {
    fail(ErrorKind::Format, "{}: block {} has {} experts, but {} of them are to be used per token",
         file_.path(), layer, n_expert, n_used);
  }
  g.down = part(down, n_embd, 0, first_shard);
  const std::string merged = block_name(layer, "ffn_gate_up_exps.weight");
  if (has(merged)) {
    const gguf::Tensor& both = take(merged);
    check(both, n_embd, 2 * n_ff);
    g.merged = true;
    g.gate = part(both, n_ff, 0, first_shard);
    g.up = part(both, n_ff, static_cast<uint64_t>(n_ff), first_shard);
  } else {
    const gguf::Tensor& gate = take(block_name(layer, "ffn_gate_exps.weight"));
    const gguf::Tensor& up = take(block_name(layer, "ffn_up_exps.weight"));
    check(gate, n_embd, n_ff);
    check(up, n_embd, n_ff);
    g.gate = part(gate, n_ff, 0, first_shard);
    g.up = part(up, n_ff, 0, first_shard);
  }
  return g;
}

std::vector<const gguf::Tensor*> Binder::unused() const {
  std::vector<const gguf::Tensor*> tensors;
  for (const gguf::Tensor& tensor : file_.tensors()) {
    if (!taken_.contains(tensor.name)) tensors.push_back(&tensor);
  }
  return tensors;
}

}  // namespace penstock::models
