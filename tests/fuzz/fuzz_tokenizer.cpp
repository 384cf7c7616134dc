// Any bytes through every splitter, NFC, the UTF-8 stream and a small vocabulary with special
// tokens. Checked: pieces cover the text, decoding gives the bytes back, however the text is cut
// into pieces of the two provenances no control token comes out of user text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/utf8_stream.h"

namespace {

using namespace penstock::text;

void require(bool condition) {
  if (!condition) std::abort();
}

Tokenizer make_tokenizer(const char* pre) {
  TokenizerData data;
  data.pre = pre;
  data.nfc = false;
  for (int b = 0; b < 256; ++b) {
    data.tokens.push_back(encode_byte_alphabet(std::string(1, static_cast<char>(b))));
  }
  for (const char* pair : {"a a", "aa aa", "b c", "a bc", "aaaa a", "1 2"}) {
    const std::string line = pair;
    std::string joined = line;
    joined.erase(joined.find(' '), 1);
    data.tokens.push_back(joined);
    data.merges.push_back(line);
  }
  data.token_type.assign(data.tokens.size(), 1);
  const auto special = [&](const char* text, int type) {
    data.tokens.emplace_back(text);
    data.token_type.push_back(type);
  };
  special("<c>", 3);
  special("<c><c>", 3);
  special("a<", 4);
  special("c>b", 4);
  special("<t>", 4);
  return Tokenizer(data);
}

void check_pieces(const Tokenizer& tokenizer, std::string_view text, uint64_t cuts) {
  std::vector<Piece> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t n = std::min<size_t>(1 + (cuts & 7), text.size() - at);
    pieces.push_back({std::string(text.substr(at, n)), (cuts & 8) != 0});
    cuts = (cuts >> 4) | (cuts << 60);
    at += n;
  }
  std::string own;
  for (const Piece& piece : pieces) own += piece.from_user ? "\n" : piece.text;
  const bool any = own.find("<c>") != std::string::npos;
  const std::vector<int32_t> ids = tokenizer.encode_pieces(pieces);
  require(tokenizer.decode(ids, true) == text);
  const bool control = std::any_of(ids.begin(), ids.end(), [&](int32_t id) {
    return tokenizer.token_type(id) == TokenType::Control;
  });
  require(!control || any);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizers[] = {make_tokenizer("qwen2"), make_tokenizer("qwen35"),
                                         make_tokenizer("llama-bpe"), make_tokenizer("gpt-4o"),
                                         make_tokenizer("deepseek-v3")};
  uint64_t cuts = 0;
  for (size_t i = 0; i < 8 && i < size; ++i) cuts = (cuts << 8) | data[i];
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Tokenizer& tokenizer : tokenizers) {
    require(tokenizer.decode(tokenizer.encode(text, true), true) == text);
    require(tokenizer.decode(tokenizer.encode(text, false), true) == text);
    check_pieces(tokenizer, text, cuts);
  }
  const std::string clean = replace_invalid_utf8(text);
  require(replace_invalid_utf8(clean) == clean);
  require(nfc(nfc(text)) == nfc(text));
  Utf8Stream stream;
  std::string streamed;
  for (const char c : text) streamed += stream.push(std::string_view(&c, 1));
  streamed += stream.flush();
  require(streamed == clean);
  return 0;
}
