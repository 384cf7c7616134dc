#include "experts/row_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "experts/io.h"
#include "experts/read_queue.h"
#include "experts/stream_setup.h"

namespace penstock::experts {
namespace {

// One block, or two neighbours, cover a row. The page size is a multiple of every alignment.
uint64_t block_bytes(const RowTable& table) noexcept {
  uint64_t bytes = kPageSize;
  while (bytes < table.row_bytes) bytes *= 2;
  return bytes;
}

uint64_t hash_size(uint32_t n_blocks) noexcept {
  uint64_t size = 1;
  while (size < uint64_t{4} * n_blocks) size *= 2;
  return size;
}

constexpr int kThreads = 8;  // of a pread pool; rows are small, many wait at once

}  // namespace

// Blocks are recycled in the order in which they were read, like a ring; a hash table finds them.
struct RowStore::Impl {
  enum class State : uint8_t { Empty, Reading, Ready };
  struct Block {
    uint64_t number = 0;  // in the file
    State state = State::Empty;
    uint64_t wanted = 0;  // the row of the current request, counted from 1, that needs it last
  };

  Impl(std::shared_ptr<const StreamFiles> opened, const RowTable& t, const RowStoreOptions& options)
      : files(std::move(opened)),
        table(t),
        bytes(block_bytes(t)),
        blocks(std::max<uint32_t>(options.n_blocks, 4)),
        index(hash_size(options.n_blocks < 4 ? 4 : options.n_blocks), -1),
        memory(blocks.size() * bytes, Pages::Small),
        queue(open_backend(*files, options.io, static_cast<size_t>(options.depth),
                           std::min(options.depth, kThreads), options.decorate, &report),
              files->alignment(), blocks.size()) {
    // Planned memory; faulted in now, it is not mistaken for what the first prompt leaves behind.
    memory.prefault(0, memory.size());
  }

  std::byte* data(size_t i) const noexcept { return memory.data() + i * bytes; }
  uint64_t first_block(int64_t row) const noexcept { return start_of(row) / bytes; }
  uint64_t last_block(int64_t row) const noexcept {
    return (start_of(row) + table.row_bytes - 1) / bytes;
  }
  uint64_t start_of(int64_t row) const noexcept {
    return table.offset + static_cast<uint64_t>(row) * table.row_bytes;
  }

  // Linear probing; the table is at most a quarter full.
  size_t home(uint64_t number) const noexcept {
    return (number * 0x9e3779b97f4a7c15ull >> 32) & (index.size() - 1);
  }
  int32_t find(uint64_t number) const noexcept {
    for (size_t at = home(number); index[at] >= 0; at = (at + 1) & (index.size() - 1)) {
      if (blocks[static_cast<size_t>(index[at])].number == number) return index[at];
    }
    return -1;
  }
  void insert(uint64_t number, int32_t block) noexcept {
    size_t at = home(number);
    while (index[at] >= 0) at = (at + 1) & (index.size() - 1);
    index[at] = block;
  }
  // Closes the gap, so that probing needs no marks of the dead.
  void erase(uint64_t number) noexcept {
    const size_t mask = index.size() - 1;
    size_t hole = home(number);
    while (index[hole] < 0 || blocks[static_cast<size_t>(index[hole])].number != number) {
      hole = (hole + 1) & mask;
    }
    for (size_t at = (hole + 1) & mask; index[at] >= 0; at = (at + 1) & mask) {
      const size_t wants = home(blocks[static_cast<size_t>(index[at])].number);
      if (((at - wants) & mask) >= ((at - hole) & mask)) {
        index[hole] = index[at];
        hole = at;
      }
    }
    index[hole] = -1;
  }

  // The block, present or being read; -1 when no place can be had now. `consumed`: rows of the
  // current request that are done with; blocks wanted by later ones stay.
  int32_t obtain(uint64_t number, uint64_t consumed) {
    const int32_t present = find(number);
    if (present >= 0) return present;
    for (size_t tries = 0; tries < blocks.size(); ++tries) {
      const auto i = static_cast<int32_t>(hand);
      hand = (hand + 1) % blocks.size();
      Block& block = blocks[static_cast<size_t>(i)];
      if (block.state == State::Reading || block.wanted > consumed) continue;
      if (block.state == State::Ready) erase(block.number);
      block = {number, State::Reading, 0};
      insert(number, i);
      start_read(i);
      return i;
    }
    return -1;
  }

  void start_read(int32_t i) {
    const uint64_t offset = blocks[static_cast<size_t>(i)].number * bytes;
    const uint64_t file_bytes = files->bytes(table.file);
    const uint64_t table_end = table.offset + table.n_rows * table.row_bytes;
    const uint64_t there = std::min(bytes, file_bytes - offset);
    queue.push({.fd = files->fd(table.file),
                .offset = offset,
                .data = data(static_cast<size_t>(i)),
                .bytes = static_cast<uint32_t>(files->direct() ? bytes : there),
                .needed = static_cast<uint32_t>(std::min(bytes, table_end - offset)),
                .reason = ReadReason::Rows,
                .tag = static_cast<uint64_t>(i)});
  }

  void handle(std::span<const ReadDone> done) {
    for (const ReadDone& d : done) {
      Block& block = blocks[d.tag];
      if (d.error == 0) {
        block.state = State::Ready;
        continue;
      }
      erase(block.number);
      block = {};
      if (error == 0) {
        error = d.error;
        error_offset = d.offset;
      }
    }
  }

  void raise() {
    if (error == 0) return;
    const std::string cause = read_error_text(std::exchange(error, 0));
    fail(
        ErrorKind::Io,
        "reading rows of {} failed at offset {}: {}; the step was given up, check the file and the "
        "disk",
        files->path(table.file), error_offset, cause);
  }

