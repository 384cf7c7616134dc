#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(PENSTOCK_BINARY_DIR) / ("file_test." + std::to_string(::getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::string path(const char* name) const { return (directory_ / name).string(); }
  size_t n_files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), {}));
  }
  fs::path directory_;
};

TEST_F(FileTest, AtomicFileAppearsOnlyWhenCommitted) {
  {
    AtomicFile abandoned(path("a"));
    abandoned.write("half", 4);
    EXPECT_FALSE(fs::exists(path("a")));
  }
  EXPECT_EQ(n_files(), 0U);  // the temporary file went with it

  AtomicFile kept(path("b"));
  kept.write("hello world", 11);
  kept.write_at(0, std::as_bytes(std::span("J", 1)));
  EXPECT_EQ(kept.position(), 11U);
  kept.commit();
  EXPECT_EQ(read_text_file(path("b")), "Jello world");
  EXPECT_EQ(n_files(), 1U);
}

TEST_F(FileTest, ReadPastTheEndNamesFileAndOffset) {
  AtomicFile out(path("short"));
  out.write("0123456789", 10);
  out.commit();
  const File file = File::open_read(path("short"));
  EXPECT_EQ(file.size(), 10U);
  std::vector<std::byte> bytes(8);
  file.read_at(2, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "23456789", 8), 0);
  try {
    file.read_at(5, bytes);
    FAIL() << "read past the end";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Io);
    EXPECT_NE(std::string(error.what()).find("short ends at byte 10"), std::string::npos)
        << error.what();
  }
}

TEST_F(FileTest, MissingFilesAndDirectoriesAreRefusedByName) {
  EXPECT_THROW(File::open_read(path("missing")), Error);
  EXPECT_THROW(File::open_read(directory_.string()), Error);
  EXPECT_THROW(AtomicFile(path("no/such/directory/file")), Error);
}

TEST(Hash, KnownAnswers) {
  Sha256Stream sha;
  sha.update("a", 1);
  sha.update("bc", 2);
  EXPECT_EQ(hex(sha.finish()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(xxh64({}), 0xef46db3751d8e999ULL);
}

TEST(Mapping, HugeMappingsAreAlignedAndZero) {
  Mapping mapping(3 * kHugePageSize + 5, Pages::Huge);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping.data()) % kHugePageSize, 0U);
  EXPECT_EQ(mapping.size() % kPageSize, 0U);
  EXPECT_EQ(mapping.data()[mapping.size() - 1], std::byte{0});
  mapping.prefault(0, mapping.size());
  EXPECT_LE(huge_bytes(mapping.data(), mapping.size()), mapping.size());
  const Mapping moved = std::move(mapping);
  EXPECT_NE(moved.data(), nullptr);
}

}  // namespace
}  // namespace penstock
