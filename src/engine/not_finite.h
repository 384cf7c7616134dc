// Where a value that is not finite comes from.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/runtime.h"

namespace penstock::engine {

// Runs the tokens one by one from an empty state, as a prompt of their own, and says at which
// position (counted from 0) which layer is the first to give something that is not finite:
// "position 5: layer 2 is ...". Empty when everything is finite. Takes the model's tap while it
// runs; there must be no observer. Throws what the model throws beside Error(Numeric).
std::string find_not_finite(Runtime& runtime, std::span<const int32_t> tokens);

}  // namespace penstock::engine
