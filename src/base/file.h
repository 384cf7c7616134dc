// Files with errors that speak: every failure names the path, the offset and the errno.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock {

// An open file descriptor. Move-only.
class File {
 public:
  File() = default;
  static File open_read(const std::string& path, int extra_flags = 0);
  // Like open_read, but returns an empty File and the errno instead of throwing.
  static File try_open(const std::string& path, int flags, int* error) noexcept;
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  int fd() const noexcept { return fd_; }
  const std::string& path() const noexcept { return path_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  uint64_t size() const;

  // Reads exactly out.size() bytes at `offset`, retrying short reads and EINTR; throws Error(Io).
  void read_at(uint64_t offset, std::span<std::byte> out) const;

 private:
  int fd_ = -1;
  std::string path_;
};

// A read-only private mapping of a whole file.
class FileMap {
 public:
  FileMap() = default;
  explicit FileMap(const File& file);
  ~FileMap();
  FileMap(FileMap&& other) noexcept;
  FileMap& operator=(FileMap&& other) noexcept;

  const std::byte* data() const noexcept { return data_; }
  uint64_t size() const noexcept { return size_; }
  // madvise on the pages that cover [offset, offset + bytes).
  void advise(uint64_t offset, uint64_t bytes, int advice) const noexcept;

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

// Writes `path` under a temporary name beside it and renames it when complete: a reader never sees
// half a file. Destroyed without commit(), it removes the temporary file.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);  // appends
  void write(const void* data, size_t bytes) {
    write({static_cast<const std::byte*>(data), bytes});
  }
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  uint64_t position() const noexcept { return position_; }
  const std::string& path() const noexcept { return path_; }
  int fd() const noexcept { return fd_; }
  void commit();  // fsync, rename, fsync of the directory

 private:
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  uint64_t position_ = 0;
};

std::string read_text_file(const std::string& path);  // "-" reads standard input

}  // namespace penstock
