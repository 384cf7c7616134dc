// Writes GGUF v3, one file or a set of shards, with bounded memory. Order of calls: metadata and
// tensors in any order, begin(), the tensors' data, finish(). Files appear under their names only
// when finish() succeeded, the shard with the metadata last.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "gguf/metadata.h"
#include "gguf/types.h"

namespace penstock::gguf {

struct WriterOptions {
  uint64_t alignment = 32;       // a power of two; written as general.alignment unless 32
  uint64_t max_shard_bytes = 0;  // 0: one file; else tensors go to a new shard before it is passed
  // Unfinished files are called NAME.partial, keep what an earlier process has written there, and
  // stay when the writer is destroyed before finish(). One process at a time: the caller sees to
  // it.
  bool resumable = false;
};

class Writer {
 public:
  explicit Writer(std::string path, WriterOptions options = {});
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // A key set twice is an Error(Internal). The keys general.alignment and split.* are the writer's.
  void set_u16(std::string_view key, uint16_t value);
  void set_u32(std::string_view key, uint32_t value);
  void set_i32(std::string_view key, int32_t value);
  void set_u64(std::string_view key, uint64_t value);
  void set_f32(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_i32_array(std::string_view key, std::span<const int32_t> values);
  void set_u32_array(std::string_view key, std::span<const uint32_t> values);
  void set_u64_array(std::string_view key, std::span<const uint64_t> values);
  void set_f32_array(std::string_view key, std::span<const float> values);
  void set_string_array(std::string_view key, std::span<const std::string> values);
  void set_copy(const Entry& entry);  // the bytes as they stand in another file
  bool has(std::string_view key) const noexcept;

  // Returns the tensor's index. Order of declaration is order in the file.
  size_t add_tensor(std::string_view name, TypeId type, std::span<const uint64_t> dims);

  // A tensor that is described but whose data is in no file: it gets a place behind the end of the
  // file (OpenOptions::allow_missing_experts reads such files). After all others, and not in
  // shards.
  void add_absent_tensor(std::string_view name, TypeId type, std::span<const uint64_t> dims);

  // Fixes the layout: what the files will be called and hold, but for the tensors' data. begin()
  // does it unless it has been done.
  void layout();
  // Creates the files and reserves their space. Headers are written by finish().
  void begin();

  // Appends to the tensors in order of declaration; a piece may not cross from one tensor into the
  // next. Padding is the writer's business.
  void append(std::span<const std::byte> piece);
  // Any place of any tensor, from any thread; pieces must not overlap. Use either append or this.
  void write_at(size_t tensor, uint64_t offset, std::span<const std::byte> piece);
  // From one thread: everything before this place of this tensor has been written. Starts bringing
  // it to the disk and drops what has got there from the page cache, so that a large file does not
  // displace everything else. A hint; errors appear in finish().
  void written_before(size_t tensor, uint64_t offset) noexcept;

  void finish();

  // Of resumable writers. After layout(): the headers of all files, for the identity of the work.
  void hash_headers(Sha256Stream* hash) const;
  // Before begin(): files that a process had given their names before it was killed among them get
  // their temporary ones again, if they have the very length and header that this writer would give
  // them.
  void take_back();
  // What an earlier process has written; false when the file ends before.
  bool read_at(size_t tensor, uint64_t offset, std::span<std::byte> out) const;
  void is_there(size_t tensor, uint64_t bytes);  // so many of its bytes need not be written again
  void discard();                                // removes the unfinished files

  uint64_t total_bytes() const noexcept;        // of all files, known after layout()
  std::vector<std::string> file_names() const;  // known after layout()

 private:
  struct Declared;
  struct Output;
  void pair(std::string_view key, ValueType type, std::span<const std::byte> payload);
  void array(std::string_view key, ValueType element, uint64_t count,
             std::span<const std::byte> payload);
  void place_tensors(uint64_t own_bytes);

  std::string path_;
  WriterOptions options_;
  std::string pairs_;  // encoded key-value pairs of the first shard
  uint64_t n_pairs_ = 0;
  std::unordered_set<std::string> keys_;
  std::unordered_set<std::string> names_;
  std::vector<std::unique_ptr<Declared>> tensors_;
  std::vector<std::unique_ptr<Output>> outputs_;
  bool laid_out_ = false;
  bool begun_ = false;
  bool finished_ = false;
  size_t current_ = 0;  // append(): tensor being filled
};

}  // namespace penstock::gguf
