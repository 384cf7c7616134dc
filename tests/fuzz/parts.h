// For fuzzers whose input is several files: its parts, which zero bytes separate, and a folder in
// memory (TMPDIR should be one) for them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "measure/archive.h"
#include "measure/json_schema.h"

namespace penstock::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

template <typename F>
void tolerate(F&& call) {
  try {
    call();
  } catch (const Error&) {  // an answer, not a finding
  }
}

inline std::vector<std::string> parts_of(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size() && parts.size() < 16;) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

class Folder {
 public:
  Folder() {
    path_ = (std::filesystem::temp_directory_path() / "fuzz-XXXXXX").string();
    require(::mkdtemp(path_.data()) != nullptr);
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  void clear() {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      std::filesystem::remove_all(entry.path());
    }
  }
  std::string write(const std::string& name, std::string_view bytes) {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    require(file.good());
    return path.string();
  }
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

// "@2" becomes the identity of the third part: hashes would keep a fuzzer from getting anywhere.
inline void refer(nlohmann::json& value, const std::vector<std::string>& ids) {
  if (value.is_structured()) {
    for (nlohmann::json& member : value) refer(member, ids);
  } else if (value.is_string()) {
    const std::string text = value;
    if (text.size() != 2 || text[0] != '@' || text[1] < '0') return;
    const auto n = static_cast<size_t>(text[1] - '0');
    if (n < ids.size()) value = ids[n];
  }
}

// Records under their names, anything else that is no JSON under its hash in files/. What is given
// back are the records as they are read again.
inline std::vector<nlohmann::json> write_archive(const std::vector<std::string>& parts,
                                                 size_t first, Folder& folder,
                                                 const std::string& under) {
  std::vector<std::string> ids(first);
  std::vector<nlohmann::json> records;
  std::filesystem::create_directories(folder.path() + "/" + under + "/files");
  for (size_t i = first; i < parts.size(); ++i) {
    std::string& id = ids.emplace_back(hex(sha256(parts[i])));
    try {
      nlohmann::json value = measure::parse_json(parts[i], "part");
      refer(value, ids);
      if (!value.is_object() || !value.contains("schema")) {
        folder.write(under + "/" + std::to_string(i) + ".json", parts[i]);
        continue;
      }
      id = std::filesystem::path(measure::write_record(folder.path() + "/" + under, value))
               .stem()
               .string();
      records.push_back(std::move(value));
    } catch (const Error&) {
      folder.write(under + "/files/" + id, parts[i]);
    }
  }
  return records;
}

}  // namespace penstock::fuzz
