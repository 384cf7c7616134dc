// What a user may choose about the stream of experts. None of it changes the logits but cache-aware
// routing, which is off unless asked for.
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
// cache, whose pages are dropped after each read. Mmap: no arena, experts are used where they lie
// in the mapped file.
enum class IoMode { Auto, Uring, Pread, Buffered, Mmap };
IoMode parse_io_mode(std::string_view text);  // throws Error(Usage)
const char* io_mode_name(IoMode mode) noexcept;

// `--evict`: who makes room. Lfu: the fewest uses, halved every half_life tokens; Lru: the longest
// unused; Profile: lfu that starts from a profile's counts; Cycle: the longest unused among the
// layers that the token has gone by (residency.h, spec/streaming.md §D.3).
enum class Evict { Lfu, Lru, Profile, Cycle };
Evict parse_evict(std::string_view text);  // throws Error(Usage)
const char* evict_name(Evict evict) noexcept;

// `--fill`: whether the experts that a profile counts most are read before they are asked for.
// Warm: before the first prompt. Lazy: in decode, whenever nothing more urgent is to be read.
enum class Fill { None, Lazy, Warm };
Fill parse_fill(std::string_view text);  // throws Error(Usage)
const char* fill_name(Fill fill) noexcept;

// `--read-ahead`: experts of the next layers read before their routers have spoken. Auto: on while
// it is found to help (read_ahead.h). Probe: predictions are made and compared, nothing is read.
enum class ReadAhead { Auto, On, Off, Probe };
ReadAhead parse_read_ahead(std::string_view text);  // throws Error(Usage)
const char* read_ahead_name(ReadAhead mode) noexcept;

// `--predictor`: what the routers of the next layers are asked ahead of time (spec/streaming.md
// §E.1). Residual: the residual that fed this layer's router, read as the later block reads it.
// ResidualShared: the same with this layer's shared expert added, which is known somewhat later.
// GateInput: this layer's router input, unchanged. Auto: GateInput where reading costs matrices
// (several residual streams), else Residual.
enum class Predictor { Auto, Residual, ResidualShared, GateInput };
Predictor parse_predictor(std::string_view text);  // throws Error(Usage)
const char* predictor_name(Predictor predictor) noexcept;

// `--moce`: cache-aware routing (moce.h), the one option here that changes logits.
enum class Moce { Off, Bonus, Prior, MaxRank, CumProb };
Moce parse_moce(std::string_view text);  // throws Error(Usage)
const char* moce_name(Moce moce) noexcept;

// `--moce-residency`. Live: what is in memory when a layer is routed, which depends on the disk's
// timing. Epoch: what was there when the token began, so that output depends on settings alone.
enum class MoceResidency { Live, Epoch };
MoceResidency parse_moce_residency(std::string_view text);  // throws Error(Usage)
const char* moce_residency_name(MoceResidency residency) noexcept;

struct MoceOptions {
  Moce mode = Moce::Off;
  float bonus = 0.85f;  // Bonus: added to the logits of resident experts
  float lambda = 0.1f;  // Prior: the same as a share of the layer's mean logit range, 0 to 1
  int protect = 3;      // ranks that are selected whether resident or not
  int window = 20;      // MaxRank: resident experts of a lower exact rank go first
  float mass = 0.9f;    // CumProb: the window is as wide as this much probability
  MoceResidency residency = MoceResidency::Live;
  // Above 0: when more than this share of the selected probability was lost, on average over 256
  // tokens, bonus and lambda are halved.
  float guard = 0.0f;

  bool on() const noexcept { return mode != Moce::Off; }
  bool epoch() const noexcept { return on() && residency == MoceResidency::Epoch; }
};
void check_moce(const MoceOptions& options);  // throws Error(Usage) for values out of range

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

// No protection: it cost misses wherever it was tried, the more the larger it was
// (docs/decisions/012-policies.md).
inline constexpr double kDefaultHotShare = 0.0;
// Decode tokens after which use counts are halved; why: docs/decisions/012-policies.md.
constexpr int default_half_life(Evict evict) noexcept {
  return evict == Evict::Profile ? 32 : 8;
}

struct StreamOptions {
  IoMode io = IoMode::Auto;
  int depth = 8;  // experts being read at once for a prompt, at least twice those read ahead;
                  // demand has no limit
  Evict evict = Evict::Lfu;
  ReadAhead read_ahead = ReadAhead::Off;  // it needs a model that predicts
  Predictor predictor = Predictor::Auto;
  Fill fill = Fill::Warm;               // as far as there is a profile
  double hot_share = kDefaultHotShare;  // of the slots, the most that are protected as hot
  MoceOptions moce = {};
  int half_life = default_half_life(Evict::Lfu);
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
