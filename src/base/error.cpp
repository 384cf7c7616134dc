#include "base/error.h"

#include <system_error>

namespace penstock {

std::string errno_text(int error) {
  return fmt::format("{} (errno {})", std::generic_category().message(error), error);
}

}  // namespace penstock
