#include "engine/machine_file.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/json_nesting.h"

namespace penstock::engine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "penstock-machine";
constexpr int kVersion = 1;
constexpr uint64_t kMostBytes = uint64_t{4} << 20;
constexpr size_t kMostEntries = 1000;  // per list
constexpr size_t kMostText = 1000;     // characters of a string
constexpr size_t kMostDepth = 8;       // of nested arrays and objects

// ------------------------------------------------------------------------------ one value

// A field's value; throws Error(Format) naming the field for one that cannot be.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {
    if (!object.is_object()) fail(ErrorKind::Format, "an entry is no object");
  }
  double positive(const char* name) const { return number(name, false); }
  double not_negative(const char* name) const { return number(name, true); }
  uint64_t count(const char* name) const {
    const Json& value = at(name);
    if (!value.is_number_integer() || (value.is_number_integer() && !value.is_number_unsigned())) {
      fail(ErrorKind::Format, "\"{}\" is no count", name);
    }
    return value.get<uint64_t>();
  }
  int small(const char* name) const {
    const uint64_t value = count(name);
    if (value > 1'000'000'000) fail(ErrorKind::Format, "\"{}\" is absurd", name);
    return static_cast<int>(value);
  }
  int64_t time(const char* name) const {
    constexpr uint64_t kEnd = 253402300799;  // of the year 9999
    const uint64_t value = count(name);
    if (value > kEnd) fail(ErrorKind::Format, "\"{}\" is no time", name);
    return static_cast<int64_t>(value);
  }
  std::string text(const char* name) const {
    const Json& value = at(name);
    if (!value.is_string() || value.get_ref<const std::string&>().size() > kMostText) {
      fail(ErrorKind::Format, "\"{}\" is no short text", name);
    }
    return value.get<std::string>();
  }

 private:
  const Json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) fail(ErrorKind::Format, "\"{}\" is missing", name);
    return *found;
  }
  double number(const char* name, bool zero) const {
    constexpr double kMost = 1e18;
    const Json& value = at(name);
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!(number >= 0) || !(number < kMost) || (number == 0 && !zero)) {
      fail(ErrorKind::Format, "\"{}\" is no measured number", name);
    }
    return number;
  }
  const Json& object_;
};

// ------------------------------------------------------------------------------ entries

Json to_json(const ComputeKey& key) {
  return {
      {"cpu", key.cpu}, {"threads", key.threads}, {"isa", key.isa}, {"precision", key.precision}};
}
ComputeKey compute_key(const Fields& in) {
  return {in.text("cpu"), in.small("threads"), in.text("isa"), in.text("precision")};
}

Json to_json(const DiskKey& key, const DiskFigures& figures) {
  return {{"cpu", key.cpu},
          {"device", key.device},
          {"stride_class", key.stride_class},
          {"io", key.io},
          {"depth", key.depth},
          {"bytes_per_s", figures.bytes_per_s},
          {"latency_s", figures.latency_s},
          {"seconds", figures.seconds},
          {"reads", figures.reads},
          {"span_bytes", figures.span_bytes},
          {"reader", figures.reader},
          {"measured", figures.measured}};
}
std::pair<DiskKey, DiskFigures> disk_entry(const Fields& in) {
  return {{in.text("cpu"), in.count("device"), in.small("stride_class"), in.text("io"),
           in.small("depth")},
          {in.positive("bytes_per_s"), in.not_negative("latency_s"), in.positive("seconds"),
           in.count("reads"), in.count("span_bytes"), in.text("reader"), in.time("measured")}};
}

Json to_json(const ComputeKey& key, const KernelFigures& figures) {
  Json out = to_json(key);
  out.update({{"type", figures.type},
              {"bytes_per_s", figures.bytes_per_s},
              {"measured", figures.measured}});
  return out;
}
std::pair<ComputeKey, KernelFigures> kernel_entry(const Fields& in) {
  return {compute_key(in), {in.text("type"), in.positive("bytes_per_s"), in.time("measured")}};
}

Json to_json(const ComputeKey& key, const ModelFigures& figures) {
  Json out = to_json(key);
  out.update({{"model", figures.model},
              {"name", figures.name},
              {"token_s", figures.token_s},
              {"experts_s", figures.experts_s},
              {"shared_s", figures.shared_s},
              {"tokens", figures.tokens},
              {"prompt_token_s", figures.prompt_token_s},
              {"prompt_tokens", figures.prompt_tokens},
              {"measured", figures.measured}});
  return out;
}
std::pair<ComputeKey, ModelFigures> model_entry(const Fields& in) {
  return {compute_key(in),
          {in.text("model"), in.text("name"), in.positive("token_s"), in.not_negative("experts_s"),
           in.not_negative("shared_s"), in.small("tokens"), in.not_negative("prompt_token_s"),
           in.small("prompt_tokens"), in.time("measured")}};
}

// ------------------------------------------------------------------------------ lists

template <typename Entry>
std::vector<Entry> read_list(const Json& root, const char* name, Entry (*entry)(const Fields&)) {
  std::vector<Entry> out;
  const auto list = root.find(name);
  if (list == root.end()) return out;
  if (!list->is_array() || list->size() > kMostEntries) {
    fail(ErrorKind::Format, "\"{}\" is no list of at most {} entries", name, kMostEntries);
  }
  for (const Json& item : *list) out.push_back(entry(Fields(item)));
  return out;
}

template <typename Entries>
Json write_list(const Entries& entries) {
  Json out = Json::array();
  for (const auto& [key, figures] : entries) out.push_back(to_json(key, figures));
  return out;
}

