#include "base/locked_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/memory.h"

namespace penstock {
namespace {

TEST(LockedMemory, IsReadFromTheStatusOfTheProcess) {
  const std::filesystem::path root = std::filesystem::path(PENSTOCK_BINARY_DIR) /
                                     ("locked_memory_test." + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "proc/self");
  std::ofstream(root / "proc/self/status") << "Name:\tx\nVmSize:\t  900 kB\nVmLck:\t    72 kB\n";
  EXPECT_EQ(locked_memory(root.string()), 72u * 1024);
  std::ofstream(root / "proc/self/status") << "Name:\tx\n";
  EXPECT_EQ(locked_memory(root.string()), 0u);
  std::filesystem::remove_all(root);
  EXPECT_EQ(locked_memory(root.string()), 0u);
}

TEST(LockedMemory, ARefusalLeavesNothingLocked) {
  const uint64_t before = locked_memory();
  Mapping memory(4 * kPageSize, Pages::Small);
  munmap(memory.data() + 3 * kPageSize, kPageSize);  // a hole: the kernel gives up there
  const int error = lock_memory(memory.data(), memory.size());
  if (error == 0) GTEST_SKIP() << "locking does nothing here (a sanitizer)";
  EXPECT_TRUE(error == ENOMEM || error == EPERM) << error;
  EXPECT_EQ(locked_memory(), before);
}

}  // namespace
}  // namespace penstock