  void check(int64_t row) const {
    if (row < 0 || static_cast<uint64_t>(row) >= table.n_rows) {
      fail(ErrorKind::Internal, "row {} of a table of {}", row, table.n_rows);
    }
  }

  // Asks for the blocks of `row`, the position-th of the request; false when there is no place yet.
  bool want(int64_t row, uint64_t position, uint64_t consumed) {
    for (uint64_t number = first_block(row); number <= last_block(row); ++number) {
      const int32_t i = obtain(number, consumed);
      if (i < 0) return false;
      blocks[static_cast<size_t>(i)].wanted = position;
    }
    return true;
  }

  bool ready(int64_t row) const noexcept {
    for (uint64_t number = first_block(row); number <= last_block(row); ++number) {
      const int32_t i = find(number);
      if (i < 0 || blocks[static_cast<size_t>(i)].state != State::Ready) return false;
    }
    return true;
  }

  void copy(int64_t row, std::byte* out) const noexcept {
    uint64_t from = start_of(row);
    uint64_t left = table.row_bytes;
    while (left > 0) {
      const uint64_t within = from % bytes;
      const uint64_t n = std::min(left, bytes - within);
      std::memcpy(out, data(static_cast<size_t>(find(from / bytes))) + within, n);
      out += n;
      from += n;
      left -= n;
    }
  }

  void wait_for(int64_t row) {
    if (ready(row)) return;
    const int64_t start = now_ns();
    while (!ready(row)) {
      handle(queue.wait());
      raise();
    }
    stall_ns += static_cast<uint64_t>(now_ns() - start);
  }

  std::shared_ptr<const StreamFiles> files;
  RowTable table;
  uint64_t bytes;  // of a block
  std::vector<Block> blocks;
  std::vector<int32_t> index;  // hash table: block number -> index of blocks, or -1
  size_t hand = 0;             // the block to recycle next
  Mapping memory;
  std::vector<uint32_t> order;  // of the rows of a request, by row
  int error = 0;
  uint64_t error_offset = 0;
  uint64_t stall_ns = 0;
  IoReport report;
  ReadQueue queue;  // last: its reads end before the memory goes
};

RowStore::RowStore(std::shared_ptr<const StreamFiles> files, const RowTable& table,
                   const RowStoreOptions& options) {
  const uint64_t file_bytes = files->bytes(table.file);
  if (table.row_bytes == 0 || table.offset > file_bytes ||
      table.n_rows > (file_bytes - table.offset) / table.row_bytes) {
    fail(ErrorKind::Format,
         "a table of {} rows of {} bytes at offset {} does not lie within {} of {} bytes",
         table.n_rows, table.row_bytes, table.offset, files->path(table.file), file_bytes);
  }
  impl_ = std::make_unique<Impl>(std::move(files), table, options);
}

RowStore::~RowStore() = default;

void RowStore::prefetch(std::span<const int64_t> rows) {
  Impl& s = *impl_;
  s.handle(s.queue.poll());
  s.error = 0;  // whoever really needs the row meets the error again
  for (const int64_t row : rows) {
    s.check(row);
    if (!s.want(row, 0, 0)) break;
  }
  s.queue.submit();
}

void RowStore::read(std::span<const int64_t> rows, std::byte* out) {
  Impl& s = *impl_;
  s.handle(s.queue.poll());
  s.error = 0;
  for (const int64_t row : rows) s.check(row);
  s.order.resize(rows.size());
  std::iota(s.order.begin(), s.order.end(), 0u);
  std::sort(s.order.begin(), s.order.end(),
            [&](uint32_t a, uint32_t b) { return rows[a] < rows[b]; });
  for (Impl::Block& block : s.blocks) block.wanted = 0;
  const std::byte* previous = nullptr;
  for (size_t done = 0, asked = 0; done < rows.size(); ++done) {
    // As far ahead as there is room: at least the row at hand always finds a place, since blocks of
    // rows that are done with are free and those being read become so.
    while (asked < rows.size() && s.want(rows[s.order[asked]], asked + 1, done)) ++asked;
    s.queue.submit();
    const int64_t row = rows[s.order[done]];
    std::byte* target = out + s.order[done] * s.table.row_bytes;
    if (done > 0 && rows[s.order[done - 1]] == row) {
      std::memcpy(target, previous, s.table.row_bytes);
    } else {
      while (asked <= done) {
        s.handle(s.queue.wait());
        s.raise();
        while (asked <= done && s.want(row, done + 1, done)) ++asked;
      }
      s.wait_for(row);
      s.copy(row, target);
    }
    previous = target;
  }
}

const RowTable& RowStore::table() const noexcept {
  return impl_->table;
}
const ReadCounts& RowStore::counts() const noexcept {
  return impl_->queue.counts(ReadReason::Rows);
}
const IoReport& RowStore::io() const noexcept {
  return impl_->report;
}

uint64_t RowStore::stall_ns() const noexcept {
  return impl_->stall_ns;
}

uint64_t RowStore::memory_bytes(const RowTable& table, const RowStoreOptions& options) {
  const uint64_t n = std::max<uint32_t>(options.n_blocks, 4);
  const auto depth = static_cast<size_t>(options.depth);
  return n * (block_bytes(table) + sizeof(Impl::Block)) +
         hash_size(static_cast<uint32_t>(n)) * sizeof(int32_t) +
         backend_bytes(depth, std::min(options.depth, kThreads)) +
         ReadQueue::memory_bytes(depth, n);
}

}  // namespace penstock::experts
