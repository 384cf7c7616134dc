#include "experts/io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/vfs.h>

#include "base/error.h"
#include "base/memory.h"
#include "experts/arena.h"
#include "experts/backends.h"
#include "experts/expert_files.h"
#include "experts/faulty_backend.h"
#include "experts/read_queue.h"

namespace penstock::experts::test {
namespace {

constexpr uint64_t kBytes = 300 * 1024 + 777;

std::string write_pattern(const Directory& directory) {
  const std::string path = directory.file("pattern");
  std::vector<std::byte> bytes(kBytes);
  for (uint64_t i = 0; i < kBytes; ++i) bytes[i] = byte_at(0, 0, 0, i);
  AtomicFile out(path);
  out.write(bytes);
  out.commit();
  return path;
}

bool is_pattern(const std::byte* data, uint64_t offset, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (data[i] != byte_at(0, 0, 0, offset + i)) return false;
  }
  return true;
}

std::shared_ptr<const StreamFiles> open_one(const std::string& path, IoMode mode) {
  const std::vector<uint64_t> probe_at = {4096};
  return StreamFiles::open({path}, mode, probe_at);
}

class Backends : public testing::TestWithParam<Engine> {
 protected:
  std::unique_ptr<IoBackend> make(size_t capacity) {
    int error = 0;
    int threads = 0;
    switch (GetParam()) {
      case Engine::Uring: {
        auto made = make_uring(capacity, &error);
        if (made == nullptr) ADD_FAILURE() << "no io_uring here: " << errno_text(error);
        return made;
      }
      case Engine::Pool:
        return make_pool(capacity, 3, false, &threads);
      case Engine::Synchronous:
        return make_pool(capacity, 0, true, &threads);
    }
    return nullptr;
  }
};

TEST_P(Backends, ManyReadsAllArrive) {
  const Directory directory;
  const std::string path = write_pattern(directory);
  const auto files = open_one(path, IoMode::Auto);
  ReadQueue queue(make(8), files->alignment(), 64);
  const Mapping memory(kBytes + 8192, Pages::Small);
  std::vector<bool> arrived(75, false);
  for (uint64_t i = 0; i < 75; ++i) {  // far more than the capacity
    queue.push({.fd = files->fd(0),
                .offset = i * 4096,
                .data = memory.data() + i * 4096,
                .bytes = 4096,
                .needed = 4096,
                .tag = i});
  }
  while (queue.outstanding() > 0) {
    for (const ReadDone& done : queue.wait()) {
      EXPECT_EQ(done.error, 0);
      EXPECT_FALSE(arrived[done.tag]);
      arrived[done.tag] = true;
    }
  }
  EXPECT_EQ(std::count(arrived.begin(), arrived.end(), true), 75);
  EXPECT_TRUE(is_pattern(memory.data(), 0, 75 * 4096));
  EXPECT_EQ(queue.counts(ReadReason::Demand).reads, 75u);
  EXPECT_EQ(queue.counts(ReadReason::Demand).bytes, 75u * 4096u);
  EXPECT_GT(queue.busy_ns(), 0u);
  EXPECT_GE(queue.latency_ns(), queue.busy_ns());
  uint64_t counted = 0;
  for (const uint64_t n : queue.latencies(ReadReason::Demand).bucket) counted += n;
  EXPECT_EQ(counted, 75u);
}

TEST_P(Backends, AnEndOfFileBehindThePayloadIsAccepted) {
  const Directory directory;
  const std::string path = write_pattern(directory);
  const auto files = open_one(path, IoMode::Auto);
  ReadQueue queue(make(4), files->alignment(), 4);
  const Mapping memory(8192, Pages::Small);
  const uint64_t offset = round_down(kBytes, 4096);
  const auto tail = static_cast<uint32_t>(kBytes - offset);
  for (const uint32_t needed : {tail, tail + 1}) {
    queue.push({.fd = files->fd(0),
                .offset = offset,
                .data = memory.data(),
                .bytes = 4096,
                .needed = needed,
                .tag = needed});
    const std::span<const ReadDone> done = queue.wait();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].error, needed == tail ? 0 : kEndOfFile);
  }
  EXPECT_TRUE(is_pattern(memory.data(), offset, tail));
}

TEST_P(Backends, RefusalsArriveAsErrnoWithTheirOffset) {
  ReadQueue queue(make(4), 1, 4);
  std::byte memory[16];
  queue.push({.fd = -1, .offset = 512, .data = memory, .bytes = 16, .needed = 16, .tag = 1});
  const std::span<const ReadDone> done = queue.wait();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].error, EBADF);
  EXPECT_EQ(done[0].offset, 512u);
  EXPECT_TRUE(queue.wait().empty());  // nothing is outstanding: returns at once
}

