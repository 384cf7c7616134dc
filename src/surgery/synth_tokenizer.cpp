#include "surgery/synth_tokenizer.h"

#include <string_view>
#include <unordered_set>

#include "base/error.h"
#include "gguf/writer.h"

namespace penstock::surgery {
namespace {

struct Special {
  uint32_t id;
  const char* text;
  bool control;  // otherwise user-defined: kept when special tokens are skipped
};

// spec/qwen4exp.md §7.
constexpr Special kQwen35[] = {
    {248044, "<|endoftext|>", true},      {248045, "<|im_start|>", true},
    {248046, "<|im_end|>", true},         {248047, "<|object_ref_start|>", true},
    {248048, "<|object_ref_end|>", true}, {248049, "<|box_start|>", true},
    {248050, "<|box_end|>", true},        {248051, "<|quad_start|>", true},
    {248052, "<|quad_end|>", true},       {248053, "<|vision_start|>", true},
    {248054, "<|vision_end|>", true},     {248055, "<|vision_pad|>", true},
    {248056, "<|image_pad|>", true},      {248057, "<|video_pad|>", true},
    {248058, "<tool_call>", false},       {248059, "</tool_call>", false},
    {248060, "<|fim_prefix|>", false},    {248061, "<|fim_middle|>", false},
    {248062, "<|fim_suffix|>", false},    {248063, "<|fim_pad|>", false},
    {248064, "<|repo_name|>", false},     {248065, "<|file_sep|>", false},
    {248066, "<tool_response>", false},   {248067, "</tool_response>", false},
    {248068, "<think>", false},           {248069, "</think>", false},
    {248070, "<|audio_0|>", true},        {248071, "<|audio_1|>", true},
    {248072, "<|audio_2|>", true},        {248073, "<|audio_3|>", true},
    {248074, "<|audio_4|>", true},        {248075, "<|audio_5|>", true},
    {248076, "<|audio_6|>", true},
};

// spec/moe-architectures.md §9.
constexpr Special kQwen2[] = {
    {151643, "<|endoftext|>", true},      {151644, "<|im_start|>", true},
    {151645, "<|im_end|>", true},         {151646, "<|object_ref_start|>", true},
    {151647, "<|object_ref_end|>", true}, {151648, "<|box_start|>", true},
    {151649, "<|box_end|>", true},        {151650, "<|quad_start|>", true},
    {151651, "<|quad_end|>", true},       {151652, "<|vision_start|>", true},
    {151653, "<|vision_end|>", true},     {151654, "<|vision_pad|>", true},
    {151655, "<|image_pad|>", true},      {151656, "<|video_pad|>", true},
    {151657, "<tool_call>", false},       {151658, "</tool_call>", false},
    {151659, "<|fim_prefix|>", false},    {151660, "<|fim_middle|>", false},
    {151661, "<|fim_suffix|>", false},    {151662, "<|fim_pad|>", false},
    {151663, "<|repo_name|>", false},     {151664, "<|file_sep|>", false},
    {151665, "<tool_response>", false},   {151666, "</tool_response>", false},
    {151667, "<think>", false},           {151668, "</think>", false},
};

constexpr const char* kTemplate =
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + "
    "'<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' "
    "}}{%- endif %}";

std::string utf8(uint32_t code) {
  std::string out;
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 63));
  }
  return out;
}

// The characters of byte-level BPE in their usual order: printable bytes stand for themselves, the
// others for U+0100 and on.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> printable;
  std::vector<std::string> others;
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    if (plain) {
      printable.push_back(utf8(b));
    } else {
      others.push_back(utf8(next++));
    }
  }
  printable.insert(printable.end(), others.begin(), others.end());
  return printable;
}

class Builder {
 public:
  Builder(SynthVocabulary* out, uint64_t n) : out_(out), n_(n) {}

