#include "experts/options.h"

#include "base/error.h"

namespace penstock::experts {

IoMode parse_io_mode(std::string_view text) {
  for (const IoMode mode : {IoMode::Auto, IoMode::Uring, IoMode::Pread, IoMode::Buffered}) {
    if (text == io_mode_name(mode)) return mode;
  }
  fail(ErrorKind::Usage, "--io {}: must be auto, uring, pread or buffered", text);
}

const char* io_mode_name(IoMode mode) noexcept {
  switch (mode) {
    case IoMode::Auto:
      return "auto";
    case IoMode::Uring:
      return "uring";
    case IoMode::Pread:
      return "pread";
    case IoMode::Buffered:
      return "buffered";
  }
  return "?";
}

Evict parse_evict(std::string_view text) {
  for (const Evict evict : {Evict::Lfu, Evict::Lru}) {
    if (text == evict_name(evict)) return evict;
  }
  fail(ErrorKind::Usage, "--evict {}: must be lfu or lru", text);
}

const char* evict_name(Evict evict) noexcept {
  return evict == Evict::Lfu ? "lfu" : "lru";
}

}  // namespace penstock::experts
