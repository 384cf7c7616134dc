// Where the dense weights lie: what is locked, and what the mapping leaves on the disk.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "base/file.h"
#include "base/memory.h"
#include "models/harness.h"

namespace penstock::testing {
namespace {

using gguf::Tensor;
using models::DenseMode;
using models::DenseReport;

struct Area {
  const std::byte* start;
  size_t bytes;
};

// A locker that only remembers; from the n-th call on it refuses.
MemoryLocker remember(std::vector<Area>* areas, size_t refuse_from = SIZE_MAX, int error = ENOMEM) {
  return [=](const void* start, size_t bytes) {
    areas->push_back({static_cast<const std::byte*>(start), bytes});
    return areas->size() > refuse_from ? error : 0;
  };
}

// qwen3moe has neither shared experts nor convolutions: its dense matrices are those of two
// dimensions.
class DenseMemory : public ::testing::Test {
 protected:
  DenseMemory() {
    TinyOptions tiny;
    tiny.extra["zz_not_used.weight"] = {64, 2048};
    path_ = write_tiny(folder_.path(), "qwen3moe", tiny);
    file_ = std::make_shared<gguf::Model>(gguf::Model::open(path_));
    options_.open.convert = {{"blk.2.attn_q.weight", gguf::TypeId::F16},
                             {"output.weight", gguf::TypeId::Q8_0}};
  }

  bool used_in_place(const Tensor& t) const {
    if (t.n_dims != 2 || t.name == "token_embd.weight" || t.name == "zz_not_used.weight") {
      return false;
    }
    for (const models::ConvertRule& rule : options_.open.convert) {
      if (rule.pattern == t.name) return false;
    }
    return true;
  }

  std::unique_ptr<models::Model> open() const {
    return models::open({.trunk = file_, .draft = nullptr, .table = nullptr}, options_.open);
  }

  // Pages of the file that are in memory among those that lie wholly inside, or that hold any byte
  // of, the tensors chosen; and how many there are.
  struct Pages {
    size_t resident = 0, all = 0;
  };
  Pages pages(bool wholly, const std::function<bool(const Tensor&)>& chosen) const {
    const FileMap map(File::open_read(path_));
    std::vector<unsigned char> state((map.size() + kPageSize - 1) / kPageSize);
    EXPECT_EQ(mincore(const_cast<std::byte*>(map.data()), map.size(), state.data()), 0);
    Pages pages;
    for (const Tensor& t : file_->tensors()) {
      if (!chosen(t)) continue;
      const uint64_t end = t.offset + t.bytes;
      const uint64_t first = wholly ? round_up(t.offset, kPageSize) : t.offset;
      const uint64_t last = wholly ? round_down(end, kPageSize) : round_up(end, kPageSize);
      for (uint64_t p = first / kPageSize; p < last / kPageSize; ++p) {
        ++pages.all;
        pages.resident += state[p] & 1;
      }
    }
    return pages;
  }

  // Takes the file out of the page cache, although its headers were read through the mapping.
  void drop() const {
    for (const Tensor& t : file_->tensors()) file_->advise(t, MADV_DONTNEED);
    const File file = File::open_read(path_);
    fsync(file.fd());
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }

