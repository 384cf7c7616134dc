// A file that appears under its name when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock::gguf {

// Grows under a temporary name beside `path`, PATH.<pid>.partial, which is removed when this is
// destroyed before commit(). If `kept` it is PATH.partial, opened with what an earlier process has
// left in it, and stays, for the next one to go on with; that only one process at a time does so is
// the caller's business. Throws Error(Io).
class OutputFile {
 public:
  OutputFile(std::string path, bool kept);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  static std::string kept_name(const std::string& path) { return path + ".partial"; }

  int fd() const noexcept { return fd_; }
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void zero(uint64_t from, uint64_t to);
  // Reads exactly out.size() bytes; false when the file ends before.
  bool read_at(uint64_t offset, std::span<std::byte> out) const;
  // Takes the whole room at once: a full disk is an error now and not after an hour, and padding is
  // zero without being written. File systems without fallocate get a sparse file.
  void reserve(uint64_t bytes);
  void commit();   // fsync, rename, fsync of the folder
  void discard();  // removes it although it would be kept

 private:
  std::string path_, temporary_;
  bool kept_;
  int fd_ = -1;
};

}  // namespace penstock::gguf
