// Whether this processor, and its operating system, can run an instruction set's kernels.
#pragma once

#include "quant/matmul.h"

namespace penstock::quant {

bool cpu_has(Isa isa) noexcept;

}  // namespace penstock::quant
