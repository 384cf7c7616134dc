#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/error.h"

namespace penstock {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceAndPublishesTheResults) {
  for (int n_threads : {1, 2, 5}) {
    ThreadPool pool(n_threads);
    EXPECT_EQ(pool.size(), n_threads);
    for (int64_t n_tasks : {0, 1, 2, 3, 1000}) {
      std::vector<int> counts(
          static_cast<size_t>(n_tasks));  // plain ints: a race is TSan's to find
      pool.parallel_for(n_tasks, [&](int64_t task, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, n_threads);
        counts[static_cast<size_t>(task)] += 1;
      });
      for (int count : counts) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, ManyShortLoopsInARow) {
  ThreadPool pool(3);
  std::vector<int64_t> slots(64);
  for (int64_t round = 0; round < 2000; ++round) {
    pool.parallel_for(64, [&](int64_t task, int) { slots[static_cast<size_t>(task)] += task; });
  }
  for (int64_t task = 0; task < 64; ++task)
    EXPECT_EQ(slots[static_cast<size_t>(task)], 2000 * task);
}

TEST(ThreadPool, RefusesNoThreads) {
  EXPECT_THROW(ThreadPool(0), Error);
}

}  // namespace
}  // namespace penstock
