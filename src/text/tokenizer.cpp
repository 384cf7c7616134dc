#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <functional>
#include <limits>

#include "base/error.h"
#include "text/unicode.h"

namespace penstock::text {
namespace {

// Names that end a turn in the published vocabularies; honoured only when the file marks the token
// as special. `<|end|>` ends every harmony message, so it counts only without `<|return|>`.
constexpr std::array<std::string_view, 19> kStopNames = {"<|im_end|>",
                                                         "<|endoftext|>",
                                                         "<|end_of_text|>",
                                                         "<|eot_id|>",
                                                         "<|eom_id|>",
                                                         "<|return|>",
                                                         "<|call|>",
                                                         "<end_of_turn>",
                                                         "</s>",
                                                         "<eos>",
                                                         "<EOT>",
                                                         "_<EOT>",
                                                         "[EOT]",
                                                         "[EOS]",
                                                         "<|role_end|>",
                                                         "<|end_of_turn|>",
                                                         "<|END_OF_TURN_TOKEN|>",
                                                         "<end_of_utterance>",
                                                         "<｜end▁of▁sentence｜>"};

std::string_view printable(std::string_view text) {
  return text.substr(0, 80);
}

}  // namespace

Tokenizer::Tokenizer(const TokenizerData& data) : pre_(pre_type(data.pre)) {
  if (data.model != "gpt2") {
    fail(ErrorKind::Unsupported,
         "tokenizer.ggml.model '{}' is not supported; known: gpt2 (byte-level BPE)", data.model);
  }
  if (data.nfc) pre_.nfc = *data.nfc;
  load_tokens(data);
  load_merges(data);
  load_special_ids(data);
}

void Tokenizer::load_tokens(const TokenizerData& data) {
  if (data.tokens.empty()) fail(ErrorKind::Format, "tokenizer.ggml.tokens is empty");
  if (data.tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    fail(ErrorKind::Format, "tokenizer.ggml.tokens has {} entries", data.tokens.size());
  }
  if (!data.token_type.empty() && data.token_type.size() != data.tokens.size()) {
    fail(ErrorKind::Format, "tokenizer.ggml.token_type has {} entries for {} tokens",
         data.token_type.size(), data.tokens.size());
  }
  types_.reserve(data.tokens.size());
  std::string bytes;
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const int32_t type = data.token_type.empty() ? 1 : data.token_type[i];
    if (type < 1 || type > 6) {
      fail(ErrorKind::Format, "tokenizer.ggml.token_type[{}] is {}; expected 1 to 6", i, type);
    }
    types_.push_back(static_cast<uint8_t>(type));
    const std::string& spelled = data.tokens[i];
    const auto kind = static_cast<TokenType>(type);
    bytes.clear();
    // A normal token with a character outside the alphabet stands for its own spelling.
    const bool normal = kind == TokenType::Normal || kind == TokenType::Byte;
    if (!normal || !decode_byte_alphabet(spelled, bytes)) bytes = spelled;
    const int32_t id = texts_.add(bytes);
    if (kind != TokenType::Control && kind != TokenType::UserDefined) continue;
    if (bytes.size() > AddedTokens::kMaxLength) {
      fail(ErrorKind::Format, "token {} is special and {} bytes long; the limit is {}", i,
           bytes.size(), AddedTokens::kMaxLength);
    }
    added_.add(bytes, id, kind == TokenType::Control);
  }
  texts_.index([this](int32_t id) {
    return types_[static_cast<size_t>(id)] == static_cast<uint8_t>(TokenType::Normal);
  });
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const int32_t id = texts_.find(std::string_view(&byte, 1));
    const bool normal = id >= 0 && types_[static_cast<size_t>(id)] == 1;
    byte_ids_[b] = normal ? id : -1;
  }
}

