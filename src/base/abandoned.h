// Temporary files (AtomicFile) that killed processes have left.
#pragma once

#include <string>

namespace penstock {

// Removes OUT.<pid>.partial of every process <pid> that is gone.
void remove_abandoned(const std::string& out);

}  // namespace penstock