TEST_P(Backends, ReadsInFlightEndBeforeTheQueueDoes) {
  const Directory directory;
  const std::string path = write_pattern(directory);
  const auto files = open_one(path, IoMode::Auto);
  for (int round = 0; round < 20; ++round) {
    const Mapping memory(64 * 4096, Pages::Small);
    ReadQueue queue(make(16), files->alignment(), 64);
    for (uint64_t i = 0; i < 64; ++i) {
      queue.push({.fd = files->fd(0),
                  .offset = i * 4096,
                  .data = memory.data() + i * 4096,
                  .bytes = 4096,
                  .needed = 4096,
                  .tag = i});
    }
    queue.submit();
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, Backends,
                         testing::Values(Engine::Uring, Engine::Pool, Engine::Synchronous),
                         [](const auto& engine) {
                           return engine.param == Engine::Uring  ? "uring"
                                  : engine.param == Engine::Pool ? "pool"
                                                                 : "synchronous";
                         });

TEST(ReadQueue, ShortReadsContinueAtAnAlignedPlace) {
  const Directory directory;
  const std::string path = write_pattern(directory);
  for (const IoMode mode : {IoMode::Auto, IoMode::Buffered}) {
    const auto files = open_one(path, mode);
    IoReport report;
    ReadQueue queue(with_faults({.short_reads = 0.8})(make_backend(mode, false, 4, 2, &report)),
                    files->alignment(), 4);
    const Mapping memory(64 * 1024, Pages::Small);
    for (int i = 0; i < 50; ++i) {
      queue.push({.fd = files->fd(0),
                  .offset = 8192,
                  .data = memory.data(),
                  .bytes = 64 * 1024,
                  .needed = 64 * 1024,
                  .tag = 0});
      const std::span<const ReadDone> done = queue.wait();
      ASSERT_EQ(done.size(), 1u);
      ASSERT_EQ(done[0].error, 0);
      ASSERT_TRUE(is_pattern(memory.data(), 8192, 64 * 1024));
    }
    EXPECT_GT(queue.retried(), 50u);
  }
}

TEST(StreamFiles, ABlockDeviceFileSystemIsProvenDirect) {
  const Directory directory;
  const auto files = open_one(write_pattern(directory), IoMode::Auto);
  if (files->report().file_system != "ext4" && files->report().file_system != "xfs") {
    GTEST_SKIP() << "nothing is known about direct reads on " << files->report().file_system;
  }
  EXPECT_TRUE(files->direct()) << files->report().describe();
  EXPECT_TRUE(files->report().proven) << files->report().describe();
  EXPECT_GE(files->alignment(), 64u);
  EXPECT_EQ(files->alignment() & (files->alignment() - 1), 0u);
}

TEST(StreamFiles, MemoryFileSystemsAreReportedAsBuffered) {
  struct statfs info {};
  constexpr uint64_t kTmpfs = 0x01021994;
  if (::statfs("/dev/shm", &info) != 0 || static_cast<uint64_t>(info.f_type) != kTmpfs) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  const std::string path = "/dev/shm/penstock_io_test." + std::to_string(::getpid());
  {
    AtomicFile out(path);
    const std::vector<std::byte> bytes(64 * 1024);
    out.write(bytes);
    out.commit();
  }
  const auto files = open_one(path, IoMode::Auto);
  EXPECT_FALSE(files->direct());
  EXPECT_FALSE(files->report().proven);
  EXPECT_EQ(files->alignment(), 1u);
  EXPECT_NE(files->report().reason.find("tmpfs"), std::string::npos);
  EXPECT_NE(files->report().describe().find("buffered"), std::string::npos);
  std::filesystem::remove(path);
}

TEST(StreamFiles, OneFileThatCannotBeReadDirectlyMakesAllBuffered) {
  const Directory directory;
  const std::string path = write_pattern(directory);
  const std::string other = "/dev/shm/penstock_io_test2." + std::to_string(::getpid());
  std::filesystem::copy_file(path, other);
  const std::vector<uint64_t> probe_at = {0, 0};
  for (const auto& paths : {std::vector<std::string>{path, other}, {other, path}}) {
    const auto files = StreamFiles::open(paths, IoMode::Auto, probe_at);
    EXPECT_FALSE(files->direct());
    EXPECT_EQ(files->alignment(), 1u);
    EXPECT_EQ(files->bytes(1), kBytes);
  }
  std::filesystem::remove(other);
}

// A file system that refuses O_DIRECT, at the opening or at the first read; one that takes it and
// reads through the page cache all the same; one whose cache cannot be observed.
TEST(StreamFiles, RefusedDirectReadsAreReportedAsBuffered) {
  const Directory directory;
  const std::string path = write_pattern(directory);
  const std::vector<uint64_t> probe_at = {4096};
  const auto open_with = [&](const ProbeCalls& calls) {
    return StreamFiles::open({path}, IoMode::Auto, probe_at, calls);
  };
  if (!open_with({})->direct()) GTEST_SKIP() << "no direct reads here to be refused";

  ProbeCalls no_open;
  no_open.open = [](const std::string& name, int flags, int* error) {
    if ((flags & O_DIRECT) == 0) return File::try_open(name, flags, error);
    *error = EINVAL;
    return File();
  };
  ProbeCalls no_read;
  no_read.pread = [](int fd, void* data, size_t bytes, off_t offset) -> ssize_t {
    if ((::fcntl(fd, F_GETFL) & O_DIRECT) == 0) return ::pread(fd, data, bytes, offset);
    errno = EINVAL;
    return -1;
  };
  const File cached = File::open_read(path);
  ProbeCalls silent;
  silent.pread = [&cached](int, void* data, size_t bytes, off_t offset) {
    return ::pread(cached.fd(), data, bytes, offset);
  };
  for (const auto& [calls, word] : {std::pair{no_open, "refuses O_DIRECT"},
                                    {no_read, "direct read"},
                                    {silent, "from the page cache"}}) {
    const auto files = open_with(calls);
    EXPECT_FALSE(files->direct()) << word;
    EXPECT_FALSE(files->report().proven) << word;
    EXPECT_EQ(files->alignment(), 1u) << word;
    EXPECT_NE(files->report().reason.find(word), std::string::npos) << files->report().reason;
    EXPECT_NE(files->report().describe().find("buffered"), std::string::npos);
    // And the bytes come nevertheless.
    IoReport report;
    ReadQueue queue(make_backend(IoMode::Auto, true, 4, 2, &report), files->alignment(), 4);
    std::vector<std::byte> memory(1000);
    queue.push({.fd = files->fd(0),
                .offset = 12345,
                .data = memory.data(),
                .bytes = 1000,
                .needed = 1000});
    ASSERT_EQ(queue.wait().size(), 1u);
    EXPECT_TRUE(is_pattern(memory.data(), 12345, 1000));
    EXPECT_NE(report.engine, Engine::Uring);
  }
}

TEST(StreamFiles, BufferedIsWhatWasAskedFor) {
  const Directory directory;
  const auto files = open_one(write_pattern(directory), IoMode::Buffered);
  EXPECT_FALSE(files->direct());
  EXPECT_TRUE(files->report().reason.empty());
  EXPECT_EQ(files->report().requested, IoMode::Buffered);
}

TEST(StreamFiles, AMissingFileIsNamed) {
  try {
    open_one("/nonexistent/model.gguf", IoMode::Auto);
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Io);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/model.gguf"), std::string::npos);
  }
}

