#include "base/thread_pool.h"

#include "base/error.h"

namespace penstock {
namespace {

inline void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Spins for at most a few tens of microseconds: longer than the gaps between the loops of one
// layer, short enough that a machine with fewer free cores than threads does not lose its time
// slices.
constexpr int kSpins = 2000;

void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old) noexcept {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_cpu();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  if (n_threads < 1) fail(ErrorKind::Usage, "a thread count of {} makes no sense", n_threads);
  workers_.reserve(static_cast<size_t>(n_threads) - 1);
  for (int t = 1; t < n_threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_tasks(int thread) noexcept {
  const Body& body = *body_;
  for (;;) {
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= n_tasks_) return;
    body(task, thread);
  }
}

void ThreadPool::work(int thread) noexcept {
  uint32_t seen = 0;
  for (;;) {
    wait_while_equal(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    run_tasks(thread);
    if (active_.fetch_sub(1, std::memory_order_acq_rel) == 1) active_.notify_one();
  }
}

void ThreadPool::parallel_for(int64_t n_tasks, Body body) noexcept {
  if (n_tasks <= 0) return;
  if (workers_.empty() || n_tasks == 1) {
    for (int64_t task = 0; task < n_tasks; ++task) body(task, 0);
    return;
  }
  body_ = &body;
  n_tasks_ = n_tasks;
  next_.store(0, std::memory_order_relaxed);
  active_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  run_tasks(0);
  for (uint32_t left = active_.load(std::memory_order_acquire); left != 0;
       left = active_.load(std::memory_order_acquire)) {
    wait_while_equal(active_, left);
  }
}

}  // namespace penstock
