// Speed of the weight-times-activation kernels of every type, for one token (bound by memory) and
// for 512 (bound by arithmetic).
//
//   bench-kernels --benchmark_filter='gemv/Q4_K/.*' [--isa scalar|avx2|...]
//
// Each thread works on matrices of its own, taken in turn from a pool far larger than any cache.
// Counters, over all threads: `weights` bytes of weights per second; `ops` operations per second
// (two per weight and token); `of_read` the share of the memory read rate and `of_peak` the share
// of the 8-bit multiply-add rate, both measured with as many threads just before each benchmark, so
// that a busy machine disturbs the ratios less than the rates.
//
// `encode/TYPE/plain` and `/importance` are the encoders: `weights` are then weights, not bytes,
// per second of one thread.

#include <benchmark/benchmark.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "quant/codec.h"
#include "quant/matmul.h"

namespace penstock::quant {
namespace {

constexpr size_t kPoolBytes = size_t{512} << 20;  // per thread 256 MiB
constexpr int kMaxThreads = 2;
constexpr size_t kShare = kPoolBytes / kMaxThreads;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Bytes that any reader sees as small normal fp16 numbers, so that no scale is NaN or subnormal.
const std::byte* pool() {
  static const Mapping mapping = [] {
    Mapping m(kPoolBytes, Pages::Huge);
    uint64_t state = 1;
    auto* bytes = m.as<uint8_t>();
    for (size_t i = 0; i < kPoolBytes; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      bytes[i] = static_cast<uint8_t>(0x20 + (state >> 59) % 0x1c);
    }
    return m;
  }();
  return mapping.data();
}

// Runs body(thread) on n threads at once; seconds until the last is done.
double run_threads(int n, const std::function<void(int)>& body) {
  const Clock::time_point start = Clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < n; ++t) threads.emplace_back(body, t);
  for (std::thread& thread : threads) thread.join();
  return seconds_since(start);
}

#if defined(__x86_64__)
// Eight streams 10 KiB apart, the fastest of the patterns tried: one stream alone, shorter ones and
// prefetches read 5 to 40 % less.
__attribute__((target("avx2"))) void read_all(const std::byte* p, size_t n) {
  constexpr size_t kStream = 10240;
  __m256i sum[8] = {};
  for (size_t i = 0; i + 8 * kStream <= n; i += 8 * kStream) {
    for (size_t j = 0; j < kStream; j += 64) {
      for (size_t s = 0; s < 8; ++s) {
        const auto* at = reinterpret_cast<const __m256i*>(p + i + s * kStream + j);
        sum[s] = _mm256_add_epi64(sum[s], _mm256_loadu_si256(at));
      }
    }
  }
  benchmark::DoNotOptimize(sum);
}

constexpr int64_t kPeakRounds = 1 << 16;
constexpr int64_t kPeakOps = kPeakRounds * 8 * 64;
// Eight independent sums from registers: the most that maddubs, madd and add can do.
__attribute__((target("avx2"))) void multiply_add() {
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), sum[8] = {};
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < kPeakRounds; ++i) {
    benchmark::DoNotOptimize(a);
    for (__m256i& lane : sum) {
      lane = _mm256_add_epi32(lane, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
  benchmark::DoNotOptimize(sum);
}
#else
void read_all(const std::byte* p, size_t n) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i < n; i += 64) {
    for (size_t j = 0; j < 8; ++j) {
      uint64_t word;
      std::memcpy(&word, p + i + 8 * j, 8);
      sum[j] += word;
    }
  }
  benchmark::DoNotOptimize(sum);
}
#endif

struct Limits {
  double read_bytes = 0;  // per second
  double peak_ops = 0;    // per second; 0 where not measured
};
Limits limits;

Limits measure_limits(int threads) {
  const std::byte* data = pool();
  Limits best;
  for (int i = 0; i < 3; ++i) {
    const double seconds = run_threads(
        threads, [&](int t) { read_all(data + kShare * static_cast<size_t>(t), kShare); });
    best.read_bytes = std::max(best.read_bytes, static_cast<double>(kShare) * threads / seconds);
  }
#if defined(__x86_64__)
  constexpr int kRepeats = 64;
  for (int i = 0; i < 3; ++i) {
    const double seconds = run_threads(threads, [](int) {
      for (int r = 0; r < kRepeats; ++r) multiply_add();
    });
    best.peak_ops =
        std::max(best.peak_ops, static_cast<double>(kPeakOps) * kRepeats * threads / seconds);
  }
#endif
  return best;
}

struct Shape {
  int64_t n_in;
  int64_t n_out;
};

