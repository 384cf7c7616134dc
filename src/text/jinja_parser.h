#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace penstock::text::jinja {

// Throws penstock::Error naming the line: ErrorKind::Format for what no Jinja would accept,
// ErrorKind::Unsupported for constructs that this engine leaves out.
Ast parse_template(std::string_view source);

}  // namespace penstock::text::jinja