void Tokenizer::load_merges(const TokenizerData& data) {
  merges_.reserve(data.merges.size());
  std::string left, right;
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const std::string& line = data.merges[rank];
    const size_t space = line.find(' ', 1);
    if (space == std::string::npos || space + 1 == line.size()) {
      fail(ErrorKind::Format, "tokenizer.ggml.merges[{}] is '{}'; expected two tokens", rank,
           printable(line));
    }
    left.clear();
    right.clear();
    const std::string_view view = line;
    if (!decode_byte_alphabet(view.substr(0, space), left)) left = view.substr(0, space);
    if (!decode_byte_alphabet(view.substr(space + 1), right)) right = view.substr(space + 1);
    const int32_t a = texts_.find(left), b = texts_.find(right), c = texts_.find(left + right);
    if (a < 0 || b < 0 || c < 0) {
      fail(ErrorKind::Format, "tokenizer.ggml.merges[{}] '{}': {} is not in the vocabulary", rank,
           printable(line),
           a < 0   ? "the first"
           : b < 0 ? "the second"
                   : "the result");
    }
    merges_.add(a, b, {static_cast<uint32_t>(rank), c});
  }
}

void Tokenizer::load_special_ids(const TokenizerData& data) {
  const auto checked = [&](std::optional<int32_t> id, std::string_view key) {
    // Some converters write 2^32-1 or -1 for "none".
    if (id && *id < 0) id.reset();
    if (id && static_cast<size_t>(*id) >= size()) {
      fail(ErrorKind::Format, "tokenizer.ggml.{}_token_id is {} but there are {} tokens", key, *id,
           size());
    }
    return id;
  };
  bos_ = checked(data.bos, "bos");
  eos_ = checked(data.eos, "eos");
  pad_ = checked(data.pad, "padding");
  add_bos_ = data.add_bos.value_or(pre_.add_bos) && bos_.has_value();
  const auto stop = [&](std::optional<int32_t> id) {
    if (id) stop_ids_.push_back(*id);
  };
  stop(eos_);
  stop(checked(data.eot, "eot"));
  stop(checked(data.eom, "eom"));
  const auto special = [&](std::string_view name) -> std::optional<int32_t> {
    const AddedTokens::Match match = added_.longest(name, 0);
    if (match.id < 0 || match.length != name.size()) return std::nullopt;
    return match.id;
  };
  for (const std::string_view name : kStopNames) stop(special(name));
  if (!special("<|return|>")) stop(special("<|end|>"));
  std::sort(stop_ids_.begin(), stop_ids_.end());
  stop_ids_.erase(std::unique(stop_ids_.begin(), stop_ids_.end()), stop_ids_.end());
}

// The state of one call: scratch buffers and a cache of the pieces met so far. It lives in the call
// so that encoding needs no lock and leaves no trace of one user's text to the next.
class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, size_t length)
      : tokenizer_(tokenizer), cache_(std::bit_ceil(std::clamp<size_t>(length / 16, 16, 16384))) {}

  void special(int32_t id) { out_.push_back(id); }

  void plain(std::string_view text) {
    if (text.empty()) return;
    // Nothing below U+0300 is changed by NFC, and those start with a byte below 0xCC.
    const bool may_change =
        tokenizer_.pre_.nfc && std::any_of(text.begin(), text.end(), [](char c) {
          return static_cast<unsigned char>(c) >= 0xCC;
        });
    if (may_change) {
      normalised_.push_back(nfc(text));
      text = normalised_.back();
    }
    ends_.clear();
    split_pieces(tokenizer_.pre_.splitter, text, ends_);
    size_t begin = 0;
    for (const size_t end : ends_) {
      piece(text.substr(begin, end - begin));
      begin = end;
    }
  }

  std::vector<int32_t> take() { return std::move(out_); }

 private:
  // An entry points at an earlier equal piece and at its ids in the output.
  struct Entry {
    std::string_view piece;
    size_t begin = 0;
    size_t count = 0;
  };

  void piece(std::string_view text) {
    Entry& entry = cache_[std::hash<std::string_view>{}(text) & (cache_.size() - 1)];
    if (entry.piece == text && entry.count != 0) {
      for (size_t i = 0; i < entry.count; ++i) out_.push_back(out_[entry.begin + i]);
      return;
    }
    const size_t begin = out_.size();
    merge(text);
    entry = {text, begin, out_.size() - begin};
  }

  void merge(std::string_view text) {
    if (tokenizer_.pre_.whole_words) {
      const int32_t id = tokenizer_.texts_.find(text);
      if (id >= 0 && tokenizer_.types_[static_cast<size_t>(id)] == 1) {
        out_.push_back(id);
        return;
      }
    }
    if (text.size() > std::numeric_limits<uint32_t>::max() - 1) {
      fail(ErrorKind::Unsupported, "a text of {} bytes without a break is too long to tokenize",
           text.size());
    }
    symbols_.clear();
    for (const char c : text) {
      const int32_t id = tokenizer_.byte_ids_[static_cast<unsigned char>(c)];
      if (id < 0) {
        fail(ErrorKind::Format, "the vocabulary has no token for the byte 0x{:02x}",
             static_cast<unsigned char>(c));
      }
      symbols_.push_back(id);
    }
    merge_symbols(tokenizer_.merges_, symbols_);
    out_.insert(out_.end(), symbols_.begin(), symbols_.end());
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t> out_, symbols_;
  std::vector<size_t> ends_;
  std::vector<Entry> cache_;
  std::deque<std::string> normalised_;  // cached pieces point into them
};

