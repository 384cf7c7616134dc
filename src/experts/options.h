// What a user may choose about the stream of experts. None of it changes the logits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace penstock::experts {

class IoBackend;

// `--io`: how expert reads reach the disk. Auto: io_uring, else the pread pool; both direct
// (O_DIRECT) where the file system proves to support it. Buffered: pread pool through the page
// cache, whose pages are dropped after each read.
enum class IoMode { Auto, Uring, Pread, Buffered };
IoMode parse_io_mode(std::string_view text);  // throws Error(Usage)
const char* io_mode_name(IoMode mode) noexcept;

// `--evict`
enum class Evict { Lfu, Lru };
Evict parse_evict(std::string_view text);  // throws Error(Usage)
const char* evict_name(Evict evict) noexcept;

// `--read-ahead`: experts of the next layers read before their routers have spoken. Auto: on while
// it is found to help (read_ahead.h). Probe: predictions are made and compared, nothing is read.
enum class ReadAhead { Auto, On, Off, Probe };
ReadAhead parse_read_ahead(std::string_view text);  // throws Error(Usage)
const char* read_ahead_name(ReadAhead mode) noexcept;

// `--pack`: where the experts are read from.
struct PackChoice {
  // A pack; "auto": a pack in the model's folder that was made from this model, if there is one;
  // "none": the model's own tensors.
  std::string file = "auto";
  // `--pack-unchecked`: take the file although it was made from another model. Shapes and types
  // must still fit; the run's summary says so, because the output may mean nothing.
  bool unchecked = false;
};

// `--verify`: none (0), all (1) or sample:N (N), the share of records read from a pack whose
// checksum is computed and compared.
uint64_t parse_verify(std::string_view text);  // throws Error(Usage)
std::string verify_name(uint64_t every);

struct StreamOptions {
  IoMode io = IoMode::Auto;
  int depth =
      8;  // experts being read at once for a prompt, twice those read ahead; demand has no limit
  Evict evict = Evict::Lfu;
  ReadAhead read_ahead = ReadAhead::Off;  // it needs a model that predicts
  int half_life = 32;                     // decode tokens after which all use counts are halved
  bool register_buffers = true;  // io_uring: reads into registered arena memory when allowed
  double huge_seconds = 10.0;    // time limit for faulting the arena in on huge pages; 0: none
  PackChoice pack = {};
  uint64_t verify_every = 0;  // see parse_verify()
  bool alias = false;         // every (layer, expert) shares a few slots filled once: for
                              // measuring compute alone, the output is meaningless
  // Wraps the backend in use; for fault injection by tests. May be empty.
  std::function<std::unique_ptr<IoBackend>(std::unique_ptr<IoBackend>)> decorate = {};

  int transit_slots() const noexcept { return 2 * depth; }
};

}  // namespace penstock::experts
