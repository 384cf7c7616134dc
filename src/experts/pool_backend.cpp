#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "experts/backends.h"

namespace penstock::experts {
namespace {

constexpr int kSpins = 200;

ReadResult perform(const ReadOp& op, bool drop_cache) noexcept {
  const ssize_t n = ::pread(op.fd, op.data, op.bytes, static_cast<off_t>(op.offset));
  const int64_t result = n >= 0 ? static_cast<int64_t>(n) : -int64_t{errno};
  if (drop_cache && n > 0) {
    ::posix_fadvise(op.fd, static_cast<off_t>(op.offset), static_cast<off_t>(n),
                    POSIX_FADV_DONTNEED);
  }
  return {op.tag, result};
}

// A queue of fixed capacity.
template <typename T>
class Ring {
 public:
  explicit Ring(size_t capacity) : items_(capacity) {}
  bool empty() const noexcept { return size_ == 0; }
  void push(const T& item) noexcept {
    items_[(head_ + size_) % items_.size()] = item;
    ++size_;
  }
  T pop() noexcept {
    const T item = items_[head_];
    head_ = (head_ + 1) % items_.size();
    --size_;
    return item;
  }

 private:
  std::vector<T> items_;
  size_t head_ = 0;
  size_t size_ = 0;
};

class PoolBackend final : public IoBackend {
 public:
  PoolBackend(size_t capacity, int threads, bool drop_cache)
      : capacity_(capacity), drop_cache_(drop_cache), work_(capacity), done_(capacity) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {
      // The system gives no more threads: fewer do, and without any submit() reads by itself.
    }
  }

  ~PoolBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();  // each finishes the queue first
  }

  int threads() const noexcept { return static_cast<int>(threads_.size()); }
  size_t capacity() const noexcept override { return capacity_; }
  size_t in_flight() const noexcept override { return in_flight_; }
  Engine engine() const noexcept override {
    return threads_.empty() ? Engine::Synchronous : Engine::Pool;
  }

  void submit(std::span<const ReadOp> batch) override {
    in_flight_ += batch.size();
    if (threads_.empty()) {
      for (const ReadOp& op : batch) done_.push(perform(op, drop_cache_));
      n_done_.fetch_add(batch.size(), std::memory_order_relaxed);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      for (const ReadOp& op : batch) work_.push(op);
    }
    if (batch.size() == 1) {
      work_ready_.notify_one();
    } else {
      work_ready_.notify_all();
    }
  }

  size_t poll(std::span<ReadResult> out) override {
    if (n_done_.load(std::memory_order_relaxed) == 0) return 0;
    const std::lock_guard lock(mutex_);
    return take(out);
  }

  size_t wait(std::span<ReadResult> out, size_t min) override {
    min = std::min({min, in_flight_, out.size()});
    for (int spin = 0; spin < kSpins && n_done_.load(std::memory_order_relaxed) < min; ++spin) {
      relax();
    }
    std::unique_lock lock(mutex_);
    done_ready_.wait(lock, [&] { return n_done_.load(std::memory_order_relaxed) >= min; });
    return take(out);
  }

  // Threads copy into ordinary memory; nothing to register.
  int register_buffers(std::span<const MemoryRange>) override { return EOPNOTSUPP; }

 private:
  size_t take(std::span<ReadResult> out) {
    size_t n = 0;
    while (n < out.size() && !done_.empty()) out[n++] = done_.pop();
    n_done_.fetch_sub(n, std::memory_order_relaxed);
    in_flight_ -= n;
    return n;
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_ready_.wait(lock, [this] { return stop_ || !work_.empty(); });
      if (work_.empty()) return;
      const ReadOp op = work_.pop();
      lock.unlock();
      const ReadResult result = perform(op, drop_cache_);
      lock.lock();
      done_.push(result);
      n_done_.fetch_add(1, std::memory_order_relaxed);
      done_ready_.notify_one();
    }
  }

  const size_t capacity_;
  const bool drop_cache_;
  size_t in_flight_ = 0;  // the caller's view
  std::mutex mutex_;      // guards work_, done_, stop_
  std::condition_variable work_ready_;
  std::condition_variable done_ready_;
  Ring<ReadOp> work_;
  Ring<ReadResult> done_;
  std::atomic<size_t> n_done_{0};
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoBackend> make_pool(size_t capacity, int threads, bool drop_cache, int* started) {
  auto pool = std::make_unique<PoolBackend>(capacity, threads, drop_cache);
  *started = pool->threads();
  return pool;
}

}  // namespace penstock::experts
