#include "engine/session.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"

namespace penstock::engine {
namespace {

constexpr char kMagic[8] = {'P', 'N', 'S', 'S', 'T', 'A', 'T', 'E'};
constexpr uint32_t kVersion = 1;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t n_vocab;
  uint64_t payload_bytes;
};

}  // namespace

double Timings::prefill_rate() const noexcept {
  return prefill_s > 0 ? static_cast<double>(prefill_tokens) / prefill_s : 0;
}

double Timings::decode_rate() const noexcept {
  return decode_s > 0 ? static_cast<double>(decode_tokens) / decode_s : 0;
}

Session::Session(Runtime& runtime)
    : runtime_(runtime),
      state_(runtime.state()),
      n_vocab_(static_cast<size_t>(runtime.info().n_vocab)),
      logits_(n_vocab_) {
  state_.reset();
}

void Session::check_room(size_t n_tokens) const {
  if (static_cast<int64_t>(n_tokens) > room()) {
    fail(ErrorKind::Usage,
         "{} tokens do not fit: {} of the context's {} are taken; use a larger --ctx or a shorter "
         "prompt",
         n_tokens, position(), n_ctx());
  }
}

bool Session::out_of_memory() const noexcept {
  return runtime_.out_of_memory();
}

uint64_t Session::peak_footprint() {
  peak_footprint_ = std::max(peak_footprint_, footprint().total());
  return peak_footprint_;
}

// The scratch is a phase of its own, neither prefill nor cleared: what it costs is seen.
void Session::begin_prefill(size_t n_tokens) {
  const auto chunk = static_cast<size_t>(runtime_.options().prompt_chunk);
  const auto rows = static_cast<int64_t>(std::min(chunk, n_tokens));
  prompt_memory_ = {};
  if (rows <= models::kMaxStepRows) return;
  prompt_memory_.scratch = runtime_.plan().terms.scratch_prompt;
  prompt_memory_.state = state_.resident_bytes();
  prompt_memory_.before = footprint().total();
  const int64_t started = now_ns();
  runtime_.model().map_prompt_scratch(rows, state_);
  timings_.scratch_s += seconds_since(started);
}

// The scratch is at its largest now; then it goes back to the system, which is looked at.
void Session::end_prefill() {
  PromptMemory& m = prompt_memory_;
  const uint64_t at_most = peak_footprint();
  if (at_prompt_peak_) at_prompt_peak_();
  release_scratch();
  if (m.scratch == 0) return;
  m.peak = at_most;
  m.after = footprint().total();
  const uint64_t state = state_.resident_bytes();
  m.state = state > m.state ? state - m.state : 0;
  if (!m.kept()) return;
  ++kept_scratch_;
  log::warn("{} of a prompt's scratch of {} were not given back ({} before it, {} after it)",
            format_bytes(m.after - m.before), format_bytes(m.scratch), format_bytes(m.before),
            format_bytes(m.after));
}

void Session::forward(experts::Stream& stream, const models::Batch& batch, float* logits) {
  intact_ = false;
  runtime_.model().forward(state_, stream, batch, logits);
  intact_ = true;
}

bool Session::prefill(std::span<const int32_t> tokens, const KeepGoing& keep_going) {
  check_room(tokens.size());
  const auto chunk = static_cast<size_t>(runtime_.options().prompt_chunk);
  begin_prefill(tokens.size());
  const int64_t started = now_ns();
  // Asked before every layer: a chunk of thousands of tokens takes longer than memory may be short.
  const KeepGoing go_on = [&] {
    const bool wanted = !keep_going || keep_going();
    runtime_.heed_watchdog();
    return wanted && !out_of_memory();
  };
  WatchedStream stream(runtime_.stream(), go_on);
  size_t done = 0;
  try {
    while (done < tokens.size()) {
      if (!go_on()) break;
      const size_t n = std::min(chunk, tokens.size() - done);
      const bool last = done + n == tokens.size();
      forward(stream,
              {.tokens = tokens.subspan(done, n),
               .phase = experts::Phase::Prompt,
               .logits = last ? models::Logits::Last : models::Logits::None},
              last ? logits_.data() : nullptr);
      done += n;
    }
  } catch (const WatchedStream::Stopped&) {
    // The chunk is lost, what came before it is not.
  }
  timings_.prefill_tokens += static_cast<int64_t>(done);
  timings_.prefill_s += seconds_since(started);
  end_prefill();
  return done == tokens.size();
}

