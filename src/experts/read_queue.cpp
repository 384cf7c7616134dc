#include "experts/read_queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

namespace penstock::experts {
namespace {

// Attempts without progress before an error that may pass is believed.
constexpr int kMaxTries = 100;

}  // namespace

std::string read_error_text(int error) {
  return error == kEndOfFile ? "the file ends there" : errno_text(error);
}

ReadQueue::ReadQueue(std::unique_ptr<IoBackend> backend, uint32_t alignment, size_t expected)
    : backend_(std::move(backend)), alignment_(alignment), results_(backend_->capacity()) {
  ops_.reserve(expected);
  free_.reserve(expected);
  ready_.reserve(expected);
  done_.reserve(expected);
  batch_.reserve(backend_->capacity());
}

ReadQueue::~ReadQueue() {
  ready_head_ = ready_.size();  // what was never submitted is not waited for
  while (backend_->in_flight() > 0) backend_->wait(results_, 1);
}

void ReadQueue::push(const Read& read) {
  uint32_t index = 0;
  if (free_.empty()) {
    index = static_cast<uint32_t>(ops_.size());
    ops_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  ops_[index] = {.read = read};
  ReadCounts& counts = counts_[static_cast<size_t>(read.reason)];
  ++counts.reads;
  counts.bytes += read.bytes;
  ready_.push_back(index);
}

void ReadQueue::submit() {
  const size_t room = backend_->capacity() - backend_->in_flight();
  const size_t n = std::min(room, ready_.size() - ready_head_);
  if (n == 0) return;
  const int64_t now = now_ns();
  if (backend_->in_flight() == 0) busy_since_ = now;
  batch_.clear();
  for (size_t i = 0; i < n; ++i) {
    const uint32_t index = ready_[ready_head_++];
    Op& op = ops_[index];
    if (op.start_ns == 0) op.start_ns = now;
    batch_.push_back({op.read.fd, op.read.offset + op.from, op.read.data + op.from,
                      op.read.bytes - op.from, op.read.buffer, index});
  }
  if (ready_head_ == ready_.size()) {
    ready_.clear();
    ready_head_ = 0;
  }
  backend_->submit(batch_);
}

std::span<const ReadDone> ReadQueue::poll() {
  done_.clear();
  take(backend_->poll(results_));
  return done_;
}

std::span<const ReadDone> ReadQueue::wait() {
  done_.clear();
  submit();
  // A retried read is outstanding again, so look until something has really ended.
  while (done_.empty() && outstanding() > 0) take(backend_->wait(results_, 1));
  return done_;
}

void ReadQueue::take(size_t n) {
  if (n == 0) return;
  const int64_t now = now_ns();
  const bool idle = backend_->in_flight() == 0;
  if (idle) busy_ns_ += static_cast<uint64_t>(now - busy_since_);
  for (size_t i = 0; i < n; ++i) {
    const auto index = static_cast<uint32_t>(results_[i].tag);
    int error = 0;
    if (advance(ops_[index], results_[i].result, &error)) {
      finish(index, error, now);
    } else {
      ++retried_;
      ready_.push_back(index);
    }
  }
  submit();
}

// True when the read is over, with `error`; false when it must go on.
bool ReadQueue::advance(Op& op, int64_t result, int* error) const noexcept {
  if (result < 0 && result != -EINTR && result != -EAGAIN) {
    *error = static_cast<int>(-result);
    return true;
  }
  const uint32_t reached = result > 0 ? op.from + static_cast<uint32_t>(result) : op.from;
  if (reached > op.done) {
    op.done = reached;
    op.tries = 0;
  }
  if (op.done >= op.read.needed) return true;
  if (++op.tries > kMaxTries) {
    *error = result < 0 ? static_cast<int>(-result) : kEndOfFile;
    return true;
  }
  op.from = static_cast<uint32_t>(round_down(op.done, alignment_));
  // Nothing at an aligned offset means the end, whatever number of times one asks.
  if (result == 0 && op.from == op.done) {
    *error = kEndOfFile;
    return true;
  }
  return false;
}

void ReadQueue::finish(uint32_t index, int error, int64_t now) {
  const Op& op = ops_[index];
  const auto latency = static_cast<uint64_t>(now - op.start_ns);
  if (timeline_ != nullptr) timeline_->read(op.read.reason, op.read.bytes, op.start_ns, now);
  latency_ns_ += latency;
  latencies_[static_cast<size_t>(op.read.reason)].add(latency);
  done_.push_back({op.read.tag, error, op.read.offset + op.done});
  free_.push_back(index);
}

}  // namespace penstock::experts
