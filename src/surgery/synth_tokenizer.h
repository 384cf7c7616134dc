// A plausible byte-level vocabulary for synthetic models: the 256 byte tokens, then letter
// combinations with the merges that make them, then the special tokens at their released ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::gguf {
class Writer;
}

namespace penstock::surgery {

struct SynthVocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;  // 1 normal, 3 control, 4 user-defined, 5 unused
  std::vector<std::string> merges;
  std::string pre;  // "qwen2" or "qwen35"
  uint32_t eos = 0;
  uint32_t pad = 0;
};

// `pre` chooses the special tokens. With fewer ids than the released vocabulary the special tokens
// take the last ones.
SynthVocabulary make_vocabulary(const std::string& pre, uint64_t n_vocab);

void write_tokenizer(const SynthVocabulary& vocabulary, gguf::Writer* writer);

}  // namespace penstock::surgery
