#include "measure/scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "gguf/model.h"
#include "gguf/writer.h"

namespace penstock::measure {
namespace {

constexpr float kClip = 16;  // nats
constexpr const char* kType = "penstock-scores";
constexpr uint32_t kVersion = 1;
constexpr size_t kFields = 5;
static_assert(sizeof(PositionScore) == kFields * sizeof(double));

struct Softmax {
  float largest = 0;
  double log_sum = 0;  // of exp(x - largest)
  size_t top = 0;
  bool finite = true;
};

Softmax softmax_of(std::span<const float> logits) noexcept {
  Softmax s;
  float most = logits[0], least = logits[0];
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > most) {
      most = logits[i];
      s.top = i;
    }
    least = std::min(least, logits[i]);
    // NaN fails every comparison.
    s.finite = s.finite && logits[i] == logits[i];
  }
  s.finite = s.finite && std::isfinite(most) && std::isfinite(least);
  s.largest = most;
  // Eight sums in a fixed order: the same everywhere, and vectorisable.
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= logits.size(); i += 8) {
    for (size_t k = 0; k < 8; ++k) lanes[k] += static_cast<double>(std::exp(logits[i + k] - most));
  }
  for (; i < logits.size(); ++i) lanes[0] += static_cast<double>(std::exp(logits[i] - most));
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  s.log_sum = std::log(sum);
  return s;
}

// Against ln p_b of every token. False: the base's row is not finite.
bool compare(std::span<const float> base, std::span<const float> logits, const Softmax& s,
             size_t next, PositionScore* out) noexcept {
  double kld = 0;
  size_t top = 0;
  const double shift = static_cast<double>(s.largest) + s.log_sum;
  for (size_t i = 0; i < base.size(); ++i) {
    if (base[i] > base[top]) top = i;
    if (base[i] < -kClip) continue;
    const double log_b = static_cast<double>(base[i]);
    kld +=
        static_cast<double>(std::exp(base[i])) * (log_b - (static_cast<double>(logits[i]) - shift));
  }
  out->kld = kld;
  out->nll_base = -static_cast<double>(base[next]);
  out->dp = std::exp(-out->nll) - std::exp(-out->nll_base);
  out->same_top = top == s.top ? 1 : 0;
  // What is not a number is never below the clip: it is in the sum.
  return std::isfinite(kld) && std::isfinite(out->nll_base);
}

// Row `r` of the base as ln p_b; false: it is not finite.
bool expand_base(const BaseRows& base, size_t r, std::span<float> log_b) noexcept {
  const size_t n_vocab = log_b.size();
  if (base.form == BaseRows::Form::Compact) {
    const auto* words = reinterpret_cast<const uint16_t*>(base.data);
    CompactRow::expand(words + r * CompactRow::words(static_cast<int64_t>(n_vocab)), log_b);
    return true;  // compare() sees what the row's two numbers made of it
  }
  const auto* rows = reinterpret_cast<const float*>(base.data);
  const std::span<const float> zb{rows + r * n_vocab, n_vocab};
  const Softmax sb = softmax_of(zb);
  const double shift = static_cast<double>(sb.largest) + sb.log_sum;
  for (size_t i = 0; i < n_vocab; ++i) {
    log_b[i] = static_cast<float>(static_cast<double>(zb[i]) - shift);
  }
  return sb.finite;
}

// What shards of a run share of their circumstances.
std::string overlap_alone(const std::string& circumstances) {
  const auto said = nlohmann::json::parse(circumstances, nullptr, false);
  if (!said.is_object() || !said.contains("overlap")) return {};
  return nlohmann::json{{"overlap", said["overlap"]}}.dump();
}

}  // namespace

bool CompactRow::compress(std::span<const float> logits, uint16_t* row) noexcept {
  const Softmax s = softmax_of(logits);
  if (!s.finite) return false;
  const float least = std::max(*std::min_element(logits.begin(), logits.end()), s.largest - kClip);
  const float scale = (s.largest - least) / 65535.0f;
  const float head[2] = {scale,
                         static_cast<float>(static_cast<double>(least - s.largest) - s.log_sum)};
  std::memset(row, 0, words(static_cast<int64_t>(logits.size())) * sizeof(uint16_t));
  std::memcpy(row, head, sizeof head);
  if (scale == 0) return true;
  const float inverse = 1 / scale;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] <= least) continue;
    row[4 + i] =
        static_cast<uint16_t>(std::min(65535L, std::lrintf(inverse * (logits[i] - least))));
  }
  return true;
}

