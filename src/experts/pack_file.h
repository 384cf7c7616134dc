// Internal to the pack writer: the file OUT.partial that becomes OUT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file.h"
#include "experts/pack_writer.h"

namespace penstock::experts {

class PartialPack {
 public:
  // Opens or creates OUT.partial and locks it: at most one process packs to a file.
  PartialPack(const std::string& out, const WriteCalls& calls);

  const std::string& path() const noexcept { return file_.path(); }
  const File& file() const noexcept { return file_; }

  // The header as it stands; whether it is one at all.
  bool read_header(PackHeader* header) const;

  // Starts afresh with this length, reserving the room. `keep`: what is there stays. Throws
  // Error(Io) saying how much is lacking when the disk has no room for it and `more` bytes beside.
  void reserve(uint64_t bytes, uint64_t more, bool keep);

  void write(uint64_t offset, std::span<const std::byte> bytes);
  // The same for data that nobody reads soon: written out behind the caller's back and dropped from
  // the page cache, so that packing a large model does not displace everything else.
  void write_behind(uint64_t offset, std::span<const std::byte> bytes);

  void sync();
  void commit();  // OUT.partial becomes OUT, durably
  void remove();  // gives up what was begun

 private:
  void flush_window(uint64_t next);

  std::string out_;
  WriteCalls calls_;
  File file_;
  uint64_t window_ = 0, window_end_ = 0;  // written, being written out
  uint64_t before_ = 0, before_end_ = 0;  // the stretch before that
};

}  // namespace penstock::experts
