// Experts used where they lie in the mapped file (`--io mmap`): the kernel's page cache is the
// arena (spec/streaming.md §A.2, docs/decisions/013-mmap.md). No residency, no read-ahead, no
// cache-aware routing: what is in memory is the kernel's business.
#pragma once

#include <memory>
#include <vector>

#include "base/file.h"
#include "experts/layer_router.h"
#include "experts/stream.h"

namespace penstock::experts {

class MappedStream final : public Stream {
 public:
  MappedStream(Geometry geometry, const StreamOptions& options);

  Routing begin(int index, const float* logits, int rows, const RouteRule& rule,
                Phase phase) override;
  std::span<const ReadyExpert> next() override;
  void end() override;
  void end_step(int rows) override;
  void end_turn() override;
  const Geometry& geometry() const override { return geometry_; }
  const Counters& counters() const override { return counters_; }
  std::span<const uint64_t> layer_stall_ns() const override { return layer_stall_ns_; }
  const IoReport& io() const override { return io_; }
  const ArenaShape& shape() const override { return shape_; }
  uint64_t arena_huge_bytes() const override { return 0; }
  void observe(RouteObserver* observer) override { router_.observe(observer); }
  void record(Timeline* timeline) override;

 private:
  void want(int expert) const noexcept;  // asks the kernel for its pages, without waiting
  ReadyExpert at(int expert) const noexcept;
  void note(Work next);

  Geometry geometry_;
  std::vector<FileMap> maps_;  // by shard
  size_t window_;              // experts of a prompt that are asked for ahead
  ArenaShape shape_;           // without slots
  IoReport io_;
  LayerRouter router_;
  Counters counters_;
  std::vector<uint64_t> layer_stall_ns_;
  bool open_ = false;
  int layer_ = 0;
  Phase phase_ = Phase::Decode;
  std::vector<uint8_t> touched_;
  std::vector<int32_t> experts_;  // of the layer, in file order
  size_t wanted_ = 0, delivered_ = 0;
  std::vector<ReadyExpert> batch_;
  uint64_t step_uses_ = 0, step_expected_ = 0;
  Timeline* timeline_ = nullptr;
  Work work_ = Work::Dense;
};

// What of the experts lies in the page cache: bytes, as mincore() tells.
uint64_t cached_expert_bytes(const Geometry& geometry);

}  // namespace penstock::experts