TEST(Arena, SlotsLieInRangesOfWholeSlots) {
  ArenaShape shape;
  shape.classes = {{.slot_bytes = 8192, .n_experts = 9, .slots = 5},
                   {.slot_bytes = 4096, .n_experts = 9, .slots = 3}};
  shape.transit = 2;
  const Arena arena(shape, 1.0);
  EXPECT_EQ(arena.bytes(), 5u * 8192 + 3u * 4096 + 2u * 8192);
  const std::vector<MemoryRange> ranges = arena.ranges();
  const std::byte* end = arena.slot(0);
  for (int32_t id = 0; id < 10; ++id) {
    EXPECT_EQ(arena.slot(id), end);
    end = arena.slot(id) + arena.slot_bytes(id);
    const MemoryRange& range = ranges[static_cast<size_t>(arena.range_of(id))];
    EXPECT_GE(arena.slot(id), range.data);
    EXPECT_LE(end, range.data + range.bytes);
  }
}

TEST(Arena, RangesAreNoLargerThanTheKernelRegisters) {
  ArenaShape shape;
  shape.classes = {{.slot_bytes = 8192, .n_experts = 20, .slots = 6}};
  const Arena arena(shape, 0.0, 5 * 8192 - 1);
  const std::vector<MemoryRange> ranges = arena.ranges();
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].bytes, 4u * 8192);
  EXPECT_EQ(ranges[1].bytes, 2u * 8192);
  EXPECT_EQ(arena.range_of(3), 0);
  EXPECT_EQ(arena.range_of(4), 1);
  EXPECT_EQ(arena.huge(), 0u);
}

TEST(Options, NamesAreReadBack) {
  for (const IoMode mode :
       {IoMode::Auto, IoMode::Uring, IoMode::Pread, IoMode::Buffered, IoMode::Mmap}) {
    EXPECT_EQ(parse_io_mode(io_mode_name(mode)), mode);
  }
  EXPECT_EQ(parse_evict("lru"), Evict::Lru);
  EXPECT_EQ(parse_evict("lfu"), Evict::Lfu);
  EXPECT_THROW(parse_io_mode("aio"), Error);
  EXPECT_THROW(parse_evict("arc"), Error);
}

}  // namespace
}  // namespace penstock::experts::test
