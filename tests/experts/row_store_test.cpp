#include "experts/row_store.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "experts/expert_files.h"
#include "experts/faulty_backend.h"
#include "experts/io.h"

namespace penstock::experts::test {
namespace {

constexpr uint64_t kOffset = 1234;  // like a tensor: aligned to nothing large

std::string write_table(const Directory& directory, uint64_t row_bytes, uint64_t n_rows) {
  const std::string path = directory.file("table");
  std::vector<std::byte> bytes(kOffset + row_bytes * n_rows);
  std::mt19937 random(1);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  AtomicFile out(path);
  out.write(bytes);
  out.commit();
  written()[path] = std::move(bytes);
  return path;
}

std::shared_ptr<const StreamFiles> open_table(const std::string& path, IoMode mode) {
  const std::vector<uint64_t> probe_at = {kOffset};
  return StreamFiles::open({path}, mode, probe_at);
}

// Against the bytes written.
void expect_rows(RowStore& store, const std::string& path, const std::vector<int64_t>& rows) {
  const uint64_t n = store.table().row_bytes;
  std::vector<std::byte> got(rows.size() * n);
  store.read(rows, got.data());
  const std::byte* table = written().at(path).data() + kOffset;
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(std::memcmp(got.data() + i * n, table + static_cast<uint64_t>(rows[i]) * n, n), 0)
        << rows[i];
  }
}

class RowStoreModes : public testing::TestWithParam<IoMode> {};

TEST_P(RowStoreModes, RowsAreTheBytesWritten) {
  const Directory directory;
  for (const uint64_t row_bytes : {90, 512, 4096, 5000}) {
    const std::string path = write_table(directory, row_bytes, 1000);
    for (const bool faulty : {false, true}) {
      RowStoreOptions options;
      options.io = GetParam();
      options.n_blocks = 40;
      if (faulty) {
        options.decorate =
            with_faults({.hold = 0.5, .reorder = true, .short_reads = 0.3, .transient = 0.2});
      }
      RowStore store(open_table(path, GetParam()), {0, kOffset, row_bytes, 1000}, options);
      std::mt19937 random(3);
      expect_rows(store, path, {0, 999, 1, 998});
      for (int i = 0; i < 10; ++i) {
        std::vector<int64_t> rows;
        const size_t n = i == 7 ? 300 : 16;  // more than the ring holds, too
        while (rows.size() < n) rows.push_back(static_cast<int64_t>(random() % 1000));
        rows.push_back(rows[0]);
        if (i % 2 == 0) store.prefetch(rows);
        expect_rows(store, path, rows);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Io, RowStoreModes,
                         testing::Values(IoMode::Uring, IoMode::Pread, IoMode::Buffered),
                         [](const auto& mode) { return std::string(io_mode_name(mode.param)); });

TEST(RowStore, ABlockIsReadOnceHoweverOftenItsRowsAreWanted) {
  const Directory directory;
  const std::string path = write_table(directory, 64, 1000);
  RowStore store(open_table(path, IoMode::Auto), {0, kOffset, 64, 1000});
  expect_rows(store, path, {5, 5, 6, 5});  // all in the block at 0
  EXPECT_EQ(store.counts().reads, 1u);
  EXPECT_EQ(store.counts().bytes, 4096u);
  expect_rows(store, path, {6, 7});
  EXPECT_EQ(store.counts().reads, 1u);
  store.prefetch(std::vector<int64_t>{500});
  expect_rows(store, path, {500});
  EXPECT_EQ(store.counts().reads, 2u);
}

TEST(RowStore, AReadErrorIsTypedAndPasses) {
  const Directory directory;
  const std::string path = write_table(directory, 64, 1000);
  RowStoreOptions options;
  options.decorate = with_faults({.errors = {{1, EIO}}});
  RowStore store(open_table(path, IoMode::Auto), {0, kOffset, 64, 1000}, options);
  try {
    expect_rows(store, path, {500});
    FAIL() << "read";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Io);
    const std::string message = error.what();
    EXPECT_NE(message.find(path), std::string::npos);
    EXPECT_NE(message.find("offset 32768"), std::string::npos) << message;
    EXPECT_NE(message.find("(errno 5)"), std::string::npos) << message;
  }
  expect_rows(store, path, {500});
}

TEST(RowStore, ATableOutsideItsFileIsRefused) {
  const Directory directory;
  const std::string path = write_table(directory, 64, 1000);
  const auto files = open_table(path, IoMode::Auto);
  EXPECT_THROW(RowStore(files, {0, kOffset, 64, 1001}), Error);
  EXPECT_THROW(RowStore(files, {0, kOffset, 64, UINT64_MAX / 32}), Error);
  EXPECT_THROW(RowStore(files, {0, UINT64_MAX - 3, 64, 1}), Error);
  EXPECT_THROW(RowStore(files, {0, kOffset, 0, 1}), Error);
  RowStore store(files, {0, kOffset, 64, 1000});
  std::byte row[64];
  EXPECT_THROW(store.read(std::vector<int64_t>{1000}, row), Error);
  EXPECT_THROW(store.read(std::vector<int64_t>{-1}, row), Error);
}

}  // namespace
}  // namespace penstock::experts::test
