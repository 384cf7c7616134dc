#include "cli/dense_summary.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/machine.h"

namespace penstock::cli {

using Json = nlohmann::ordered_json;

std::string converted_rows(const models::DenseReport& r) {
  std::string out;
  for (const models::ConvertedTensors& c : r.converted) {
    if (c.tensors == 0) continue;
    out +=
        fmt::format("  dense       {}: {} tensors, {} read, {} held as {}\n", c.pattern, c.tensors,
                    format_bytes(c.bytes_from), format_bytes(c.bytes_to), gguf::type_name(c.type));
  }
  return out;
}

Json converted_json(const models::DenseReport& r) {
  Json converted = Json::array();
  for (const models::ConvertedTensors& c : r.converted) {
    converted.push_back({{"pattern", c.pattern},
                         {"type", gguf::type_name(c.type)},
                         {"tensors", c.tensors},
                         {"bytes_from", c.bytes_from},
                         {"bytes_to", c.bytes_to},
                         {"unchanged", c.unchanged}});
  }
  return converted;
}

std::string dense_rows(const models::DenseReport& r) {
  std::string out = fmt::format("  dense       {} tensors, {} in {} of pages; ", r.tensors,
                                format_bytes(r.bytes_live), format_bytes(r.bytes_pages));
  if (!r.lock_tried) {
    out += "not locked (--lock off)";
  } else {
    out += fmt::format("{} of {} locked", format_bytes(r.bytes_locked()),
                       format_bytes(r.bytes_requested()));
    if (const int error = r.lock_error(); error != 0) {
      out += fmt::format(": {}, limit {}", errno_text(error),
                         r.lock_limit == UINT64_MAX ? "none" : format_bytes(r.lock_limit));
    }
    out += fmt::format(" (VmLck {})", format_bytes(r.vm_locked));
  }
  if (r.tensors_skipped != 0) {
    out += fmt::format("; {} tensors of the file not read, {}", r.tensors_skipped,
                       format_bytes(r.bytes_skipped));
  }
  out += '\n';
  return out + converted_rows(r);
}

Json dense_json(const models::DenseReport& r) {
  Json regions = Json::array();
  for (const models::LockedRegion& region : r.regions) {
    regions.push_back({{"what", region.what},
                       {"requested", region.requested},
                       {"locked", region.locked},
                       {"errno", region.error}});
  }
  Json out = {{"tensors", r.tensors},
              {"bytes_file", r.bytes_file},
              {"bytes_live", r.bytes_live},
              {"bytes_pages", r.bytes_pages},
              {"tensors_skipped", r.tensors_skipped},
              {"bytes_skipped", r.bytes_skipped},
              {"tensors_converted", r.tensors_converted()},
              {"bytes_converted", r.bytes_converted()},
              {"converted", converted_json(r)}};
  out["lock"] = {{"tried", r.lock_tried},
                 {"bytes_requested", r.bytes_requested()},
                 {"bytes_locked", r.bytes_locked()},
                 {"vm_lck", r.vm_locked},
                 {"limit", r.lock_limit == UINT64_MAX ? Json() : Json(r.lock_limit)},
                 {"regions", std::move(regions)}};
  return out;
}

}  // namespace penstock::cli
