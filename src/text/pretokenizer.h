// Splitting text into the pieces within which byte pairs are merged. Hand-written equivalents of
// the models' regular expressions (docs/decisions entry on the text room): linear time, no regex
// engine, and the character classes of the library the models were trained with.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::text {

enum class PreTokenizer {
  Qwen2,      // qwen2, deepseek-r1-qwen, bailingmoe2: digits one by one
  Qwen35,     // qwen35: marks count as letters
  Llama3,     // llama-bpe, glm4, chatglm-bpe: digits in threes
  Gpt4o,      // gpt-4o: case-aware words
  DeepSeek3,  // deepseek-v3: numbers, then Han and kana, then the rest
};

struct PreType {
  PreTokenizer splitter;
  bool nfc;          // the model's own tokenizer normalises to NFC first
  bool whole_words;  // a whole piece that is a token is taken without merging
  bool add_bos;      // what to assume when the file does not say
};

// By `tokenizer.ggml.pre`; an unknown name is an error that lists the known ones.
PreType pre_type(std::string_view name);

// Appends the end offset of every piece of `text`, in order. Invalid bytes count as symbols, one
// each, as the U+FFFD would that other tools put in their place.
void split_pieces(PreTokenizer splitter, std::string_view text, std::vector<size_t>& ends);

}  // namespace penstock::text