void CompactRow::expand(const uint16_t* row, std::span<float> log_probabilities) noexcept {
  float head[2];
  std::memcpy(head, row, sizeof head);
  for (size_t i = 0; i < log_probabilities.size(); ++i) {
    log_probabilities[i] = head[0] * static_cast<float>(row[4 + i]) + head[1];
  }
}

BadRow score_rows(ThreadPool& pool, std::span<const float> logits, std::span<const int32_t> next,
                  const BaseRows& base, PositionScore* out) {
  const size_t n_vocab = logits.size() / next.size();
  // Twice the row, and 1 where it is the base's: the least is the first.
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> bad{kNone};
  const auto refuse = [&](int64_t row, bool of_base) {
    const int64_t mine = 2 * row + (of_base ? 1 : 0);
    int64_t least = bad;
    while (mine < least && !bad.compare_exchange_weak(least, mine)) {
    }
  };
  pool.parallel_for(static_cast<int64_t>(next.size()), [&](int64_t row, int) {
    const auto r = static_cast<size_t>(row);
    const std::span<const float> z = logits.subspan(r * n_vocab, n_vocab);
    const auto y = static_cast<size_t>(next[r]);
    const Softmax s = softmax_of(z);
    if (!s.finite) return refuse(row, false);
    PositionScore score;
    score.nll = static_cast<double>(s.largest) + s.log_sum - static_cast<double>(z[y]);
    if (base.form != BaseRows::Form::None) {
      std::vector<float> log_b(n_vocab);
      if (!expand_base(base, r, log_b) || !compare(log_b, z, s, y, &score)) {
        return refuse(row, true);
      }
    }
    out[r] = score;
  });
  if (bad == kNone) return {};
  return {bad / 2, bad % 2 != 0};
}

bool ScoreSet::cache_aware() const {
  const auto settings = nlohmann::json::parse(quality_settings, nullptr, false);
  return settings.is_object() && settings.contains("moce") && settings["moce"] != "off";
}

void write_scores(const std::string& path, const ScoreSet& set) {
  gguf::Writer writer(path);
  writer.set_string("general.type", kType);
  writer.set_string("general.name", set.model_name);
  writer.set_u32("scores.version", kVersion);
  writer.set_string("scores.model_id", hex(set.model_id));
  writer.set_string("scores.quality_key", set.quality_key);
  writer.set_string("scores.quality_settings", set.quality_settings);
  writer.set_bool("scores.has_base", set.has_base);
  writer.set_string("scores.base_id", hex(set.base_id));
  writer.set_string("scores.base_name", set.base_name);
  writer.set_string("scores.base_key", set.base_key);
  writer.set_string("scores.mode", set.mode);
  writer.set_u64("scores.window_tokens", static_cast<uint64_t>(set.window_tokens));
  writer.set_u64("scores.n_windows", set.n_windows);
  writer.set_string("scores.corpus_id", hex(set.corpus_id));
  if (!set.circumstances.empty()) writer.set_string("scores.circumstances", set.circumstances);
  std::vector<std::string> names, ids;
  for (const ScoreSet::Part& part : set.parts) {
    names.push_back(part.name);
    ids.push_back(hex(part.tokens_id));
  }
  std::vector<uint64_t> windows;
  for (const ScoreSet::Window& window : set.windows) {
    windows.insert(windows.end(), {window.index, window.part});
  }
  writer.set_string_array("scores.parts.names", names);
  writer.set_string_array("scores.parts.token_ids", ids);
  writer.set_u64_array("scores.windows", windows);
  const uint64_t dims[] = {kFields, set.scores.size()};
  writer.add_tensor("scores", gguf::TypeId::F64, dims);
  writer.begin();
  writer.append(std::as_bytes(std::span(set.scores)));
  writer.finish();
}