void run(benchmark::State& state, TypeId type, Shape shape, int64_t tokens) {
  const ActKind kind = act_kind(type, Precision::Fast);
  const size_t row_act = act_bytes(kind, shape.n_in);
  Mapping acts(row_act * static_cast<size_t>(tokens), Pages::Huge);
  Mapping scratch(matmul_scratch_bytes(shape.n_in), Pages::Huge);
  Mapping results(static_cast<size_t>(tokens * shape.n_out) * sizeof(float), Pages::Huge);
  std::vector<float> x(static_cast<size_t>(shape.n_in));
  std::vector<const void*> act_rows;
  std::vector<float*> out_rows;
  for (int64_t t = 0; t < tokens; ++t) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>((i * 7919 + static_cast<size_t>(t) * 31) % 255) - 127;
    }
    std::byte* act = acts.data() + row_act * static_cast<size_t>(t);
    quantize_act(kind, x.data(), act, shape.n_in);
    act_rows.push_back(act);
    out_rows.push_back(results.as<float>() + t * shape.n_out);
  }
  const size_t row_size = gguf::row_bytes(type, static_cast<uint64_t>(shape.n_in));
  const size_t matrix = row_size * static_cast<size_t>(shape.n_out);
  const std::byte* base = pool() + kShare * static_cast<size_t>(state.thread_index());
  size_t at = 0;
  for (auto _ : state) {
    matmul(type, Precision::Fast,
           {base + at, row_size, shape.n_out, shape.n_in, act_rows.data(), out_rows.data(), tokens,
            scratch.data()});
    at += matrix;
    if (at + 2 * matrix > kShare) at = 0;  // leaves room for prefetches past the end
  }
  const double iterations = static_cast<double>(state.iterations());
  const double bytes = iterations * static_cast<double>(matrix);
  const double ops = iterations * 2.0 * static_cast<double>(shape.n_in * shape.n_out * tokens);
  using benchmark::Counter;
  state.counters["weights"] = Counter(bytes, Counter::kIsRate);
  state.counters["ops"] = Counter(ops, Counter::kIsRate);
  state.counters["of_read"] = Counter(bytes / limits.read_bytes, Counter::kIsRate);
  if (limits.peak_ops > 0) {
    state.counters["of_peak"] = Counter(ops / limits.peak_ops, Counter::kIsRate);
  }
}

// Rows of 2,560 normal weights to blocks of the type; `weights`: weights per second.
void run_encode(benchmark::State& state, TypeId type, bool weighted) {
  constexpr size_t kRow = 2560, kRows = 64;
  static const std::vector<float> values = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> x(kRow * kRows);
    for (float& v : x) v = normal(random);
    return x;
  }();
  std::vector<float> importance(kRow);
  for (size_t i = 0; i < kRow; ++i) importance[i] = 0.5f + static_cast<float>(i % 7);
  std::vector<std::byte> out(gguf::row_bytes(type, kRow));
  size_t row = 0;
  for (auto _ : state) {
    encode_row(type, values.data() + row * kRow, out.data(), kRow,
               weighted ? importance.data() : nullptr);
    benchmark::DoNotOptimize(out.data());
    row = (row + 1) % kRows;
  }
  state.counters["weights"] = benchmark::Counter(static_cast<double>(state.iterations()) * kRow,
                                                 benchmark::Counter::kIsRate);
}

void add_encoders() {
  for (const gguf::TypeInfo& info : gguf::kTypes) {
    if (!can_encode(info.id)) continue;
    for (const bool weighted : {false, true}) {
      const std::string name =
          std::string("encode/") + info.name + (weighted ? "/importance" : "/plain");
      benchmark::RegisterBenchmark(name.c_str(), run_encode, info.id, weighted);
    }
  }
}

void add_benchmarks() {
  constexpr Shape kShapes[] = {{2560, 640}, {640, 2560}, {2560, 10240}};
  for (const int64_t tokens : {1, 8, 512}) {
    for (const gguf::TypeInfo& info : gguf::kTypes) {
      if (!has_kernel(info.id)) continue;
      for (const Shape& shape : kShapes) {
        if (shape.n_in % info.block_elems != 0) continue;
        const std::string name = std::string(tokens == 1 ? "gemv/" : "gemm/") + info.name + "/" +
                                 std::to_string(shape.n_in) + "x" + std::to_string(shape.n_out) +
                                 (tokens == 1 ? "" : "/tokens:" + std::to_string(tokens));
        benchmark::RegisterBenchmark(name.c_str(), run, info.id, shape, tokens)
            ->Setup([](const benchmark::State& state) { limits = measure_limits(state.threads()); })
            ->Threads(1)
            ->Threads(2)
            ->UseRealTime();
      }
    }
  }
}

}  // namespace
}  // namespace penstock::quant

int main(int argc, char** argv) {
  using namespace penstock::quant;
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    Isa isa = Isa::Scalar;
    if (std::string(argv[i]) != "--isa" || !parse_isa(argv[i + 1], &isa) || !set_isa(isa)) {
      std::fprintf(stderr, "usage: bench-kernels [--isa NAME] [--benchmark_...]\n");
      return 2;
    }
  }
  add_benchmarks();
  add_encoders();
  const Limits one = measure_limits(1), two = measure_limits(2);
  std::printf(
      "isa %s; read %.1f / %.1f GB/s; 8-bit multiply-add %.0f / %.0f GOP/s (1 / 2 threads)\n",
      isa_name(current_isa()), one.read_bytes / 1e9, two.read_bytes / 1e9, one.peak_ops / 1e9,
      two.peak_ops / 1e9);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
