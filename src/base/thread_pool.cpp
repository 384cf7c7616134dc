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

uint64_t range_of(int64_t first, int64_t end) noexcept {
  return static_cast<uint64_t>(first) | static_cast<uint64_t>(end) << 32;
}

bool take_first(std::atomic<uint64_t>& range, uint32_t& task) noexcept {
  uint64_t left = range.load(std::memory_order_relaxed);
  do {
    task = static_cast<uint32_t>(left);
    if (task == static_cast<uint32_t>(left >> 32)) return false;
  } while (!range.compare_exchange_weak(left, left + 1, std::memory_order_relaxed));
  return true;
}

bool take_last(std::atomic<uint64_t>& range, uint32_t& task) noexcept {
  uint64_t left = range.load(std::memory_order_relaxed);
  do {
    if (static_cast<uint32_t>(left) == static_cast<uint32_t>(left >> 32)) return false;
    task = static_cast<uint32_t>(left >> 32) - 1;
  } while (
      !range.compare_exchange_weak(left, left - (uint64_t{1} << 32), std::memory_order_relaxed));
  return true;
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  if (n_threads < 1) fail(ErrorKind::Usage, "a thread count of {} makes no sense", n_threads);
  shares_ = std::vector<Share>(static_cast<size_t>(n_threads));
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
  const size_t n = shares_.size();
  for (size_t i = 0; i < n; ++i) {
    std::atomic<uint64_t>& range = shares_[(static_cast<size_t>(thread) + i) % n].range;
    for (uint32_t task; i == 0 ? take_first(range, task) : take_last(range, task);) {
      body(task, thread);
    }
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
  const auto n = static_cast<int64_t>(shares_.size());
  for (int64_t i = 0; i < n; ++i) {
    shares_[static_cast<size_t>(i)].range.store(range_of(n_tasks * i / n, n_tasks * (i + 1) / n),
                                                std::memory_order_relaxed);
  }
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
