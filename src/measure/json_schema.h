// Checks JSON against a JSON Schema, as much of it as this program's schemas use: type, const,
// enum, required, properties, additionalProperties (false), items, prefixItems, minItems, maxItems,
// minimum, pattern, $defs with $ref within the document.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace penstock::measure {

// One sentence per contradiction, each with the place as a JSON pointer; at most `most`. Throws
// Error(Internal) for a schema with keywords that are not known here.
std::vector<std::string> schema_problems(const nlohmann::json& schema, const nlohmann::json& value,
                                         size_t most = 20);

// JSON of any origin: throws Error(Format) naming `path` for what is no JSON or nested too deeply
// for whoever writes it again.
nlohmann::json parse_json(const std::string& text, const std::string& path);

}  // namespace penstock::measure
