// Dense weights in a running model: planned, locked or refused.
#include <gtest/gtest.h>

#include <cerrno>

#include "base/error.h"
#include "engine/tiny_runtime.h"

namespace penstock::engine::test {
namespace {

class Dense : public ::testing::Test {
 protected:
  Dense() {
    penstock::testing::TinyOptions tiny;
    tiny.shapes = {{"token_embd.weight", {64, 4000}}, {"output.weight", {64, 4000}}};
    options_.model_path = penstock::testing::write_tiny(folder_.path(), "qwen35moe", tiny);
    options_.threads = 1;
    options_.n_ctx = 96;
    options_.prompt_chunk = 32;
    options_.arena_slots = 4096;
    options_.stream.huge_seconds = 0;
  }
  penstock::testing::TemporaryFolder folder_;
  RuntimeOptions options_;
};

TEST_F(Dense, ThePlansTermIsWhatIsHeld) {
  for (const models::DenseMode mode : {models::DenseMode::Copy, models::DenseMode::Map}) {
    options_.dense = mode;
    options_.dense_convert.clear();
    const auto plain = Runtime::open(options_, nullptr);
    options_.dense_convert = {models::parse_convert_rule("output.weight=F16")};
    const auto converted = Runtime::open(options_, nullptr);
    EXPECT_EQ(plain->plan().terms.dense, plain->load().dense.bytes_pages);
    EXPECT_EQ(converted->plan().terms.dense, converted->load().dense.bytes_pages);
    EXPECT_LT(converted->plan().terms.dense, plain->plan().terms.dense);
    EXPECT_EQ(converted->load().dense.tensors_converted(), 1u);
  }
}

TEST_F(Dense, ARefusedLockIsFatalOnlyWhereRequired) {
  options_.memory_locker = [](const void*, size_t) { return EPERM; };
  const auto runtime = Runtime::open(options_, nullptr);
  EXPECT_TRUE(runtime->load().dense.lock_tried);
  EXPECT_EQ(runtime->load().dense.bytes_locked(), 0u);
  EXPECT_EQ(runtime->load().dense.lock_error(), EPERM);
  options_.require_lock = true;
  try {
    Runtime::open(options_, nullptr);
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Io);
    EXPECT_NE(std::string(error.what()).find("RLIMIT_MEMLOCK"), std::string::npos);
  }
}

TEST_F(Dense, NothingIsLockedWhereNotWanted) {
  bool asked = false;
  options_.memory_locker = [&](const void*, size_t) {
    asked = true;
    return 0;
  };
  options_.lock_dense = false;
  EXPECT_FALSE(Runtime::open(options_, nullptr)->load().dense.lock_tried);
  EXPECT_FALSE(asked);
}

}  // namespace
}  // namespace penstock::engine::test
