#include "cli/version.h"

#include <fmt/format.h>

#include "build_revision.h"
#include "quant/matmul.h"

namespace penstock::cli {

std::string version_text() {
  std::string sets;
  for (const quant::Isa isa :
       {quant::Isa::Scalar, quant::Isa::Avx2, quant::Isa::Neon, quant::Isa::NeonDot}) {
    if (quant::isa_available(isa))
      sets += fmt::format("{}{}", sets.empty() ? "" : ", ", quant::isa_name(isa));
  }
  return fmt::format("penstock {} (revision {})\ncompiler: {}\ninstruction sets: {}; using {}",
                     PENSTOCK_VERSION, PENSTOCK_REVISION, PENSTOCK_COMPILER, sets,
                     quant::isa_name(quant::current_isa()));
}

std::string tool_name() {
  return fmt::format("penstock {}", PENSTOCK_VERSION);
}

measure::Producer producer() {
  const std::string revision = PENSTOCK_REVISION;
  return {.version = PENSTOCK_VERSION,
          .revision = revision,
          .compiler = PENSTOCK_COMPILER,
          .flags = PENSTOCK_FLAGS,
          .dirty = revision.ends_with("-dirty"),
          .diff_sha256 = PENSTOCK_DIFF_SHA256,
          .diff_path = PENSTOCK_DIFF_PATH};
}

std::string version_number() {
  return fmt::format("{} ({})", PENSTOCK_VERSION, PENSTOCK_REVISION);
}

}  // namespace penstock::cli
