// Rendered prompt text with its provenance.
#pragma once

#include <string>

namespace penstock::text {

struct Piece {
  std::string text;
  // The text came from a message, a tool or another value of the request, not from the chat
  // template: control tokens spelled in it stay text.
  bool from_user = false;

  bool operator==(const Piece&) const = default;
};

}  // namespace penstock::text
