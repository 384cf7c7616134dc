// A fixed set of worker threads that run one loop at a time, with the calling thread as worker 0.
//
// Hot loops are quiet: starting a loop takes no lock and allocates nothing. Workers that find no
// work spin for a bounded time and then sleep on a futex, so an idle program uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock {

// A non-owning reference to a callable; the callable outlives the call by construction.
template <typename Signature>
class FunctionRef;
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>) FunctionRef(F&& f)
  noexcept  // implicit by design: callers pass lambdas
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

class ThreadPool {
 public:
  // n_threads >= 1 counts the caller. One thread means: no workers, loops run inline.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for every task in [0, n_tasks), n_tasks < 2^32, each once, in no fixed
  // order; 0 <= thread < size(). Every thread goes through a share of neighbouring tasks in order,
  // so that what one task asks the memory for beyond its end serves the thread's next; one that is
  // done early takes tasks from the ends of others' shares. Returns when all are done; writes made
  // by the tasks are then visible to the caller. Not reentrant; body must not throw.
  void parallel_for(int64_t n_tasks, FunctionRef<void(int64_t task, int thread)> body) noexcept;

 private:
  void work(int thread) noexcept;
  void run_tasks(int thread) noexcept;

  // The tasks that a thread has left: the first in the low 32 bits, the end in the high ones.
  struct alignas(64) Share {
    std::atomic<uint64_t> range{0};
  };

  using Body = FunctionRef<void(int64_t, int)>;
  const Body* body_ = nullptr;
  std::vector<Share> shares_;
  alignas(64) std::atomic<uint32_t> generation_{0};  // bumped to start a loop
  alignas(64) std::atomic<uint32_t> active_{0};      // workers still inside the current loop
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace penstock
