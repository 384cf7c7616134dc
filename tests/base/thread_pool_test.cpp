#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
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

// Task 0 ends only when all others have: the rest of its thread's share must be taken by others.
TEST(ThreadPool, TasksOfABusyThreadAreTakenByOthers) {
  ThreadPool pool(3);
  std::atomic<int64_t> done{0};
  pool.parallel_for(300, [&](int64_t task, int) {
    while (task == 0 && done.load() < 299) std::this_thread::yield();
    done.fetch_add(1);
  });
  EXPECT_EQ(done.load(), 300);
}

// What the kernels' prefetches rely on: with tasks of like length most of a thread's tasks follow
// the one before.
TEST(ThreadPool, AThreadGoesThroughNeighbours) {
  constexpr int64_t kTasks = 400;
  ThreadPool pool(2);
  std::vector<int64_t> last(2, -1);
  std::atomic<int64_t> neighbours{0}, started{0};
  pool.parallel_for(kTasks, [&](int64_t task, int thread) {
    // Both threads take part before either goes on.
    if (started.fetch_add(1) < 2) {
      while (started.load() < 2) std::this_thread::yield();
    }
    int64_t& before = last[static_cast<size_t>(thread)];
    if (task == before + 1 || before < 0) neighbours.fetch_add(1);
    before = task;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
  EXPECT_GT(neighbours.load(), kTasks / 3);
}

TEST(ThreadPool, RefusesNoThreads) {
  EXPECT_THROW(ThreadPool(0), Error);
}

}  // namespace
}  // namespace penstock