// The reference library finds added tokens leftmost-longest over the whole text and then drops the
// matches that are not to be special, which leaves their text plain. The same here, with one
// addition for mixed provenance: a match that takes in text of a user may neither be a control
// token nor displace a control token of the template.
std::vector<int32_t> Tokenizer::encode_runs(std::string_view text,
                                            std::span<const TrustedRun> runs) const {
  Encoder encoder(*this, text.size());
  size_t plain = 0, run = 0;
  for (size_t at = 0; at < text.size();) {
    if (!added_.may_start(static_cast<unsigned char>(text[at]))) {
      ++at;
      continue;
    }
    AddedTokens::Match match = added_.longest(text, at);
    if (match.id < 0) {
      ++at;
      continue;
    }
    while (runs[run].end <= at) ++run;
    const size_t limit = runs[run].end;
    if (at + match.length > limit) {  // crosses from one provenance to another
      const AddedTokens::Match own =
          runs[run].trusted ? added_.longest_control(text, at, limit) : AddedTokens::Match{};
      bool hides = match.control;
      for (size_t i = at + 1, r = run; i < at + match.length && !hides; ++i) {
        while (runs[r].end <= i) ++r;
        hides = runs[r].trusted && added_.longest_control(text, i, runs[r].end).id >= 0;
      }
      if (own.id >= 0) {
        match = own;
      } else if (hides) {
        ++at;
        continue;
      }
    } else if (match.control && !runs[run].trusted) {
      at += match.length;
      continue;
    }
    encoder.plain(text.substr(plain, at - plain));
    encoder.special(match.id);
    at += match.length;
    plain = at;
  }
  encoder.plain(text.substr(plain));
  return encoder.take();
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  const TrustedRun run{text.size(), parse_special};
  return encode_runs(text, {&run, 1});
}

std::vector<int32_t> Tokenizer::encode_pieces(std::span<const Piece> pieces) const {
  std::string text;
  std::vector<TrustedRun> runs;
  for (const Piece& piece : pieces) {
    if (piece.text.empty()) continue;
    text += piece.text;
    const bool trusted = !piece.from_user;
    if (!runs.empty() && runs.back().trusted == trusted) {
      runs.back().end = text.size();
    } else {
      runs.push_back({text.size(), trusted});
    }
  }
  return encode_runs(text, runs);
}

void Tokenizer::prepend_bos(std::vector<int32_t>& ids) const {
  if (add_bos_ && (ids.empty() || ids.front() != *bos_)) ids.insert(ids.begin(), *bos_);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool render_control) const {
  std::string out;
  for (const int32_t id : ids) {
    const TokenType type = token_type(id);
    const bool shown = type == TokenType::Normal || type == TokenType::UserDefined ||
                       type == TokenType::Byte || render_control;
    if (shown) out += token_text(id);
  }
  return out;
}

std::string_view Tokenizer::token_text(int32_t id) const {
  token_type(id);  // checks the id
  return texts_.text(id);
}

TokenType Tokenizer::token_type(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= size()) {
    fail(ErrorKind::Usage, "token id {} is outside the vocabulary of {}", id, size());
  }
  return static_cast<TokenType>(types_[static_cast<size_t>(id)]);
}

std::optional<int32_t> Tokenizer::token_id(std::string_view text) const {
  const AddedTokens::Match match = added_.longest(text, 0);
  if (match.id >= 0 && match.length == text.size()) return match.id;
  const int32_t id = texts_.find(text);
  if (id < 0) return std::nullopt;
  return id;
}

bool Tokenizer::is_stop(int32_t id) const noexcept {
  return std::binary_search(stop_ids_.begin(), stop_ids_.end(), id);
}

}  // namespace penstock::text
