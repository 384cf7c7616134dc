#include "experts/io.h"

#include "base/error.h"
#include "base/machine.h"
#include "experts/backends.h"

namespace penstock::experts {

const char* engine_name(Engine engine) noexcept {
  switch (engine) {
    case Engine::Uring:
      return "io_uring";
    case Engine::Pool:
      return "pread pool";
    case Engine::Synchronous:
      return "synchronous pread";
  }
  return "?";
}

std::string IoReport::describe() const {
  if (mapped) {
    return fmt::format("experts in place in the mapped file, through the page cache{}{}",
                       reason.empty() ? "" : "; ", reason);
  }
  std::string text = engine_name(engine);
  if (engine == Engine::Pool) text += fmt::format(" ({} threads)", threads);
  if (!direct) {
    text += ", buffered through the page cache";
  } else {
    text +=
        fmt::format(", direct ({}, alignment {})", proven ? "proven" : "not observable", alignment);
  }
  text += fmt::format(", {}", file_system);
  if (registered_bytes != 0) text += fmt::format(", {} registered", format_bytes(registered_bytes));
  if (!reason.empty()) text += fmt::format("; {}", reason);
  return text;
}

std::unique_ptr<IoBackend> make_backend(IoMode mode, bool drop_cache, size_t capacity, int threads,
                                        IoReport* report) {
  std::unique_ptr<IoBackend> backend;
  // io_uring has no thread of its own that could drop the pages of a buffered read.
  if ((mode == IoMode::Auto || mode == IoMode::Uring) && !drop_cache) {
    int error = 0;
    backend = make_uring(capacity, &error);
    if (backend == nullptr) {
      if (!report->reason.empty()) report->reason += "; ";
      report->reason += fmt::format("no io_uring: {}", errno_text(error));
    }
  }
  if (backend == nullptr) {
    backend = make_pool(capacity, threads, drop_cache, &report->threads);
  }
  report->engine = backend->engine();
  return backend;
}

uint64_t backend_bytes(size_t capacity, int threads) noexcept {
  // A submission entry (64 B) and two completion entries (16 B) per read in the ring's power of
  // two, or the pool's own queues; and the resident part of each thread's stack.
  constexpr uint64_t kRing = 64 + 2 * 16;
  constexpr uint64_t kThread = uint64_t{32} << 10;
  uint64_t entries = 1;
  while (entries < capacity) entries *= 2;
  return entries * (kRing > sizeof(ReadOp) + sizeof(ReadResult)
                        ? kRing
                        : sizeof(ReadOp) + sizeof(ReadResult)) +
         static_cast<uint64_t>(threads) * kThread;
}

}  // namespace penstock::experts
