// A backend that misbehaves on purpose: late and reordered results, short reads, errors. Set as
// StreamOptions::decorate or RowStoreOptions::decorate.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "experts/io.h"

namespace penstock::experts::test {

struct Faults {
  uint32_t seed = 1;
  double hold = 0;                      // chance that a result is kept back at each look
  bool reorder = false;                 // results in random order
  double short_reads = 0;               // chance that a read ends early, what follows being rubbish
  double transient = 0;                 // chance of EAGAIN or EINTR
  std::map<uint64_t, int> errors = {};  // errno of the n-th read submitted, counted from 1
  int always = 0;                       // errno of every read from `always_from` on
  uint64_t always_from = 1;
};

class FaultyBackend final : public IoBackend {
 public:
  FaultyBackend(std::unique_ptr<IoBackend> inner, Faults faults)
      : inner_(std::move(inner)), faults_(std::move(faults)), random_(faults_.seed) {}

  size_t capacity() const noexcept override { return inner_->capacity(); }
  size_t in_flight() const noexcept override { return inner_->in_flight() + held_.size(); }
  Engine engine() const noexcept override { return inner_->engine(); }
  int register_buffers(std::span<const MemoryRange> ranges) override {
    return inner_->register_buffers(ranges);
  }

  void submit(std::span<const ReadOp> batch) override {
    for (const ReadOp& op : batch) {
      const uint64_t number = ++submitted_;
      int error = 0;
      if (const auto found = faults_.errors.find(number); found != faults_.errors.end()) {
        error = found->second;
      } else if (faults_.always != 0 && number >= faults_.always_from) {
        error = faults_.always;
      } else if (chance(faults_.transient)) {
        error = chance(0.5) ? EAGAIN : EINTR;
      }
      if (error != 0) {
        held_.push_back({op.tag, -int64_t{error}});  // the memory keeps what it held
        continue;
      }
      ops_[op.tag] = op;
      inner_->submit({&op, 1});
    }
  }

  size_t poll(std::span<ReadResult> out) override {
    collect(0);
    return hand_out(out, 0);
  }

  size_t wait(std::span<ReadResult> out, size_t min) override {
    min = std::min({min, in_flight(), out.size()});
    if (held_.size() < min) collect(min - held_.size());
    return hand_out(out, min);
  }

 private:
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }

  void collect(size_t min) {
    std::vector<ReadResult> results(std::max<size_t>(inner_->in_flight(), 1));
    size_t n = min == 0 ? inner_->poll(results) : inner_->wait(results, min);
    for (size_t i = 0; i < n; ++i) {
      ReadResult result = results[i];
      const ReadOp& op = ops_[result.tag];
      if (result.result > 1 && chance(faults_.short_reads)) {
        const auto whole = static_cast<size_t>(result.result);
        const size_t part = std::uniform_int_distribution<size_t>(1, whole - 1)(random_);
        std::memset(op.data + part, 0xEE, whole - part);
        result.result = static_cast<int64_t>(part);
      }
      held_.push_back(result);
    }
  }

  size_t hand_out(std::span<ReadResult> out, size_t min) {
    if (faults_.reorder) std::shuffle(held_.begin(), held_.end(), random_);
    size_t n = 0;
    for (size_t i = 0; i < held_.size() && n < out.size();) {
      const bool must = held_.size() - i <= min - std::min(n, min);
      if (!must && chance(faults_.hold)) {
        ++i;
        continue;
      }
      out[n++] = held_[i];
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return n;
  }

  std::unique_ptr<IoBackend> inner_;
  Faults faults_;
  std::mt19937 random_;
  uint64_t submitted_ = 0;
  std::map<uint64_t, ReadOp> ops_;
  std::vector<ReadResult> held_;
};

inline std::function<std::unique_ptr<IoBackend>(std::unique_ptr<IoBackend>)> with_faults(
    Faults faults) {
  return [faults](std::unique_ptr<IoBackend> inner) -> std::unique_ptr<IoBackend> {
    return std::make_unique<FaultyBackend>(std::move(inner), faults);
  };
}

}  // namespace penstock::experts::test
