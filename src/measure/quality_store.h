// Quality that was measured, by quality key: one JSON file per key, in which `run` and others look
// up what a configuration costs (docs/quality.md).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "measure/quality_key.h"

namespace penstock::measure {

class QualityStore {
 public:
  // The folder; "" is $XDG_DATA_HOME/penstock/quality, else ~/.local/share/penstock/quality.
  explicit QualityStore(const std::string& folder);

  const std::string& folder() const noexcept { return folder_; }
  std::string path_of(const std::string& key) const;

  // Adds a measurement (the JSON of `penstock eval`), in place of an earlier one of the same kind,
  // text or tasks, base, mode and length. Returns the file's path. Throws Error(Usage) for one that
  // covers a part of its text only: it would speak for the whole.
  std::string add(const QualityKey& key, const nlohmann::json& measurement) const;

  // The key's measurements; none when there are none. A file that cannot be read or is of another
  // key is reported and counts as none.
  std::optional<nlohmann::json> find(const std::string& key) const;

 private:
  std::string folder_;
};

// What is known, on one line for people: "perplexity 3.21 +- 0.04 (eval.txt), mean KLD 0.0123
// against F16 (eval.txt), tasks 45.2 %"; "unmeasured" if nothing is.
std::string quality_line(const std::optional<nlohmann::json>& measurements);

}  // namespace penstock::measure
