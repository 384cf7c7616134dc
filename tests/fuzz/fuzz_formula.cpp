// A formula, and the JSON that it is evaluated over (parts.h): refused with an Error, or a finite
// number.
#include <cmath>

#include "measure/formula.h"
#include "parts.h"

using namespace penstock;
using namespace penstock::measure;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> parts = fuzz::parts_of(data, size);
  if (parts.size() != 2) return 0;
  fuzz::tolerate([&] {
    const Formula formula(parts[0]);
    const nlohmann::json record = parse_json(parts[1], "record");
    for (const std::string& pointer : formula.pointers()) resolve_pointer(record, pointer);
    fuzz::require(std::isfinite(formula.evaluate(record)));
  });
  return 0;
}