  void add(std::string text) {
    if (full() || !known_.insert(text).second) return;
    out_->tokens.push_back(std::move(text));
    out_->types.push_back(1);
  }
  // The token left + right, made by a merge of the two (both known).
  void merge(const std::string& left, const std::string& right) {
    if (full() || known_.count(left + right) != 0) return;
    out_->merges.push_back(left + " " + right);
    add(left + right);
  }
  bool full() const { return out_->tokens.size() >= n_; }

 private:
  SynthVocabulary* out_;
  uint64_t n_;
  std::unordered_set<std::string> known_;
};

// English letters by frequency, so that a small vocabulary still holds likely combinations.
constexpr std::string_view kLetters = "etaoinshrdlcumwfgypbvkjxqz";

void add_combinations(Builder* builder) {
  const std::string space = "\xC4\xA0";  // the byte-level character for a blank
  std::vector<std::string> letters;
  for (const char c : kLetters) letters.emplace_back(1, c);
  std::vector<std::string> pairs;
  for (const auto& a : letters) {
    for (const auto& b : letters) {
      builder->merge(a, b);
      pairs.push_back(a + b);
    }
  }
  for (const auto& pair : pairs) builder->merge(space, pair);
  for (const auto& a : letters) builder->merge(space, a);
  for (const auto& pair : pairs) {
    for (const auto& c : letters) {
      builder->merge(pair, c);
      if (builder->full()) return;
    }
  }
  for (const auto& pair : pairs) {
    for (const auto& c : letters) builder->merge(space + pair, c);
  }
  for (const auto& pair : pairs) {
    for (const auto& other : pairs) {
      builder->merge(pair, other);
      builder->merge(space + pair, other);
      if (builder->full()) return;
    }
  }
}

}  // namespace

SynthVocabulary make_vocabulary(const std::string& pre, uint64_t n_vocab) {
  const bool qwen35 = pre == "qwen35";
  const std::span<const Special> specials =
      qwen35 ? std::span<const Special>(kQwen35) : std::span<const Special>(kQwen2);
  if (n_vocab < 256 + specials.size()) {
    fail(ErrorKind::Usage, "a vocabulary of {} tokens is too small: at least {} are needed",
         n_vocab, 256 + specials.size());
  }
  const bool released = specials.back().id < n_vocab;
  const uint64_t first = released ? specials.front().id : n_vocab - specials.size();
  SynthVocabulary out;
  out.pre = pre;
  Builder builder(&out, first);
  for (std::string& token : byte_tokens()) builder.add(std::move(token));
  add_combinations(&builder);
  const auto add_unused = [&] {
    out.tokens.push_back("[unused" + std::to_string(out.tokens.size()) + "]");
    out.types.push_back(5);
  };
  while (out.tokens.size() < first) add_unused();
  for (const Special& special : specials) {
    out.tokens.emplace_back(special.text);
    out.types.push_back(special.control ? 3 : 4);
  }
  while (out.tokens.size() < n_vocab) add_unused();
  out.pad = static_cast<uint32_t>(first);
  out.eos = static_cast<uint32_t>(first + 2);
  return out;
}

void write_tokenizer(const SynthVocabulary& vocabulary, gguf::Writer* writer) {
  writer->set_string("tokenizer.ggml.model", "gpt2");
  writer->set_string("tokenizer.ggml.pre", vocabulary.pre);
  writer->set_string_array("tokenizer.ggml.tokens", vocabulary.tokens);
  writer->set_i32_array("tokenizer.ggml.token_type", vocabulary.types);
  writer->set_string_array("tokenizer.ggml.merges", vocabulary.merges);
  writer->set_u32("tokenizer.ggml.eos_token_id", vocabulary.eos);
  writer->set_u32("tokenizer.ggml.padding_token_id", vocabulary.pad);
  writer->set_u32("tokenizer.ggml.bos_token_id", vocabulary.pad);
  writer->set_bool("tokenizer.ggml.add_bos_token", false);
  writer->set_string("tokenizer.chat_template", kTemplate);
}

}  // namespace penstock::surgery
