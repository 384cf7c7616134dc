// Internal to the executor: the files that it reads and writes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "gguf/writer.h"
#include "surgery/rewrite_plan.h"

namespace penstock::surgery {

// A model's files, read beside their mappings: what has been read can leave the page cache.
class SourceFiles {
 public:
  explicit SourceFiles(const gguf::Model& model);

  void read(const gguf::Tensor& tensor, uint64_t offset, std::span<std::byte> out) const;
  void advise(const gguf::Tensor& tensor, uint64_t offset, uint64_t bytes,
              int advice) const noexcept;
  void check_unchanged() const;  // Error(Io) naming the file that was written to meanwhile

 private:
  struct Stamp {
    off_t bytes = 0;
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp(const File& file);

  std::vector<File> files_;
  std::vector<Stamp> stamps_;
};

// The metadata that the plan gives the new model.
void write_keys(const RewritePlan& plan, gguf::Writer* out);

// Error(Io) saying how much is lacking, unless there is room for what `writer` has laid out; what
// its unfinished files hold already counts.
void check_room(const gguf::Writer& writer, const std::string& out);

// Error(Usage) if `path` is the source or a folder, or exists and may not.
void check_output(const gguf::Model& source, const std::string& path, bool may_exist);

}  // namespace penstock::surgery
