// An expert stream whose experts are all in memory from the start: the "everything resident"
// reference. The order in which experts become ready can be chosen, since no result may depend on
// it.
#pragma once

#include <memory>
#include <vector>

#include "base/file.h"
#include "experts/io.h"
#include "experts/shape.h"
#include "experts/stream.h"

namespace penstock::testing {

enum class Arrival {
  AllAtOnce,
  OneByOne,
  Backwards,  // one by one, last expert first
};

class MemoryStream final : public experts::Stream {
 public:
  explicit MemoryStream(experts::Geometry geometry, Arrival arrival = Arrival::AllAtOnce);

  // From the n-th next() on (counted from now), reads fail.
  void fail_after(int n) noexcept { fail_after_ = n; }

  experts::Routing begin(int index, const float* logits, int rows, const experts::RouteRule& rule,
                         experts::Phase phase) override;
  std::span<const experts::ReadyExpert> next() override;
  void end() override;
  void end_step(int rows) override;
  const experts::Geometry& geometry() const override { return geometry_; }
  const experts::Counters& counters() const override { return counters_; }
  std::span<const uint64_t> layer_stall_ns() const override { return {}; }
  const experts::IoReport& io() const override { return report_; }
  const experts::ArenaShape& shape() const override { return shape_; }
  uint64_t arena_huge_bytes() const override { return 0; }
  void observe(experts::RouteObserver* observer) override { observer_ = observer; }

 private:
  experts::Geometry geometry_;
  Arrival arrival_;
  std::vector<FileMap> files_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_, probabilities_;
  std::vector<experts::ReadyExpert> ready_;
  size_t delivered_ = 0;
  int fail_after_ = -1;
  bool open_ = false;
  experts::Counters counters_;
  experts::IoReport report_;
  experts::ArenaShape shape_;
  experts::RouteObserver* observer_ = nullptr;
};

}  // namespace penstock::testing
