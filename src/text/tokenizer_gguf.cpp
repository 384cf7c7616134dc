#include "text/tokenizer_gguf.h"

#include <limits>

#include "base/error.h"
#include "gguf/metadata.h"

namespace penstock::text {

TokenizerData load_tokenizer(const gguf::Metadata& metadata) {
  TokenizerData data;
  data.model = metadata.get_string("tokenizer.ggml.model");
  if (data.model != "gpt2") {
    fail(ErrorKind::Unsupported,
         "{}: tokenizer.ggml.model is '{}'; this build knows gpt2 (byte-level BPE)",
         metadata.path(), gguf::printable(data.model));
  }
  data.pre = metadata.get_string("tokenizer.ggml.pre");
  for (const std::string_view token : metadata.get_string_array("tokenizer.ggml.tokens")) {
    data.tokens.emplace_back(token);
  }
  for (const std::string_view merge : metadata.get_string_array("tokenizer.ggml.merges")) {
    data.merges.emplace_back(merge);
  }
  if (metadata.has("tokenizer.ggml.token_type")) {
    for (const int64_t type : metadata.get_i64_array("tokenizer.ggml.token_type")) {
      if (type < 1 || type > 6) {
        fail(ErrorKind::Format, "{}: tokenizer.ggml.token_type has the value {}; expected 1 to 6",
             metadata.path(), type);
      }
      data.token_type.push_back(static_cast<int32_t>(type));
    }
  }
  const auto id = [&](const char* key) -> std::optional<int32_t> {
    if (!metadata.has(key)) return std::nullopt;
    const int64_t value = metadata.get_i64(key);
    // Converters write -1 or 2^32-1 for "none".
    if (value < 0 || value == std::numeric_limits<uint32_t>::max()) return std::nullopt;
    if (value >= static_cast<int64_t>(data.tokens.size())) {
      fail(ErrorKind::Format, "{}: {} is {} but there are {} tokens", metadata.path(), key, value,
           data.tokens.size());
    }
    return static_cast<int32_t>(value);
  };
  data.bos = id("tokenizer.ggml.bos_token_id");
  data.eos = id("tokenizer.ggml.eos_token_id");
  data.pad = id("tokenizer.ggml.padding_token_id");
  data.eot = id("tokenizer.ggml.eot_token_id");
  data.eom = id("tokenizer.ggml.eom_token_id");
  if (metadata.has("tokenizer.ggml.add_bos_token")) {
    data.add_bos = metadata.get_bool("tokenizer.ggml.add_bos_token");
  }
  data.chat_template = metadata.get_string("tokenizer.chat_template", "");
  return data;
}

}  // namespace penstock::text
