// Internal to the executor: OUT.journal, which says what of an unfinished result is there, so that
// the next run of the same command goes on with it.
//
// Layout (little-endian): a header of 64 bytes (JournalHeader), then a record of 72 bytes for every
// piece of the work (JournalRecord), in order, written when the piece is in the result's file. A
// record counts if its own checksum fits; what it vouches for is compared with the checksum in it
// before it is believed. Nothing is brought to the disk for the journal's sake: a killed process
// leaves what it wrote in the page cache, and after a power failure the checksums tell.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/file.h"
#include "base/hash.h"
#include "surgery/rewrite.h"

namespace penstock::surgery {

// What must be the same for the work to be the same: program's encoders (what they make of fixed
// values), source (identity, lengths and times of change), options, importance, and the headers of
// the files to be written, which name every tensor, type, key and shard.
Sha256 rewrite_job(const RewriteRequest& request, const Sha256& headers);

struct JournalHeader {
  uint64_t magic = 0;
  Sha256 job{};
  uint64_t n_pieces = 0;
  uint64_t naming = 0;  // 1: all is written, and the files are being given their names
  uint64_t sum = 0;     // XXH64 of what is before
};
static_assert(sizeof(JournalHeader) == 64);

struct JournalRecord {
  uint64_t written = 0;  // XXH64 of the piece's bytes in the result
  ErrorSums errors;      // of the piece; zeros if it was copied
  uint64_t sum = 0;      // XXH64 of what is before, seeded with the piece's index
};
static_assert(sizeof(JournalRecord) == 72);

class Journal {
 public:
  enum class Found { Nothing, Same, Other };  // empty, of this job, of another one or damaged

  // Opens or creates the journal of `out` and locks it: at most one process writes to `out`. Throws
  // Error(Io) when another one does.
  explicit Journal(const std::string& out);
  ~Journal();  // removes it if it is empty
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  Found look(const Sha256& job, uint64_t n_pieces);
  bool naming() const noexcept { return header_.naming != 0; }
  // Begins with this job: an empty journal, or with `keep` the one there.
  void begin(const Sha256& job, uint64_t n_pieces, bool keep);

  // Records of the pieces from `first` on; nullopt in place of one that is torn or not there.
  void read(size_t first, std::span<std::optional<JournalRecord>> out) const;
  void write(size_t piece, JournalRecord record);
  void begin_naming();
  void remove();

  const std::string& path() const noexcept { return file_.path(); }

 private:
  void write_header();
  void put(uint64_t offset, std::span<const std::byte> bytes);

  File file_;
  JournalHeader header_;
};

}  // namespace penstock::surgery
