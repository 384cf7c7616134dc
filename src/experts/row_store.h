// Rows of a table too large for memory (the n-gram embedding: hundreds of millions of rows), read
// from disk on demand, each through the aligned blocks that cover it. Owned and called by one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "experts/counters.h"
#include "experts/options.h"

namespace penstock::experts {

class StreamFiles;
struct IoReport;

struct RowTable {
  uint32_t file = 0;    // index into the StreamFiles
  uint64_t offset = 0;  // of row 0 in that file
  uint64_t row_bytes = 0;
  uint64_t n_rows = 0;
};

struct RowStoreOptions {
  IoMode io = IoMode::Auto;
  int depth = 32;            // blocks being read at once
  uint32_t n_blocks = 1024;  // recent blocks kept
  std::function<std::unique_ptr<IoBackend>(std::unique_ptr<IoBackend>)> decorate = {};
};

class RowStore {
 public:
  // Throws Error(Format) when the table does not lie within its file.
  RowStore(std::shared_ptr<const StreamFiles> files, const RowTable& table,
           const RowStoreOptions& options = {});
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  // Starts reading what read() will want. Never blocks; a hint that may be dropped.
  void prefetch(std::span<const int64_t> rows);

  // out: rows.size() * row_bytes, in the order asked for. Waits; a row that occurs more than once
  // is read once. Throws Error(Internal) for a row outside the table, Error(Io) when a read failed.
  void read(std::span<const int64_t> rows, std::byte* out);

  const RowTable& table() const noexcept;
  const ReadCounts& counts() const noexcept;
  uint64_t stall_ns() const noexcept;
  const IoReport& io() const noexcept;  // how rows are really read

  // What a store with these options allocates, for the plan.
  static uint64_t memory_bytes(const RowTable& table, const RowStoreOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::experts
