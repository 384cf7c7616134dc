// What was measured on this machine, kept between runs (docs/plan.md, "The machine file"): JSON,
// written whole under a temporary name. The file is never trusted: one that cannot be used is
// reported and ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::engine {

// What the figures of computing depend on.
struct ComputeKey {
  std::string cpu;  // as the system names it
  int threads = 0;
  std::string isa, precision;
  bool operator==(const ComputeKey&) const = default;
};

// What the figures of expert reads depend on.
struct DiskKey {
  std::string cpu;
  uint64_t device = 0;   // st_dev of the file system
  int stride_class = 0;  // floor(log2) of the bytes of an expert read
  std::string io;        // --io
  int depth = 0;         // --io-depth
  bool operator==(const DiskKey&) const = default;
};
int stride_class(double bytes) noexcept;

// Times of measurement are seconds since 1970.
struct DiskFigures {
  double bytes_per_s = 0;
  double latency_s = 0;     // of a read beyond its bytes / bytes_per_s
  double seconds = 0;       // measured
  uint64_t reads = 0;       // experts read meanwhile
  uint64_t span_bytes = 0;  // of all experts that were drawn from
  std::string reader;       // IoReport::describe()
  int64_t measured = 0;
};

struct KernelFigures {
  std::string type;        // of the weights
  double bytes_per_s = 0;  // of weights, one activation row, all threads
  int64_t measured = 0;
};

struct ModelFigures {
  std::string model;                                // gguf::Model::header_id(), hexadecimal
  std::string name;                                 // for people
  double token_s = 0, experts_s = 0, shared_s = 0;  // experts::DecodeCost; medians
  int tokens = 0;                                   // of which they are
  double prompt_token_s = 0;                        // per token of a prompt; 0: not measured
  int prompt_tokens = 0;                            // in the chunk measured
  int64_t measured = 0;
};

class MachineFile {
 public:
  enum class State {
    Absent,
    Read,
    Damaged,  // ours, but cut or with values that cannot be; write() replaces it
    Foreign,  // of another program, a newer version, or unreadable; write() leaves it alone
  };
  // Never throws for what the file is or holds.
  static MachineFile read(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  State state() const noexcept { return state_; }
  const std::string& problem() const noexcept { return problem_; }  // with the path; or empty

  const DiskFigures* find(const DiskKey& key) const noexcept;  // null: not measured
  const KernelFigures* find_kernel(const ComputeKey& key, const std::string& type) const noexcept;
  const ModelFigures* find_model(const ComputeKey& key, const std::string& model) const noexcept;
  // Adds, or replaces what has the same key. Of very many the oldest are dropped.
  void put(const DiskKey& key, DiskFigures figures);
  void put(const ComputeKey& key, KernelFigures figures);
  void put(const ComputeKey& key, ModelFigures figures);

  // Throws Error(Usage) when the file is not this program's to replace.
  void check_writable() const;
  // Writes what is held, its folder made where it lacks. Throws like check_writable(), and
  // Error(Io).
  void write() const;

 private:
  template <typename Key, typename Figures>
  using List = std::vector<std::pair<Key, Figures>>;

  std::string path_;
  State state_ = State::Absent;
  std::string problem_;
  List<DiskKey, DiskFigures> disks_;
  List<ComputeKey, KernelFigures> kernels_;
  List<ComputeKey, ModelFigures> models_;
};

// $XDG_CACHE_HOME/penstock/machine.json, else ~/.cache/penstock/machine.json; empty where neither
// variable says a place.
std::string default_machine_file();

std::string time_text(int64_t unix_seconds);  // "2026-01-31 12:00 UTC"
int64_t unix_now() noexcept;

}  // namespace penstock::engine
