// Text to token ids and back, from the vocabulary in a model file.
//
//   Tokenizer tokenizer(load_tokenizer(file));            // text/tokenizer_gguf.h
//   auto ids = tokenizer.encode("<|im_start|>", true);    // one control token
//   auto same = tokenizer.encode("<|im_start|>", false);  // the characters, as text
//   auto prompt = tokenizer.encode_pieces(chat.render(request));
//   TokenStream out(tokenizer); out.push(id) ... out.flush();   // text/utf8_stream.h
//
// Every member is const and safe to call from any number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/piece.h"
#include "text/pretokenizer.h"

namespace penstock::text {

enum class TokenType : int32_t {
  Normal = 1,
  Unknown = 2,
  Control = 3,
  UserDefined = 4,
  Unused = 5,
  Byte = 6,
};

// What a model file says, under the names of its `tokenizer.ggml.*` keys.
struct TokenizerData {
  std::string model = "gpt2";
  std::string pre;
  std::vector<std::string> tokens;  // normal ones in the byte alphabet, the others as text
  std::vector<int32_t> token_type;  // TokenType each; empty = all normal
  std::vector<std::string> merges;  // "left right", lowest rank first
  std::optional<int32_t> bos, eos, pad, eot, eom;
  std::optional<bool> add_bos;
  std::optional<bool> nfc;  // overrides what the pre-tokenizer's name implies
  std::string chat_template;
};

class Tokenizer {
 public:
  // Throws on an unknown model or pre-tokenizer, a merge outside the vocabulary, ids out of range.
  explicit Tokenizer(const TokenizerData& data);

  // With `parse_special` text that spells a control token becomes that token; without, it stays
  // text. User-defined tokens are matched either way, as added tokens that are not special are in
  // the reference library. Bytes that are not UTF-8 are encoded as they are, so that decoding gives
  // them back. Never adds BOS.
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const;

  // The ids of the joined text, as if it were encoded in one go, except that control tokens are
  // recognised only where every byte came from the template. No text of a user can make one, nor
  // hide one of the template's.
  std::vector<int32_t> encode_pieces(std::span<const Piece> pieces) const;

  // Puts BOS in front if the model wants one and it is not there yet (a template may write it).
  void prepend_bos(std::vector<int32_t>& ids) const;

  // Bytes, not always UTF-8: a character may be spread over several tokens (text/utf8_stream.h).
  // Control, unknown and unused tokens give nothing unless `render_control`.
  std::string decode(std::span<const int32_t> ids, bool render_control = false) const;

  size_t size() const noexcept { return texts_.size(); }
  // The bytes of a token, or the name of a control token. Throws if there is no such id.
  std::string_view token_text(int32_t id) const;
  TokenType token_type(int32_t id) const;
  // The special token of this name, or the token of these bytes.
  std::optional<int32_t> token_id(std::string_view text) const;

  std::optional<int32_t> bos() const noexcept { return bos_; }
  std::optional<int32_t> eos() const noexcept { return eos_; }
  std::optional<int32_t> pad() const noexcept { return pad_; }
  bool add_bos() const noexcept { return add_bos_; }
  // Every id that ends a generation: the file's eos, eot and eom, and the control tokens whose
  // names say so. Files often name only one of the several that the model emits. Sorted.
  const std::vector<int32_t>& stop_ids() const noexcept { return stop_ids_; }
  bool is_stop(int32_t id) const noexcept;

 private:
  struct TrustedRun {
    size_t end;
    bool trusted;
  };
  class Encoder;

  void load_tokens(const TokenizerData& data);
  void load_merges(const TokenizerData& data);
  void load_special_ids(const TokenizerData& data);
  std::vector<int32_t> encode_runs(std::string_view text, std::span<const TrustedRun> runs) const;

  PreType pre_;
  TokenTable texts_;
  std::vector<uint8_t> types_;
  MergeTable merges_;
  AddedTokens added_;
  int32_t byte_ids_[256];
  std::optional<int32_t> bos_, eos_, pad_;
  bool add_bos_ = false;
  std::vector<int32_t> stop_ids_;
};

}  // namespace penstock::text
