// What other programs printed, standard output and error (parts.h), through every parser: refused
// with an Error, or finite numbers.
#include <cmath>

#include "measure/peer_output.h"
#include "parts.h"

using namespace penstock;
using namespace penstock::measure;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> parts = fuzz::parts_of(data, size);
  parts.resize(2);
  for (const std::string& parser : peer_parsers()) {
    fuzz::tolerate([&] {
      const nlohmann::json values = parse_peer_output(parser, parts[0], parts[1]);
      for (const nlohmann::json& value : values) {
        fuzz::require(value.is_number() && std::isfinite(value.get<double>()));
      }
    });
  }
  return 0;
}