ScoreSet read_scores(const std::string& path) {
  const gguf::Model file = gguf::Model::open(path);
  const gguf::Metadata& m = file.metadata();
  const std::string_view type = m.get_string("general.type", "");
  if (type != kType) {
    fail(ErrorKind::Format,
         "{} holds no scores (general.type is '{}'): `penstock eval ... --scores FILE` writes them",
         path, gguf::printable(type));
  }
  if (m.get_u64("scores.version") != kVersion) {
    fail(ErrorKind::Unsupported, "{}: scores of version {}; this program knows version {}", path,
         m.get_u64("scores.version"), kVersion);
  }
  const auto digest = [&](std::string_view digits, const char* what) {
    Sha256 id{};
    if (!parse_sha256(digits, &id)) {
      fail(ErrorKind::Format, "{}: {} is no SHA-256: '{}'", path, what, gguf::printable(digits));
    }
    return id;
  };
  ScoreSet set;
  set.model_id = digest(m.get_string("scores.model_id"), "scores.model_id");
  set.model_name = m.get_string("general.name");
  set.quality_key = m.get_string("scores.quality_key");
  set.quality_settings = m.get_string("scores.quality_settings");
  set.has_base = m.get_bool("scores.has_base");
  set.base_id = digest(m.get_string("scores.base_id"), "scores.base_id");
  set.base_name = m.get_string("scores.base_name");
  set.base_key = m.get_string("scores.base_key");
  set.mode = m.get_string("scores.mode");
  set.window_tokens = m.get_i64("scores.window_tokens");
  set.n_windows = m.get_u64("scores.n_windows");
  set.corpus_id = digest(m.get_string("scores.corpus_id"), "scores.corpus_id");
  set.circumstances = m.get_string("scores.circumstances", "");
  const auto names = m.get_string_array("scores.parts.names");
  const auto ids = m.get_string_array("scores.parts.token_ids");
  const auto windows = m.get_u64_array("scores.windows");
  if (names.size() != ids.size() || windows.size() % 2 != 0 || set.window_tokens < 2 ||
      set.window_tokens > (1 << 24)) {
    fail(ErrorKind::Format, "{}: scores.* values that do not fit together", path);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    set.parts.push_back({std::string(names[i]), digest(ids[i], "scores.parts.token_ids")});
  }
  for (size_t i = 0; i < windows.size(); i += 2) {
    if (windows[i] >= set.n_windows || windows[i + 1] >= names.size() ||
        (i > 0 && windows[i] <= windows[i - 2])) {
      fail(ErrorKind::Format, "{}: scores.windows names window {} of part {}", path, windows[i],
           windows[i + 1]);
    }
    set.windows.push_back({windows[i], static_cast<uint32_t>(windows[i + 1])});
  }
  const gguf::Tensor& tensor = file.require("scores");
  const uint64_t expected = set.windows.size() * static_cast<uint64_t>(set.per_window());
  if (tensor.type != gguf::TypeId::F64 || tensor.ne[0] != kFields || tensor.rows() != expected) {
    fail(ErrorKind::Format, "{}: scores is {} {}, not F64 [{}, {}]", path,
         gguf::type_name(tensor.type), gguf::shape_text(tensor), kFields, expected);
  }
  set.scores.resize(expected);
  std::memcpy(set.scores.data(), file.data(tensor), tensor.bytes);
  for (const PositionScore& score : set.scores) {
    if (!std::isfinite(score.nll + score.nll_base + score.kld + score.dp + score.same_top)) {
      fail(ErrorKind::Format, "{}: a score is not finite", path);
    }
  }
  return set;
}

void merge(ScoreSet& all, const ScoreSet& more, const std::string& path) {
  const auto refuse = [&](const char* what) {
    fail(ErrorKind::Usage, "{} is of another {} than the files before it", path, what);
  };
  if (more.model_id != all.model_id || more.quality_key != all.quality_key) {
    refuse("model or other settings");
  }
  if (more.corpus_id != all.corpus_id || more.n_windows != all.n_windows) refuse("text");
  if (more.window_tokens != all.window_tokens) refuse("window length");
  if (more.mode != all.mode) refuse("mode");
  if (more.has_base != all.has_base || more.base_id != all.base_id ||
      more.base_key != all.base_key) {
    refuse("base");
  }
  if (all.cache_aware()) {
    fail(ErrorKind::Usage,
         "{}: cache-aware routing depends on the windows before: shards of it are not one run, "
         "score the whole text at once",
         path);
  }
  // Two ascending lists into one.
  ScoreSet out = all;
  out.windows.clear();
  out.scores.clear();
  const auto take = [&](const ScoreSet& from, size_t i) {
    out.windows.push_back(from.windows[i]);
    const auto first = from.scores.begin() + static_cast<std::ptrdiff_t>(i) * from.per_window();
    out.scores.insert(out.scores.end(), first, first + from.per_window());
  };
  size_t a = 0, b = 0;
  while (a < all.windows.size() || b < more.windows.size()) {
    if (a < all.windows.size() && b < more.windows.size() &&
        all.windows[a].index == more.windows[b].index) {
      fail(ErrorKind::Usage, "{} scores window {}, which a file before it scored too", path,
           more.windows[b].index);
    }
    if (b == more.windows.size() ||
        (a < all.windows.size() && all.windows[a].index < more.windows[b].index)) {
      take(all, a++);
    } else {
      take(more, b++);
    }
  }
  out.circumstances = overlap_alone(all.circumstances);
  all = std::move(out);
}

}  // namespace penstock::measure
