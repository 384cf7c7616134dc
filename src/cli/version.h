#pragma once

#include <string>

namespace penstock::cli {

// Version, git revision with dirty flag, compiler, and the instruction sets found and in use.
std::string version_text();

}  // namespace penstock::cli
