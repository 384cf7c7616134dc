#include <liburing.h>
#include <sys/uio.h>

#include <cerrno>
#include <vector>

#include "base/error.h"
#include "experts/backends.h"

namespace penstock::experts {
namespace {

// Completions usually arrive hundreds of microseconds apart: look a moment, then sleep.
constexpr int kSpins = 200;

class UringBackend final : public IoBackend {
 public:
  UringBackend(const io_uring& ring, size_t capacity) : ring_(ring), capacity_(capacity) {}

  ~UringBackend() override {
    ReadResult results[16];
    while (in_flight_ > 0) wait(results, 1);
    io_uring_queue_exit(&ring_);
  }

  size_t capacity() const noexcept override { return capacity_; }
  size_t in_flight() const noexcept override { return in_flight_; }
  Engine engine() const noexcept override { return Engine::Uring; }

  void submit(std::span<const ReadOp> batch) override {
    for (const ReadOp& op : batch) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      if (sqe == nullptr) fail(ErrorKind::Internal, "io_uring has no room for a read");
      if (op.buffer >= 0) {
        io_uring_prep_read_fixed(sqe, op.fd, op.data, op.bytes, op.offset, op.buffer);
      } else {
        io_uring_prep_read(sqe, op.fd, op.data, op.bytes, op.offset);
      }
      io_uring_sqe_set_data64(sqe, op.tag);
    }
    size_t left = batch.size();
    while (left > 0) {
      const int n = io_uring_submit(&ring_);
      if (n >= 0) {
        left -= static_cast<size_t>(n);
        in_flight_ += static_cast<size_t>(n);
      } else if (n != -EINTR && n != -EAGAIN && n != -EBUSY) {
        fail(ErrorKind::Io, "io_uring refuses reads: {}; try --io pread", errno_text(-n));
      }
    }
  }

  size_t poll(std::span<ReadResult> out) override {
    size_t n = 0;
    unsigned head = 0;
    io_uring_cqe* cqe = nullptr;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      if (n == out.size()) break;
      out[n++] = {io_uring_cqe_get_data64(cqe), cqe->res};
    }
    io_uring_cq_advance(&ring_, static_cast<unsigned>(n));
    in_flight_ -= n;
    return n;
  }

  size_t wait(std::span<ReadResult> out, size_t min) override {
    min = std::min({min, in_flight_, out.size()});
    for (int spin = 0; spin < kSpins && io_uring_cq_ready(&ring_) < min; ++spin) relax();
    while (io_uring_cq_ready(&ring_) < min) {
      io_uring_cqe* cqe = nullptr;
      const int error = io_uring_wait_cqe_nr(&ring_, &cqe, static_cast<unsigned>(min));
      if (error < 0 && error != -EINTR && error != -EAGAIN) {
        fail(ErrorKind::Io, "waiting for io_uring failed: {}; try --io pread", errno_text(-error));
      }
    }
    return poll(out);
  }

  void unregister_buffers() override { io_uring_unregister_buffers(&ring_); }
  int register_buffers(std::span<const MemoryRange> ranges) override {
    std::vector<iovec> vectors;
    for (const MemoryRange& range : ranges) vectors.push_back({range.data, range.bytes});
    return -io_uring_register_buffers(&ring_, vectors.data(),
                                      static_cast<unsigned>(vectors.size()));
  }

 private:
  io_uring ring_;
  size_t capacity_;
  size_t in_flight_ = 0;
};

}  // namespace

std::unique_ptr<IoBackend> make_uring(size_t capacity, int* error) {
  io_uring ring;
  *error = -io_uring_queue_init(static_cast<unsigned>(capacity), &ring, 0);
  if (*error != 0) return nullptr;
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  const bool usable = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                      io_uring_opcode_supported(probe, IORING_OP_READ_FIXED) != 0;
  if (probe != nullptr) io_uring_free_probe(probe);
  if (!usable) {
    io_uring_queue_exit(&ring);
    *error = EOPNOTSUPP;
    return nullptr;
  }
  return std::make_unique<UringBackend>(ring, capacity);
}

}  // namespace penstock::experts
