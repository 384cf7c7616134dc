#include "surgery/imatrix.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "gguf/model.h"
#include "gguf/writer.h"

namespace penstock::surgery {
namespace {

constexpr std::string_view kSums = ".in_sum2";
constexpr std::string_view kCounts = ".counts";
constexpr const char* kDatasets = "imatrix.datasets";
constexpr const char* kChunks = "imatrix.chunk_count";
constexpr const char* kChunkTokens = "imatrix.chunk_size";

std::vector<float> read_floats(const gguf::Model& file, const gguf::Tensor& tensor) {
  if (tensor.type != gguf::TypeId::F32) {
    fail(ErrorKind::Format, "{}: {} is {}, an importance matrix holds F32", file.path(),
         tensor.name, gguf::type_name(tensor.type));
  }
  std::vector<float> values(tensor.n_elements());
  std::memcpy(values.data(), file.data(tensor), tensor.bytes);
  for (const float value : values) {
    if (!(value >= 0) || !std::isfinite(value)) {
      fail(ErrorKind::Format, "{}: {} holds {}; sums of squares are finite and not negative",
           file.path(), tensor.name, value);
    }
  }
  return values;
}

}  // namespace

const Importance* Imatrix::find(std::string_view tensor) const noexcept {
  const auto found = tensors.find(tensor);
  return found == tensors.end() ? nullptr : &found->second;
}

bool Imatrix::mean_squares(const Importance& importance, size_t mat,
                           std::span<float> out) noexcept {
  const size_t n_in = out.size();
  if (importance.counts[mat] > 0) {
    const float* sums = importance.sums.data() + mat * n_in;
    for (size_t i = 0; i < n_in; ++i) out[i] = sums[i] / importance.counts[mat];
    return true;
  }
  double tokens = 0;
  for (const float count : importance.counts) tokens += static_cast<double>(count);
  if (tokens == 0) return false;
  for (size_t i = 0; i < n_in; ++i) {
    double sum = 0;
    for (size_t m = 0; m < importance.n_mat(); ++m) {
      sum += static_cast<double>(importance.sums[m * n_in + i]);
    }
    out[i] = static_cast<float>(sum / tokens);
  }
  return true;
}

Imatrix read_imatrix(const std::string& path) {
  const gguf::Model file = gguf::Model::open(path);
  const gguf::Metadata& metadata = file.metadata();
  const std::string_view type = metadata.get_string("general.type", "");
  if (type != "imatrix") {
    fail(ErrorKind::Format,
         "{} is no importance matrix: its general.type is '{}'. Write one with `penstock calibrate "
         "MODEL --text FILE --imatrix-out OUT.gguf`",
         path, gguf::printable(type));
  }
  Imatrix imatrix;
  if (metadata.has(kDatasets)) {
    for (const std::string_view name : metadata.get_string_array(kDatasets)) {
      imatrix.datasets.emplace_back(name);
    }
  }
  imatrix.n_chunks = static_cast<uint32_t>(metadata.get_u64(kChunks, 0));
  imatrix.chunk_tokens = static_cast<uint32_t>(metadata.get_u64(kChunkTokens, 0));
  for (const gguf::Tensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kSums)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kSums.size());
    const gguf::Tensor* counts = file.find(name + std::string(kCounts));
    if (counts == nullptr) {
      fail(ErrorKind::Format, "{}: {} has no {}{}", path, tensor.name, name, kCounts);
    }
    Importance importance;
    importance.n_in = static_cast<int64_t>(tensor.ne[0]);
    importance.sums = read_floats(file, tensor);
    importance.counts = read_floats(file, *counts);
    if (importance.counts.size() != tensor.rows()) {
      fail(ErrorKind::Format, "{}: {} has {} rows, but {}{} holds {} values", path, tensor.name,
           tensor.rows(), name, kCounts, importance.counts.size());
    }
    imatrix.tensors.emplace(name, std::move(importance));
  }
  if (imatrix.tensors.empty()) {
    fail(ErrorKind::Format, "{}: no tensor *{} in this importance matrix", path, kSums);
  }
  return imatrix;
}

void write_imatrix(const std::string& path, const Imatrix& imatrix) {
  gguf::Writer writer(path);
  writer.set_string("general.type", "imatrix");
  writer.set_string_array(kDatasets, imatrix.datasets);
  writer.set_u32(kChunks, imatrix.n_chunks);
  writer.set_u32(kChunkTokens, imatrix.chunk_tokens);
  for (const auto& [name, importance] : imatrix.tensors) {
    const auto n_in = static_cast<uint64_t>(importance.n_in);
    const uint64_t sums[] = {n_in, importance.n_mat()};
    const uint64_t counts[] = {1, importance.n_mat()};
    writer.add_tensor(name + std::string(kSums), gguf::TypeId::F32, sums);
    writer.add_tensor(name + std::string(kCounts), gguf::TypeId::F32, counts);
  }
  writer.begin();
  for (const auto& [name, importance] : imatrix.tensors) {
    writer.append(std::as_bytes(std::span(importance.sums)));
    writer.append(std::as_bytes(std::span(importance.counts)));
  }
  writer.finish();
}

}  // namespace penstock::surgery
