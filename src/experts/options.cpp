#include "experts/options.h"

#include <charconv>

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

ReadAhead parse_read_ahead(std::string_view text) {
  for (const ReadAhead mode : {ReadAhead::Auto, ReadAhead::On, ReadAhead::Off, ReadAhead::Probe}) {
    if (text == read_ahead_name(mode)) return mode;
  }
  fail(ErrorKind::Usage, "--read-ahead {}: must be auto, on, off or probe", text);
}

const char* read_ahead_name(ReadAhead mode) noexcept {
  switch (mode) {
    case ReadAhead::Auto:
      return "auto";
    case ReadAhead::On:
      return "on";
    case ReadAhead::Off:
      return "off";
    case ReadAhead::Probe:
      return "probe";
  }
  return "?";
}

uint64_t parse_verify(std::string_view text) {
  if (text == "none") return 0;
  if (text == "all") return 1;
  constexpr std::string_view kSample = "sample:";
  if (text.starts_with(kSample)) {
    const char* const end = text.data() + text.size();
    uint64_t every = 0;
    const auto [at, error] = std::from_chars(text.data() + kSample.size(), end, every);
    if (error == std::errc() && at == end && every > 0) return every;
  }
  fail(ErrorKind::Usage, "--verify {}: must be none, all or sample:N, N from 1", text);
}

std::string verify_name(uint64_t every) {
  if (every < 2) return every == 0 ? "none" : "all";
  return fmt::format("sample:{}", every);
}

}  // namespace penstock::experts