  TemporaryFolder folder_;
  std::string path_;
  std::shared_ptr<gguf::Model> file_;
  HarnessOptions options_;
  ThreadPool pool_{2};
};

TEST_F(DenseMemory, TheMappingLeavesOnTheDiskWhatIsNotUsedInPlace) {
  const auto model = open();
  const auto left_alone = [&](const Tensor& t) {
    return !used_in_place(t) && t.name != "token_embd.weight";
  };
  drop();
  if (pages(true, left_alone).resident != 0) GTEST_SKIP() << "this file system keeps its pages";
  model->load(pool_, DenseMode::Map, {});
  const Pages in_place = pages(false, [&](const Tensor& t) { return used_in_place(t); });
  EXPECT_GT(in_place.all, 20u);
  EXPECT_EQ(in_place.resident, in_place.all);
  Pages alone = pages(true, left_alone);
  EXPECT_GT(alone.all, 200u);
  EXPECT_EQ(alone.resident, 0u);
  // Nor does locking or computing bring them in (experts come through another mapping).
  model->lock_dense(lock_memory);
  auto state = model->new_state(options_.state);
  MemoryStream stream(model->experts());
  std::vector<float> logits(static_cast<size_t>(model->info().n_vocab));
  const std::vector<int32_t> tokens = tiny_tokens(12);
  model->forward(*state, stream, {tokens, experts::Phase::Prompt}, logits.data());
  alone = pages(true, [&](const Tensor& t) {
    return left_alone(t) && !gguf::is_expert_bank(t.name) && t.name.starts_with("blk.2.");
  });
  EXPECT_GT(alone.all, 0u);
  EXPECT_EQ(alone.resident, 0u);
}

TEST_F(DenseMemory, MappedIsLockedPageForPage) {
  const auto model = open();
  model->load(pool_, DenseMode::Map, {});
  std::vector<Area> areas;
  model->lock_dense(remember(&areas));
  const DenseReport report = model->dense();
  EXPECT_EQ(report.bytes_requested(), report.bytes_pages);
  EXPECT_EQ(report.bytes_locked(), report.bytes_pages);
  EXPECT_EQ(report.regions.size(), areas.size());
  const std::byte* const base = file_->data(file_->tensors()[0]) - file_->tensors()[0].offset;
  uint64_t last_end = 0;
  std::vector<bool> locked(file_->file_bytes() / kPageSize + 1);
  for (size_t i = 0; i + 1 < areas.size(); ++i) {  // the last is what was made
    ASSERT_GE(areas[i].start, base);
    const auto from = static_cast<uint64_t>(areas[i].start - base);
    EXPECT_EQ(from % kPageSize, 0u);
    EXPECT_EQ(areas[i].bytes % kPageSize, 0u);
    EXPECT_TRUE(i == 0 || from > last_end) << "ranges that touch are one";
    last_end = from + areas[i].bytes;
    for (uint64_t p = from / kPageSize; p < last_end / kPageSize; ++p) locked[p] = true;
  }
  std::vector<bool> expected(locked.size());
  for (const Tensor& t : file_->tensors()) {
    if (!used_in_place(t)) continue;
    for (uint64_t p = t.offset / kPageSize; p * kPageSize < t.offset + t.bytes; ++p) {
      expected[p] = true;
    }
  }
  EXPECT_EQ(locked, expected);
}

TEST_F(DenseMemory, WhatIsLockedIsWhatTheKernelCounts) {
  for (const DenseMode mode : {DenseMode::Copy, DenseMode::Map}) {
    const auto model = open();
    model->load(pool_, mode, {});
    EXPECT_FALSE(model->dense().lock_tried);
    const uint64_t before = locked_memory();
    model->lock_dense(lock_memory);
    const DenseReport report = model->dense();
    EXPECT_TRUE(report.lock_tried);
    EXPECT_EQ(report.bytes_requested(), report.bytes_pages);
    if (report.vm_locked == 0) GTEST_SKIP() << "memory cannot be locked here, or by a sanitizer";
    EXPECT_EQ(report.bytes_locked(), report.bytes_requested());
    EXPECT_EQ(report.vm_locked - before, report.bytes_locked());
    EXPECT_TRUE(models::lock_shortfall(report).empty());
  }
  // What is unmapped is no longer locked, but the mapping of the file is still there.
  file_.reset();
  EXPECT_EQ(locked_memory(), 0u);
}

TEST_F(DenseMemory, ARefusalIsRecordedRegionByRegion) {
  for (const int error : {ENOMEM, EPERM}) {
    const auto model = open();
    model->load(pool_, DenseMode::Copy, {});
    std::vector<Area> areas;
    model->lock_dense(remember(&areas, 1, error));
    const DenseReport report = model->dense();
    ASSERT_EQ(report.regions.size(), 2u);
    EXPECT_EQ(report.regions[0].locked, report.regions[0].requested);
    EXPECT_EQ(report.regions[0].error, 0);
    EXPECT_EQ(report.regions[1].locked, 0u);
    EXPECT_EQ(report.regions[1].error, error);
    EXPECT_EQ(report.bytes_locked(), areas[0].bytes);
    EXPECT_EQ(report.bytes_requested(), areas[0].bytes + areas[1].bytes);
    const std::string text = models::lock_shortfall(report);
    for (const std::string& word :
         {std::to_string(error), std::string("RLIMIT_MEMLOCK"), std::string("--lock off")}) {
      EXPECT_NE(text.find(word), std::string::npos) << text;
    }
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

TEST_F(DenseMemory, SkippedTensorsAreCounted) {
  const DenseReport report = open()->dense();
  EXPECT_EQ(report.tensors_skipped, 1u);
  EXPECT_EQ(report.bytes_skipped, 64u * 2048 * 4);
  uint64_t n = 0, bytes = 0;
  for (const Tensor& t : file_->tensors()) {
    if (gguf::is_expert_bank(t.name) || t.name == "token_embd.weight" ||
        t.name == "zz_not_used.weight") {
      continue;
    }
    ++n;
    bytes += t.bytes;
  }
  EXPECT_EQ(report.tensors, n);
  EXPECT_EQ(report.bytes_file, bytes);
  EXPECT_EQ(report.bytes_live, bytes - report.bytes_converted() + report.converted[0].bytes_to +
                                   report.converted[1].bytes_to);
  HarnessOptions with_draft;
  with_draft.tiny.draft = true;  // not asked for: nothing reads it
  Harness h("qwen4exp", with_draft);
  EXPECT_TRUE(h.info().unused_tensors.empty());
  EXPECT_GT(h.model().dense().tensors_skipped, 20u);
}

}  // namespace
}  // namespace penstock::testing
