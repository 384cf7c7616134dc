#include "experts/options.h"

#include <charconv>

#include "base/error.h"

namespace penstock::experts {
namespace {

template <typename T>
struct Choice {
  T value;
  const char* name;
};

constexpr Choice<IoMode> kIoModes[] = {{IoMode::Auto, "auto"},
                                       {IoMode::Uring, "uring"},
                                       {IoMode::Pread, "pread"},
                                       {IoMode::Buffered, "buffered"},
                                       {IoMode::Mmap, "mmap"}};
constexpr Choice<Evict> kEvicts[] = {
    {Evict::Lfu, "lfu"}, {Evict::Lru, "lru"}, {Evict::Profile, "profile"}, {Evict::Cycle, "cycle"}};
constexpr Choice<Fill> kFills[] = {
    {Fill::None, "none"}, {Fill::Lazy, "lazy"}, {Fill::Warm, "warm"}};
constexpr Choice<Predictor> kPredictors[] = {{Predictor::Auto, "auto"},
                                             {Predictor::Residual, "residual"},
                                             {Predictor::ResidualShared, "residual+shared"},
                                             {Predictor::GateInput, "gate-input"}};
constexpr Choice<ReadAhead> kReadAheads[] = {{ReadAhead::Auto, "auto"},
                                             {ReadAhead::On, "on"},
                                             {ReadAhead::Off, "off"},
                                             {ReadAhead::Probe, "probe"}};
constexpr Choice<Moce> kMoces[] = {{Moce::Off, "off"},
                                   {Moce::Bonus, "bonus"},
                                   {Moce::Prior, "prior"},
                                   {Moce::MaxRank, "maxrank"},
                                   {Moce::CumProb, "cumprob"}};
constexpr Choice<MoceResidency> kResidencies[] = {{MoceResidency::Live, "live"},
                                                  {MoceResidency::Epoch, "epoch"}};

template <typename T, size_t n>
T parse(const Choice<T> (&choices)[n], const char* flag, std::string_view text) {
  std::string names;
  for (size_t i = 0; i < n; ++i) {
    if (text == choices[i].name) return choices[i].value;
    names += i == 0 ? "" : i + 1 == n ? " or " : ", ";
    names += choices[i].name;
  }
  fail(ErrorKind::Usage, "{} {}: must be {}", flag, text, names);
}

template <typename T, size_t n>
const char* name_of(const Choice<T> (&choices)[n], T value) noexcept {
  for (const Choice<T>& choice : choices) {
    if (choice.value == value) return choice.name;
  }
  return "?";
}

}  // namespace

IoMode parse_io_mode(std::string_view text) {
  return parse(kIoModes, "--io", text);
}
const char* io_mode_name(IoMode mode) noexcept {
  return name_of(kIoModes, mode);
}

Evict parse_evict(std::string_view text) {
  return parse(kEvicts, "--evict", text);
}
const char* evict_name(Evict evict) noexcept {
  return name_of(kEvicts, evict);
}

Fill parse_fill(std::string_view text) {
  return parse(kFills, "--fill", text);
}
const char* fill_name(Fill fill) noexcept {
  return name_of(kFills, fill);
}

ReadAhead parse_read_ahead(std::string_view text) {
  return parse(kReadAheads, "--read-ahead", text);
}
const char* read_ahead_name(ReadAhead mode) noexcept {
  return name_of(kReadAheads, mode);
}

Predictor parse_predictor(std::string_view text) {
  return parse(kPredictors, "--predictor", text);
}
const char* predictor_name(Predictor predictor) noexcept {
  return name_of(kPredictors, predictor);
}

Moce parse_moce(std::string_view text) {
  return parse(kMoces, "--moce", text);
}
const char* moce_name(Moce moce) noexcept {
  return name_of(kMoces, moce);
}

MoceResidency parse_moce_residency(std::string_view text) {
  return parse(kResidencies, "--moce-residency", text);
}
const char* moce_residency_name(MoceResidency residency) noexcept {
  return name_of(kResidencies, residency);
}

void check_moce(const MoceOptions& o) {
  const auto require = [](bool good, const char* flag, auto value, const char* range) {
    if (!good) fail(ErrorKind::Usage, "{} {}: must be {}", flag, value, range);
  };
  require(o.bonus >= 0 && o.bonus <= 20, "--moce-bonus", o.bonus, "from 0 to 20");
  require(o.lambda >= 0 && o.lambda <= 1, "--moce-lambda", o.lambda, "from 0 to 1");
  require(o.protect >= 0, "--moce-protect", o.protect, "0 or more");
  require(o.window >= 1, "--moce-window", o.window, "1 or more");
  require(o.mass > 0 && o.mass <= 1, "--moce-mass", o.mass, "above 0, at most 1");
  require(o.guard >= 0 && o.guard < 1, "--moce-guard", o.guard, "from 0 to below 1");
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
