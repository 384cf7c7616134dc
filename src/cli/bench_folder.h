// Where `penstock bench` writes and `penstock report` looks unless told otherwise.
#pragma once

namespace penstock::cli {

inline constexpr const char* kBenchFolder = "bench-records";

}  // namespace penstock::cli
