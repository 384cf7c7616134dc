// The GGUF reader on arbitrary bytes: it may refuse with an Error and nothing else; what it accepts
// must be readable to the last byte.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "gguf/model.h"

using namespace penstock;

namespace {

template <typename F>
void tolerate(F&& call) {
  try {
    call();
  } catch (const Error&) {  // the wrong getter for the type: an answer, not a finding
  }
}

void read_everything(const gguf::Model& model, uint64_t size) {
  const gguf::Metadata& metadata = model.metadata();
  for (const gguf::Entry& entry : metadata.entries()) {
    if (metadata.find(entry.key) != &entry) std::abort();
    if (entry.offset > size || entry.bytes.size() > size - entry.offset) std::abort();
    tolerate([&] { metadata.get_u64(entry.key); });
    tolerate([&] { metadata.get_i64(entry.key); });
    tolerate([&] { metadata.get_f64(entry.key); });
    tolerate([&] { metadata.get_bool(entry.key); });
    tolerate([&] { metadata.get_string(entry.key); });
    tolerate([&] { metadata.get_u64_array(entry.key); });
    tolerate([&] { metadata.get_i64_array(entry.key); });
    tolerate([&] { metadata.get_f64_array(entry.key); });
    tolerate([&] { metadata.get_bool_array(entry.key); });
    tolerate([&] { metadata.get_string_array(entry.key); });
    tolerate([&] { metadata.get_u64_per_layer(entry.key, 8); });
  }
  bool complete = true;
  for (const gguf::Tensor& tensor : model.tensors()) {
    if (model.find(tensor.name) != &tensor) std::abort();
    if (!tensor.present) {
      complete = false;
      continue;
    }
    if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
    tolerate([&] { gguf::check_finite(model, tensor); });
  }
  if (complete) model.model_id();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  log::set_level(log::Level::Quiet);
  const auto bytes = std::as_bytes(std::span(data, size));
  for (const bool dense_only : {false, true}) {
    gguf::OpenOptions options;
    options.allow_missing_experts = dense_only;
    tolerate([&] { read_everything(gguf::Model::from_memory(bytes, "fuzz.gguf", options), size); });
  }
  return 0;
}
