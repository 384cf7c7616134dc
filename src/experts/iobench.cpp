#include "experts/iobench.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "experts/read_queue.h"
#include "experts/record.h"
#include "experts/stream_setup.h"

namespace penstock::experts {
namespace {

double cpu_seconds(clockid_t clock) noexcept {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Threads that stream through memory of their own, as kernels that multiply do.
class BusyThreads {
 public:
  explicit BusyThreads(int n) : counts_(static_cast<size_t>(n)), ready_(n + 1) {
    for (Count& count : counts_) threads_.emplace_back([this, &count] { work(count); });
    ready_.arrive_and_wait();
  }
  ~BusyThreads() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  uint64_t bytes() const noexcept {
    uint64_t sum = 0;
    for (const Count& count : counts_) sum += count.bytes.load(std::memory_order_relaxed);
    return sum;
  }
  double cpu_s() {
    double sum = 0;
    for (std::thread& thread : threads_) {
      clockid_t clock{};
      if (pthread_getcpuclockid(thread.native_handle(), &clock) == 0) sum += cpu_seconds(clock);
    }
    return sum;
  }

 private:
  struct alignas(64) Count {
    std::atomic<uint64_t> bytes{0};
  };
  void work(Count& count) {
    constexpr size_t kBytes = size_t{64} << 20;  // beyond any cache
    constexpr size_t kPiece = size_t{1} << 20;
    const Mapping memory(kBytes, Pages::Huge);
    std::fill_n(memory.as<uint64_t>(), kBytes / sizeof(uint64_t), uint64_t{1});
    ready_.arrive_and_wait();
    volatile uint64_t sink = 0;
    for (size_t at = 0; !stop_; at = (at + kPiece) % kBytes) {
      uint64_t sum = 0;
      const uint64_t* words = memory.as<uint64_t>() + at / sizeof(uint64_t);
      for (size_t i = 0; i < kPiece / sizeof(uint64_t); ++i) sum += words[i];
      sink = sink + sum;
      count.bytes.fetch_add(kPiece, std::memory_order_relaxed);
    }
  }

  std::vector<Count> counts_;
  std::latch ready_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Keeps `depth` experts in flight and notes when each was complete.
class Reader {
 public:
  Reader(const Geometry& geometry, const StreamFiles& files, std::unique_ptr<IoBackend> backend,
         Mapping& memory, int depth, bool registered, uint64_t seed)
      : files_(files),
        layouts_(layouts_of(geometry, files.alignment())),
        memory_(memory),
        registered_(registered),
        slots_(static_cast<size_t>(depth)),
        queue_(std::move(backend), files.alignment(), static_cast<size_t>(depth) * kMaxParts),
        random_(seed) {
    for (size_t l = 0; l < layouts_.size(); ++l) {
      n_expert_.push_back(geometry.layers[l].n_expert);
      block_.push_back(geometry.layers[l].layer);
      slot_bytes_ = std::max(slot_bytes_, layouts_[l].slot_bytes);
    }
    for (size_t slot = 0; slot < slots_.size(); ++slot) start(slot);
    queue_.submit();
  }

  // Latencies of the experts that arrive in the next `seconds`; adds to bytes.
  std::vector<uint64_t> run(double seconds, uint64_t* bytes) {
    std::vector<uint64_t> latencies;
    const int64_t begun = now_ns();
    while (seconds_since(begun) < seconds) {
      for (const ReadDone& done : queue_.wait()) {
        InFlight& slot = slots_[done.tag];
        if (done.error != 0) {
          fail(ErrorKind::Io, "reading an expert of layer {} at byte {} of {}: {}",
               block_[static_cast<size_t>(slot.layer)], done.offset,
               files_.path(layouts_[static_cast<size_t>(slot.layer)].parts[0].shard),
               read_error_text(done.error));
        }
        if (--slot.parts_left > 0) continue;
        latencies.push_back(static_cast<uint64_t>(now_ns() - slot.started));
        *bytes += slot.bytes;
        start(done.tag);
      }
      queue_.submit();
    }
    return latencies;
  }

 private:
  struct InFlight {
    int layer = 0;
    int parts_left = 0;
    int64_t started = 0;
    uint64_t bytes = 0;
  };

  void start(size_t index) {
    InFlight& slot = slots_[index];
    slot.layer = static_cast<int>(random_() % layouts_.size());
    const RecordLayout& layout = layouts_[static_cast<size_t>(slot.layer)];
    const auto n = static_cast<uint64_t>(n_expert_[static_cast<size_t>(slot.layer)]);
    const int expert = static_cast<int>(random_() % n);
    slot.parts_left = layout.n_parts;
    slot.started = now_ns();
    slot.bytes = 0;
    for (int p = 0; p < layout.n_parts; ++p) {
      Read read = expert_read(files_, layout, p, expert, memory_.data() + index * slot_bytes_);
      if (registered_) read.buffer = 0;
      read.tag = index;
      slot.bytes += read.bytes;
      queue_.push(read);
    }
  }

  const StreamFiles& files_;
  std::vector<RecordLayout> layouts_;
  std::vector<int> n_expert_;
  std::vector<int> block_;  // the layers' numbers in the model
  uint64_t slot_bytes_ = 0;
  Mapping& memory_;
  bool registered_;
  std::vector<InFlight> slots_;
  ReadQueue queue_;
  std::mt19937_64 random_;
};

uint64_t percentile(std::vector<uint64_t>& values, double p) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(p * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

}  // namespace

uint64_t expert_span(const Geometry& geometry) noexcept {
  uint64_t bytes = 0;
  for (const LayerGeometry& layer : geometry.layers) {
    bytes += layer.expert_bytes() * static_cast<uint64_t>(layer.n_expert);
  }
  return bytes;
}

IoBenchReport iobench(const Geometry& geometry, const StreamFiles& files,
                      const IoBenchOptions& options,
                      const std::function<void(const IoBenchRow&)>& row) {
  if (geometry.layers.empty()) fail(ErrorKind::Unsupported, "this model has no routed experts");
  IoBenchReport report;
  report.span_bytes = expert_span(geometry);
  uint64_t slot_bytes = 0;
  for (const LayerGeometry& layer : geometry.layers) {
    slot_bytes = std::max(slot_bytes, record_layout(layer, files.alignment()).slot_bytes);
  }
  const int deepest = *std::max_element(options.depths.begin(), options.depths.end());
  Mapping memory(static_cast<uint64_t>(deepest) * slot_bytes,
                 options.huge_pages ? Pages::Huge : Pages::Small);
  memory.prefault(0, memory.size());
  report.huge_bytes = huge_bytes(memory.data(), memory.size());
  for (const int depth : options.depths) {
    auto backend = open_backend(files, options.io, static_cast<size_t>(depth) * kMaxParts,
                                pool_threads(depth), options.decorate, &report.io);
    const MemoryRange range{memory.data(), memory.size()};
    const bool registered =
        backend->engine() == Engine::Uring && backend->register_buffers({&range, 1}) == 0;
    if (registered) report.io.registered_bytes = memory.size();
    BusyThreads busy(options.busy_threads);
    Reader reader(geometry, files, std::move(backend), memory, depth, registered, options.seed);
    uint64_t ignored = 0;
    reader.run(options.warm_up_s, &ignored);

    IoBenchRow result{.depth = depth};
    const int64_t begun = now_ns();
    const uint64_t busy_before = busy.bytes();
    const double cpu_before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - busy.cpu_s();
    std::vector<uint64_t> latencies = reader.run(options.seconds, &result.bytes);
    result.seconds = seconds_since(begun);
    result.cpu_s = std::max(0.0, cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - busy.cpu_s() - cpu_before);
    result.busy_bytes_per_s = static_cast<double>(busy.bytes() - busy_before) / result.seconds;
    result.experts = latencies.size();
    result.p50_ns = percentile(latencies, 0.50);
    result.p99_ns = percentile(latencies, 0.99);
    report.rows.push_back(result);
    if (row) row(result);
  }
  return report;
}

}  // namespace penstock::experts
