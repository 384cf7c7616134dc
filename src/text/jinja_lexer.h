// Template source to tokens, with Jinja's white-space control applied: trim_blocks and
// lstrip_blocks on, as the reference library configures it for chat templates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace penstock::text::jinja {

enum class TokenKind : uint8_t {
  Data,
  OutputBegin,
  OutputEnd,
  BlockBegin,
  BlockEnd,
  Name,
  String,
  Integer,
  Float,
  Operator,
  End,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // a string's value, an operator's or name's spelling
};

std::vector<Token> tokenize(std::string_view source);

// "chat template, line N: …" with advice on what to do instead.
[[noreturn]] void template_error(ErrorKind kind, int line, std::string_view message);

}  // namespace penstock::text::jinja