void Session::prefill_all(std::span<const int32_t> tokens, Rows rows) {
  check_room(tokens.size());
  // A chunk's logits are made and handed out piece by piece: with a large vocabulary they are many.
  constexpr size_t kMaxLogits = size_t{16} << 20;
  const auto chunk = static_cast<size_t>(runtime_.options().prompt_chunk);
  const size_t piece = std::clamp<size_t>(kMaxLogits / n_vocab_, 1, std::min(chunk, tokens.size()));
  std::vector<float> logits(piece * n_vocab_);
  begin_prefill(tokens.size());
  for (size_t done = 0; done < tokens.size();) {
    const size_t n = std::min(chunk, tokens.size() - done);
    const int64_t first = position();
    const models::Sequence sequence{&state_, tokens.subspan(done, n), 0};
    intact_ = false;
    runtime_.model().forward_together({&sequence, 1}, runtime_.stream(), logits,
                                      [&](size_t, int64_t row, std::span<const float> values) {
                                        rows(first + row, values);
                                        std::memcpy(logits_.data(),
                                                    values.data() + values.size() - n_vocab_,
                                                    n_vocab_ * sizeof(float));
                                      });
    intact_ = true;
    done += n;
  }
  end_prefill();
}

void Session::decode(int32_t token) {
  check_room(1);
  runtime_.heed_watchdog();
  const int64_t started = now_ns();
  forward(runtime_.stream(),
          {.tokens = {&token, 1}, .phase = experts::Phase::Decode, .logits = models::Logits::Last},
          logits_.data());
  const double seconds = seconds_since(started);
  if (timings_.first_tokens == 0) {
    timings_.first_tokens = 1;
    timings_.first_s = seconds;
  } else {
    ++timings_.decode_tokens;
    timings_.decode_s += seconds;
  }
}

std::span<const float> Session::step(std::span<const int32_t> tokens) {
  check_room(tokens.size());
  runtime_.heed_watchdog();
  step_logits_.resize(tokens.size() * n_vocab_);
  runtime_.model().step(
      state_, runtime_.stream(),
      {.tokens = tokens, .phase = experts::Phase::Decode, .logits = models::Logits::All},
      step_logits_.data());
  return step_logits_;
}

void Session::commit(int n) {
  runtime_.model().commit(state_, n);
  if (n > 0) {
    std::memcpy(logits_.data(), step_logits_.data() + static_cast<size_t>(n - 1) * n_vocab_,
                n_vocab_ * sizeof(float));
  }
}

void Session::reset() {
  state_.reset();
  intact_ = true;
}

bool Session::truncate(int64_t position) {
  return state_.truncate(position);
}

Session::Checkpoint Session::checkpoint() const {
  Checkpoint point;
  point.tokens.assign(tokens().begin(), tokens().end());
  if (runtime_.info().n_recurrent_layers > 0) {
    point.recurrent.reserve(state_.saved_bytes(models::State::Parts::Recurrent));
    state_.save(models::State::Parts::Recurrent, [&](std::span<const std::byte> bytes) {
      point.recurrent.insert(point.recurrent.end(), bytes.begin(), bytes.end());
    });
  }
  return point;
}

void Session::rewind(const Checkpoint& checkpoint) {
  if (checkpoint.recurrent.empty()) {
    if (!state_.truncate(static_cast<int64_t>(checkpoint.tokens.size()))) {
      fail(ErrorKind::Internal, "a checkpoint without recurrent state can not repair a session");
    }
    return;
  }
  size_t at = 0;
  state_.restore(
      [&](std::span<std::byte> out) {
        std::memcpy(out.data(), checkpoint.recurrent.data() + at, out.size());
        at += out.size();
      },
      "checkpoint in memory");
  intact_ = true;
}

void Session::save(const std::string& path) const {
  AtomicFile out(path);
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.n_vocab = static_cast<uint32_t>(n_vocab_);
  header.payload_bytes = state_.saved_bytes(models::State::Parts::All);
  out.write(&header, sizeof header);
  out.write(logits_.data(), logits_.size() * sizeof(float));
  state_.save(models::State::Parts::All,
              [&](std::span<const std::byte> bytes) { out.write(bytes); });
  out.commit();
}

void Session::restore(const std::string& path) {
  const File file = File::open_read(path);
  FileHeader header{};
  const uint64_t prefix = sizeof header + n_vocab_ * sizeof(float);
  if (file.size() < prefix) fail(ErrorKind::Format, "{} is too short to be a saved state", path);
  file.read_at(0, std::as_writable_bytes(std::span(&header, 1)));
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    fail(ErrorKind::Format, "{} is not a saved state of this program", path);
  }
  if (header.version != kVersion) {
    fail(ErrorKind::Format, "{} has version {}, this program reads version {}", path,
         header.version, kVersion);
  }
  if (header.n_vocab != n_vocab_ || file.size() != prefix + header.payload_bytes) {
    fail(ErrorKind::Format, "{} is incomplete or was saved with another model", path);
  }
  uint64_t at = prefix;
  state_.restore(
      [&](std::span<std::byte> out) {
        file.read_at(at, out);
        at += out.size();
      },
      path);
  file.read_at(sizeof header, std::as_writable_bytes(std::span(logits_)));
  intact_ = true;
}

}  // namespace penstock::engine
