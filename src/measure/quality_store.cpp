#include "measure/quality_store.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace penstock::measure {
namespace {

constexpr const char* kSchema = "penstock-quality-1";

std::string default_folder() {
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data != '\0') {
    return std::string(data) + "/penstock/quality";
  }
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "." : home) + "/.local/share/penstock/quality";
}

// What tells one measurement of a key from another.
std::string identity(const nlohmann::json& m) {
  std::string id;
  for (const char* field : {"kind", "mode", "base_key", "base_model_id", "text_sha256",
                            "tasks_sha256", "window_tokens", "max_tokens", "chat_template"}) {
    id += m.contains(field) ? m[field].dump() : "-";
    id += '|';
  }
  return id;
}

// As far as it is there: a record may have been written by hand.
double number(const nlohmann::json& m, const char* field) {
  return m.contains(field) && m[field].is_number() ? m[field].get<double>() : 0;
}
std::string text(const nlohmann::json& m, const char* field) {
  return m.contains(field) && m[field].is_string() ? m[field].get<std::string>() : std::string("?");
}

}  // namespace

QualityStore::QualityStore(const std::string& folder)
    : folder_(folder.empty() ? default_folder() : folder) {}

std::string QualityStore::path_of(const std::string& key) const {
  return folder_ + "/" + key + ".json";
}

std::string QualityStore::add(const QualityKey& key, const nlohmann::json& measurement) const {
  if (measurement.contains("windows_in_text") &&
      measurement.value("windows", uint64_t{0}) != measurement["windows_in_text"]) {
    fail(ErrorKind::Usage, "{} of {} windows are no measurement of the text: it is not kept",
         measurement.value("windows", uint64_t{0}), measurement["windows_in_text"].dump());
  }
  nlohmann::json all = find(key.id).value_or(nlohmann::json::array());
  nlohmann::json kept = nlohmann::json::array();
  for (const nlohmann::json& other : all) {
    if (identity(other) != identity(measurement)) kept.push_back(other);
  }
  kept.push_back(measurement);
  const nlohmann::json file = {{"schema", kSchema},
                               {"quality_key", key.id},
                               {"settings", key.settings},
                               {"measurements", kept}};
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) fail(ErrorKind::Io, "{}: {}", folder_, error.message());
  AtomicFile out(path_of(key.id));
  const std::string bytes = file.dump(1) + "\n";
  out.write(bytes.data(), bytes.size());
  out.commit();
  return path_of(key.id);
}

std::optional<nlohmann::json> QualityStore::find(const std::string& key) const {
  const std::string path = path_of(key);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  try {
    const auto file = nlohmann::json::parse(read_text_file(path));
    if (file.at("schema") == kSchema && file.at("quality_key") == key &&
        file.at("measurements").is_array()) {
      for (const nlohmann::json& m : file["measurements"]) {
        if (!m.is_object()) fail(ErrorKind::Format, "a measurement is no object");
      }
      return file["measurements"];
    }
    log::warn("{} is of another key or schema and is not used", path);
  } catch (const std::exception& e) {
    log::warn("{} is not used: {}", path, e.what());
  }
  return std::nullopt;
}

std::string quality_line(const std::optional<nlohmann::json>& measurements) {
  if (!measurements || measurements->empty()) return "unmeasured";
  std::string line;
  const auto add = [&](const std::string& part) { line += (line.empty() ? "" : "; ") + part; };
  for (const nlohmann::json& m : *measurements) {
    const std::string kind = text(m, "kind");
    if (kind == "perplexity") {
      add(fmt::format("perplexity {:.4g} +- {:.2g} ({})", number(m, "ppl"), number(m, "ppl_error"),
                      text(m, "text")));
    } else if (kind == "kld") {
      add(fmt::format("mean KLD {:.4g} +- {:.2g}, same top {:.2f} % against {} ({})",
                      number(m, "mean_kld"), number(m, "mean_kld_error"),
                      100 * number(m, "same_top"), text(m, "base"), text(m, "text")));
    } else if (kind == "tasks") {
      add(fmt::format("tasks {:.1f} % of {}", 100 * number(m, "accuracy"), number(m, "n")));
    }
  }
  return line.empty() ? "unmeasured" : line;
}

}  // namespace penstock::measure