template <typename Entries, typename Key, typename Figures, typename Same>
void put_entry(Entries& entries, const Key& key, Figures figures, Same same) {
  std::erase_if(entries, same);
  if (entries.size() >= kMostEntries) {
    entries.erase(std::min_element(
        entries.begin(), entries.end(),
        [](const auto& a, const auto& b) { return a.second.measured < b.second.measured; }));
  }
  entries.emplace_back(key, std::move(figures));
}

// ------------------------------------------------------------------------------ the file

// The text of a regular file of sensible size; a reason why there is none otherwise.
std::optional<std::string> read_text(const std::string& path, bool* absent, std::string* why) {
  int error = 0;
  // Not blocking: the path may name a pipe.
  const File file = File::try_open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, &error);
  *absent = !file && error == ENOENT;
  if (*absent) return std::nullopt;
  struct stat info {};
  if (!file || fstat(file.fd(), &info) != 0) {
    *why = fmt::format("cannot be read: {}", errno_text(file ? errno : error));
  } else if (!S_ISREG(info.st_mode)) {
    *why = "is no regular file";
  } else if (static_cast<uint64_t>(info.st_size) > kMostBytes) {
    *why = "is far too large for a machine file";
  } else {
    std::string text(static_cast<size_t>(info.st_size), '\0');
    try {
      file.read_at(0, std::as_writable_bytes(std::span(text)));
      return text;
    } catch (const Error& failure) {
      *why = failure.what();
    }
  }
  return std::nullopt;
}

Json parse(const std::string& text) {
  // Nesting is bounded so that a hostile file cannot make the parser's stack grow.
  if (json_nesting(text) > kMostDepth) fail(ErrorKind::Format, "values are nested too deeply");
  return Json::parse(text);
}

// A file of ours that was cut still begins like one.
bool begins_like_ours(const std::string& text) {
  constexpr size_t kFar = 64;
  return text.substr(0, kFar).find(kFormat) != std::string::npos;
}

}  // namespace

int stride_class(double bytes) noexcept {
  return bytes >= 1 ? static_cast<int>(std::floor(std::log2(bytes))) : 0;
}

MachineFile MachineFile::read(const std::string& path) {
  MachineFile out;
  out.path_ = path;
  bool absent = false;
  std::string why;
  const std::optional<std::string> text = read_text(path, &absent, &why);
  if (absent) return out;
  out.state_ = State::Foreign;
  if (!text) {
    out.problem_ = fmt::format("{} {}", path, why);
    return out;
  }
  try {
    const Json root = parse(*text);
    if (!root.is_object() || root.value("format", Json()) != kFormat) {
      out.problem_ = fmt::format("{} is no machine file of this program", path);
      return out;
    }
    if (root.value("version", Json()) != kVersion) {
      out.problem_ = fmt::format("{} is a machine file of another version than {}", path, kVersion);
      return out;
    }
    auto disks = read_list(root, "disks", disk_entry);
    auto kernels = read_list(root, "kernels", kernel_entry);
    out.models_ = read_list(root, "models", model_entry);
    out.disks_ = std::move(disks);
    out.kernels_ = std::move(kernels);
    out.state_ = State::Read;
  } catch (const std::exception& error) {
    if (begins_like_ours(*text)) out.state_ = State::Damaged;
    out.problem_ = fmt::format(
        "{} is {}: {}", path,
        out.state_ == State::Damaged ? "damaged" : "no machine file of this program", error.what());
  }
  return out;
}

const DiskFigures* MachineFile::find(const DiskKey& key) const noexcept {
  for (const auto& [have, figures] : disks_) {
    if (have == key) return &figures;
  }
  return nullptr;
}

const KernelFigures* MachineFile::find_kernel(const ComputeKey& key,
                                              const std::string& type) const noexcept {
  for (const auto& [have, figures] : kernels_) {
    if (have == key && figures.type == type) return &figures;
  }
  return nullptr;
}

const ModelFigures* MachineFile::find_model(const ComputeKey& key,
                                            const std::string& model) const noexcept {
  for (const auto& [have, figures] : models_) {
    if (have == key && figures.model == model) return &figures;
  }
  return nullptr;
}

void MachineFile::put(const DiskKey& key, DiskFigures figures) {
  put_entry(disks_, key, std::move(figures), [&](const auto& e) { return e.first == key; });
}

void MachineFile::put(const ComputeKey& key, KernelFigures figures) {
  const std::string type = figures.type;
  put_entry(kernels_, key, std::move(figures),
            [&](const auto& e) { return e.first == key && e.second.type == type; });
}

void MachineFile::put(const ComputeKey& key, ModelFigures figures) {
  const std::string model = figures.model;
  put_entry(models_, key, std::move(figures),
            [&](const auto& e) { return e.first == key && e.second.model == model; });
}

void MachineFile::check_writable() const {
  if (state_ != State::Foreign) return;
  fail(ErrorKind::Usage,
       "{}; it is left as it is: name another file with --machine-file, or move it away", problem_);
}

void MachineFile::write() const {
  check_writable();
  const fs::path folder = fs::path(path_).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) {
    fail(ErrorKind::Io, "cannot make the folder {}: {}", folder.string(), error.message());
  }
  const Json root = {{"format", kFormat},
                     {"version", kVersion},
                     {"disks", write_list(disks_)},
                     {"kernels", write_list(kernels_)},
                     {"models", write_list(models_)}};
  const std::string text = root.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  AtomicFile out(path_);
  out.write(text.data(), text.size());
  out.commit();
}

std::string default_machine_file() {
  // Relative paths in this variable are to be ignored (XDG base directory specification).
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return fmt::format("{}/penstock/machine.json", cache);
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') {
    return fmt::format("{}/.cache/penstock/machine.json", home);
  }
  return {};
}

std::string time_text(int64_t unix_seconds) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

int64_t unix_now() noexcept {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace penstock::engine
