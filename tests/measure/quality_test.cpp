// Scores, their statistics, base logits and the runs that make them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "engine/tiny_runtime.h"
#include "experts/profile.h"
#include "gguf/model.h"
#include "measure/base_logits.h"
#include "measure/evaluate.h"
#include "measure/quality_report.h"
#include "measure/quality_stats.h"
#include "measure/quality_store.h"

namespace penstock::measure {
namespace {

constexpr int64_t kWindow = 16;

std::vector<float> random_rows(size_t rows, size_t n_vocab, uint64_t seed, double spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(spread));
  std::vector<float> logits(rows * n_vocab);
  for (float& z : logits) z = normal(random);
  return logits;
}

// ln softmax, in long double.
std::vector<long double> log_softmax(std::span<const float> z) {
  long double sum = 0;
  for (const float v : z) sum += std::exp(static_cast<long double>(v));
  std::vector<long double> out;
  for (const float v : z) out.push_back(static_cast<long double>(v) - std::log(sum));
  return out;
}

TEST(Scores, AreThoseOfTheDefinitions) {
  constexpr size_t kVocab = 301, kRows = 5;
  const std::vector<float> base = random_rows(kRows, kVocab, 1, 2);
  std::vector<float> other = base;
  const std::vector<float> noise = random_rows(kRows, kVocab, 2, 0.3);
  for (size_t i = 0; i < other.size(); ++i) other[i] += noise[i];
  const std::vector<int32_t> next = {0, 300, 17, 18, 250};
  ThreadPool pool(2);
  const size_t words = CompactRow::words(kVocab);
  EXPECT_EQ(words, 306u);  // 4 + 2 * ((301 + 1) / 2)
  std::vector<uint16_t> compact(kRows * words);
  for (size_t r = 0; r < kRows; ++r) {
    ASSERT_TRUE(
        CompactRow::compress(std::span(base).subspan(r * kVocab, kVocab), &compact[r * words]));
  }
  for (const bool exact : {true, false}) {
    const BaseRows rows =
        exact
            ? BaseRows{BaseRows::Form::Logits, reinterpret_cast<const std::byte*>(base.data())}
            : BaseRows{BaseRows::Form::Compact, reinterpret_cast<const std::byte*>(compact.data())};
    std::vector<PositionScore> scores(kRows);
    ASSERT_EQ(score_rows(pool, other, next, rows, scores.data()).row, -1);
    const double slack = exact ? 1e-5 : 4e-4;
    for (size_t r = 0; r < kRows; ++r) {
      const auto lb = log_softmax(std::span(base).subspan(r * kVocab, kVocab));
      const auto lq = log_softmax(std::span(other).subspan(r * kVocab, kVocab));
      const auto y = static_cast<size_t>(next[r]);
      long double kld = 0;
      for (size_t v = 0; v < kVocab; ++v) kld += std::exp(lb[v]) * (lb[v] - lq[v]);
      EXPECT_NEAR(scores[r].nll, static_cast<double>(-lq[y]), 1e-5);
      EXPECT_NEAR(scores[r].nll_base, static_cast<double>(-lb[y]), slack);
      EXPECT_NEAR(scores[r].kld, static_cast<double>(kld), slack);
      EXPECT_NEAR(scores[r].dp, static_cast<double>(std::exp(lq[y]) - std::exp(lb[y])), slack);
      const bool same = std::max_element(lb.begin(), lb.end()) - lb.begin() ==
                        std::max_element(lq.begin(), lq.end()) - lq.begin();
      EXPECT_EQ(scores[r].same_top, same ? 1 : 0);
    }
  }
  other[2 * kVocab + 7] = std::nanf("");
  std::vector<PositionScore> scores(kRows);
  const BadRow bad = score_rows(pool, other, next, {}, scores.data());
  EXPECT_EQ(bad.row, 2);
  EXPECT_FALSE(bad.of_base);
  EXPECT_FALSE(CompactRow::compress(std::span(other).subspan(2 * kVocab, kVocab), compact.data()));
}

TEST(Scores, ABaseThatIsNotFiniteIsNamed) {
  constexpr size_t kVocab = 64, kRows = 4;
  const std::vector<float> logits = random_rows(kRows, kVocab, 1, 2);
  const std::vector<int32_t> next = {1, 2, 3, 4};
  ThreadPool pool(2);
  std::vector<PositionScore> scores(kRows);
  std::vector<float> exact = logits;
  const size_t words = CompactRow::words(kVocab);
  std::vector<uint16_t> compact(kRows * words);
  for (size_t r = 0; r < kRows; ++r) {
    ASSERT_TRUE(
        CompactRow::compress(std::span(logits).subspan(r * kVocab, kVocab), &compact[r * words]));
  }
  const auto bad = [&](BaseRows::Form form, const void* data) {
    return score_rows(pool, logits, next, {form, static_cast<const std::byte*>(data)},
                      scores.data());
  };
  exact[3 * kVocab + 9] = std::nanf("");
  exact[1 * kVocab + 9] = INFINITY;
  BadRow row = bad(BaseRows::Form::Logits, exact.data());
  EXPECT_TRUE(row.of_base);
  EXPECT_EQ(row.row, 1);
  const float head[2] = {std::nanf(""), -3};
  std::memcpy(&compact[2 * words], head, sizeof head);
  row = bad(BaseRows::Form::Compact, compact.data());
  EXPECT_TRUE(row.of_base);
  EXPECT_EQ(row.row, 2);
}

TEST(Scores, CompactRowsStayWithinTheirStep) {
  std::vector<float> z = random_rows(1, 1000, 3, 4);
  z[5] = -80;  // beyond the clip
  std::vector<uint16_t> row(CompactRow::words(1000));
  ASSERT_TRUE(CompactRow::compress(z, row.data()));
  std::vector<float> back(1000);
  CompactRow::expand(row.data(), back);
  const auto expected = log_softmax(z);
  const float most = *std::max_element(z.begin(), z.end());
  for (size_t i = 0; i < z.size(); ++i) {
    // What lies below the clip is held at it.
    const auto shift = static_cast<double>(expected[i]) - static_cast<double>(z[i]);
    const double held = std::max(static_cast<double>(z[i]), static_cast<double>(most) - 16) + shift;
    EXPECT_NEAR(back[i], held, 3e-4);
  }
  const std::vector<float> flat(10, 1.5f);
  std::vector<uint16_t> flat_row(CompactRow::words(10));
  ASSERT_TRUE(CompactRow::compress(flat, flat_row.data()));
  back.resize(10);
  CompactRow::expand(flat_row.data(), back);
  EXPECT_NEAR(back[3], -std::log(10.0), 1e-6);
}

ScoreSet random_set(size_t n_windows, bool with_base) {
  ScoreSet set;
  set.window_tokens = 102;  // 50 scored
  set.n_windows = n_windows;
  set.has_base = with_base;
  set.mode = "batch";
  set.quality_settings = "{}";
  set.parts = {{"a.txt", {}}, {"b.txt", {}}};
  std::mt19937_64 random(9);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (size_t w = 0; w < n_windows; ++w) {
    set.windows.push_back({w, w < 30 ? 0u : 1u});
    const double level = uniform(random);
    for (int64_t i = 0; i < set.per_window(); ++i) {
      PositionScore s;
      s.nll = level + uniform(random);
      s.nll_base = s.nll * 0.9 + 0.1 * uniform(random);
      s.kld = 0.1 * uniform(random) * uniform(random);
      s.dp = uniform(random) - 0.5;
      s.same_top = uniform(random) < 0.9 ? 1 : 0;
      set.scores.push_back(s);
    }
  }
  return set;
}

TEST(Statistics, AreThoseOfTheFormulas) {
  const ScoreSet set = random_set(60, true);
  const Quality q = quality_of(set).value();
  const auto n = static_cast<long double>(set.scores.size());
  long double nll = 0, base = 0, kld = 0, top = 0, dp = 0, dp2 = 0;
  for (const PositionScore& s : set.scores) {
    nll += s.nll / n;
    base += s.nll_base / n;
    kld += s.kld / n;
    top += s.same_top / n;
    dp += s.dp / n;
    dp2 += s.dp * s.dp / n;
  }
  // Two-pass variances of the means, as a statistics book has them with n in place of n - 1 inside.
  long double var_q = 0, var_b = 0, cov = 0, var_k = 0, var_d2 = 0;
  for (const PositionScore& s : set.scores) {
    var_q += (s.nll - nll) * (s.nll - nll) / n;
    var_b += (s.nll_base - base) * (s.nll_base - base) / n;
    cov += (s.nll - nll) * (s.nll_base - base) / n;
    var_k += (s.kld - kld) * (s.kld - kld) / n;
    var_d2 += (s.dp * s.dp - dp2) * (s.dp * s.dp - dp2) / n;
  }
  const auto near = [](double got, long double expected) {
    EXPECT_NEAR(got, static_cast<double>(expected), 1e-9 * std::abs(static_cast<double>(expected)));
  };
  near(q.ppl.value, std::exp(nll));
  near(q.ppl.error, std::exp(nll) * std::sqrt(var_q / (n - 1)));
  const Comparison& c = q.comparison.value();
  near(c.ppl_base.value, std::exp(base));
  near(c.ln_ratio.value, nll - base);
  near(c.ln_ratio.error, std::sqrt((var_q + var_b - 2 * cov) / (n - 1)));
  near(c.ppl_ratio.value, std::exp(nll - base));
  near(c.correlation, cov / std::sqrt(var_q * var_b));
  near(c.mean_kld.value, kld);
  near(c.mean_kld.error, std::sqrt(var_k / (n - 1)));
  near(c.same_top.value, top);
  near(c.same_top.error, std::sqrt(top * (1 - top) / (n - 1)));
  near(c.mean_dp.value, dp);
  near(c.rms_dp.value, std::sqrt(dp2));
  near(c.rms_dp.error, std::sqrt(var_d2 / (n - 1)) / (2 * std::sqrt(dp2)));
  std::vector<double> klds;
  for (const PositionScore& s : set.scores) klds.push_back(s.kld);
  std::sort(klds.begin(), klds.end());
  EXPECT_EQ(c.kld.max, klds.back());
  EXPECT_EQ(c.kld.min, klds.front());
  EXPECT_DOUBLE_EQ(c.kld.median, 0.5 * (klds[1499] + klds[1500]));

  // Windows differ by more than their positions do: the interval over windows is the wider one.
  EXPECT_GT(q.ppl.high - q.ppl.low, 2 * 1.96 * q.ppl.error);
  EXPECT_LT(q.ppl.low, q.ppl.value);
  EXPECT_GT(q.ppl.high, q.ppl.value);
  // And where they do not, it is about what the error says.
  EXPECT_NEAR(c.mean_kld.high - c.mean_kld.low, 2 * 1.96 * c.mean_kld.error,
              0.25 * (c.mean_kld.high - c.mean_kld.low));

  EXPECT_EQ(quality_of(set, 0).value().windows, 30u);
  EXPECT_FALSE(quality_of(random_set(19, true)).has_value());  // 950 positions
  EXPECT_THROW(quality_json(random_set(19, true)), Error);
  const auto json = quality_json(set);
  EXPECT_EQ(json["kind"], "kld");
  EXPECT_DOUBLE_EQ(json["mean_kld"].get<double>(), c.mean_kld.value);
  EXPECT_EQ(quality_json(set), json);  // the same intervals again
  std::vector<double> dps;
  for (const PositionScore& s : set.scores) dps.push_back(s.dp);
  std::sort(dps.begin(), dps.end());
  EXPECT_DOUBLE_EQ(json["dp_quantiles"]["75"].get<double>(), quantile(dps, 0.75));
  EXPECT_DOUBLE_EQ(json["dp_quantiles"]["25"].get<double>(), quantile(dps, 0.25));
  EXPECT_DOUBLE_EQ(json["dp_quantiles"]["0.1"].get<double>(), quantile(dps, 0.001));
  EXPECT_DOUBLE_EQ(json["kld_quantiles"]["0.1"].get<double>(), quantile(klds, 0.001));
}

TEST(Statistics, SharesHaveTheirErrors) {
  std::vector<bool> hits(200);
  for (size_t i = 0; i < 150; ++i) hits[i] = true;
  const Estimate e = share_of(hits);
  EXPECT_DOUBLE_EQ(e.value, 0.75);
  EXPECT_NEAR(e.error, std::sqrt(0.75 * 0.25 / 199), 1e-12);
  EXPECT_NEAR(e.low, 0.75 - 1.96 * e.error, 0.015);
  EXPECT_NEAR(e.high, 0.75 + 1.96 * e.error, 0.015);
}

TEST(Statistics, PairsAreComparedItemByItem) {
  // 12 items: 5 solved by both, 6 by the first alone, 1 by the second alone.
  std::vector<bool> first(12, true), second(12, false);
  for (size_t i = 0; i < 5; ++i) second[i] = true;
  first[11] = false;
  second[11] = true;
  const Paired p = paired(first, second);
  EXPECT_EQ(p.n, 12u);
  EXPECT_EQ(p.only_first, 6u);
  EXPECT_EQ(p.only_second, 1u);
  EXPECT_DOUBLE_EQ(p.difference.value, 5.0 / 12);
  const double variance = 7.0 / 12 - 25.0 / 144;
  EXPECT_NEAR(p.difference.error, std::sqrt(variance / 11), 1e-12);
  EXPECT_NEAR(p.p_value, 2 * (1 + 7) / 128.0, 1e-12);  // at most 1 of 7 throws, either way
  EXPECT_LT(p.difference.low, p.difference.value);
  EXPECT_GT(p.difference.high, p.difference.value);
  const Paired same = paired(first, first);
  EXPECT_EQ(same.difference.value, 0);
  EXPECT_EQ(same.p_value, 1);
}

TEST(ScoreFiles, SayWhatTheRunWasLike) {
  const penstock::testing::TemporaryFolder folder;
  ScoreSet set = random_set(40, false);
  EXPECT_TRUE(set.whole());
  set.circumstances = R"({"overlap":{"shared":3},"streaming":{"slots":8}})";
  write_scores(folder.path() + "/s", set);
  ScoreSet first = read_scores(folder.path() + "/s");
  EXPECT_EQ(first.circumstances, set.circumstances);
  ScoreSet second = first;
  first.windows.resize(20);
  first.scores.resize(20 * 50);
  second.windows.erase(second.windows.begin(), second.windows.begin() + 20);
  second.scores.erase(second.scores.begin(), second.scores.begin() + 20 * 50);
  EXPECT_FALSE(first.whole());
  ScoreSet both = first;
  merge(both, second, "second");
  EXPECT_TRUE(both.whole());
  EXPECT_EQ(both.circumstances, R"({"overlap":{"shared":3}})");
  // Parts of a run with cache-aware routing are not that run.
  first.quality_settings = second.quality_settings = R"({"moce":"bonus"})";
  EXPECT_THROW(merge(first, second, "second"), Error);
}

TEST(ScoreFiles, KeepTheScoresAndMerge) {
  const penstock::testing::TemporaryFolder folder;
  const ScoreSet whole = random_set(40, true);
  ScoreSet parts[2];
  for (size_t p = 0; p < 2; ++p) {
    parts[p] = whole;
    parts[p].windows.clear();
    parts[p].scores.clear();
    for (size_t w = p; w < 40; w += 2) {
      parts[p].windows.push_back(whole.windows[w]);
      const auto first = whole.scores.begin() + static_cast<std::ptrdiff_t>(w * 50);
      parts[p].scores.insert(parts[p].scores.end(), first, first + 50);
    }
    write_scores(folder.path() + "/" + std::to_string(p), parts[p]);
  }
  ScoreSet all = read_scores(folder.path() + "/1");
  merge(all, read_scores(folder.path() + "/0"), "0");
  EXPECT_EQ(quality_json(all), quality_json(whole));
  EXPECT_THROW(merge(all, parts[0], "0"), Error);  // scored twice
  parts[1].corpus_id[0] ^= 1;
  ScoreSet other = parts[0];
  EXPECT_THROW(merge(other, parts[1], "1"), Error);
  std::filesystem::resize_file(folder.path() + "/0",
                               std::filesystem::file_size(folder.path() + "/0") - 64);
  EXPECT_THROW(read_scores(folder.path() + "/0"), Error);
}

class Eval : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    penstock::testing::TinyOptions options;
    options.matrices = gguf::TypeId::Q8_0;
    path_ = penstock::testing::write_tiny(folder_.path(), GetParam(), options);
    std::vector<int32_t> tokens = penstock::testing::tiny_tokens(96);
    std::vector<int32_t> more(tokens.rbegin(), tokens.rend());
    tokens.insert(tokens.end(), more.begin(), more.end());
    corpus_.emplace(surgery::Corpus::of(tokens, kWindow, std::nullopt));
  }
  std::unique_ptr<engine::Runtime> open(
      EvalMode mode, int at_once = 1, std::optional<uint64_t> slots = {},
      experts::MoceOptions moce = {},
      const std::function<void(engine::RuntimeOptions&)>& change = {}) const {
    engine::RuntimeOptions options;
    options.model_path = path_;
    options.threads = 2;
    options.arena_slots = slots.value_or(4096);
    options.stream.huge_seconds = 0;
    options.stream.depth = 1;
    options.stream.moce = moce;
    options.watchdog_ms = 0;
    if (mode == EvalMode::Batch) options.prompt_chunk = at_once * static_cast<int>(kWindow);
    prepare(&options, mode, kWindow);
    if (change) change(options);
    return engine::Runtime::open(options, nullptr);
  }
  ScoreSet run(engine::Runtime& runtime, const EvalOptions& options, int most = 1000,
               uint64_t* evaluated = nullptr) const {
    int groups = 0;
    return evaluate(
        runtime, *corpus_, options,
        [&](const EvalProgress& now) {
          ++groups;
          if (evaluated != nullptr) *evaluated = now.tokens;
        },
        [&] { return groups >= most; });
  }
  std::string file(const char* name) const { return folder_.path() + "/" + name; }

  penstock::testing::TemporaryFolder folder_;
  std::string path_;
  std::optional<surgery::Corpus> corpus_;
};

bool same_scores(const std::vector<PositionScore>& a, const std::vector<PositionScore>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(PositionScore)) == 0;
}

TEST_P(Eval, BatchStepsAndShardsScoreTheSame) {
  const auto one = open(EvalMode::Batch);
  const ScoreSet expected = run(*one, {.base_out = file("base")});
  EXPECT_EQ(expected.windows.size(), 12u);
  const auto several = open(EvalMode::Batch, 5, 8);
  EXPECT_TRUE(same_scores(run(*several, {}).scores, expected.scores));
  const auto steps = open(EvalMode::Step, 1, 8);
  EXPECT_TRUE(same_scores(run(*steps, {.mode = EvalMode::Step}).scores, expected.scores));
  ScoreSet shards = run(*several, {.shard = 1, .n_shards = 2});
  merge(shards, run(*several, {.shard = 0, .n_shards = 2}), "0");
  EXPECT_TRUE(same_scores(shards.scores, expected.scores));

  // Against itself: nothing but the 16 bits of the base.
  BaseReader base = BaseReader::open(file("base"));
  const ScoreSet against = run(*several, {.base = &base});
  for (const PositionScore& s : against.scores) {
    EXPECT_NEAR(s.kld, 0, 1e-4);
    EXPECT_NEAR(s.nll, s.nll_base, 2e-4);
  }
}

TEST_P(Eval, ExactBaseIsTheModelItself) {
  const auto runtime = open(EvalMode::Batch, 3);
  run(*runtime, {.base_out = file("base"), .base_logits_exact = true});
  BaseReader base = BaseReader::open(file("base"));
  EXPECT_EQ(base.header().model_id, runtime->file().model_id());
  for (const PositionScore& s : run(*runtime, {.base = &base}).scores) {
    EXPECT_NEAR(s.kld, 0, 1e-6);
    EXPECT_EQ(s.same_top, 1);
  }
}

TEST_P(Eval, BaseFilesGoOnAndAreChecked) {
  const auto runtime = open(EvalMode::Batch);
  uint64_t tokens = 0;
  const ScoreSet expected = run(*runtime, {.base_out = file("whole")}, 1000, &tokens);
  EXPECT_EQ(tokens, 12u * kWindow);
  run(*runtime, {.base_out = file("base")}, 5);
  EXPECT_FALSE(std::filesystem::exists(file("base")));
  // What a killed process leaves: a window half written.
  std::ofstream(file("base.partial"), std::ios::app | std::ios::binary) << "half a window";
  const ScoreSet resumed = run(*runtime, {.base_out = file("base")}, 1000, &tokens);
  EXPECT_EQ(tokens, 7u * kWindow);  // five windows were there
  EXPECT_TRUE(same_scores(resumed.scores, expected.scores));
  for (uint64_t w = 0; w < 12; ++w) EXPECT_EQ(resumed.windows[w].index, w);
  BaseReader whole = BaseReader::open(file("whole"));
  BaseReader base = BaseReader::open(file("base"));
  for (uint64_t w = 0; w < 12; ++w) {
    const size_t bytes = base.header().window_bytes();
    EXPECT_EQ(std::memcmp(whole.rows(w).data, base.rows(w).data, bytes), 0);
  }
  const auto size = std::filesystem::file_size(file("base"));
  std::filesystem::copy_file(file("base"), file("cut"));
  std::filesystem::resize_file(file("cut"), size - 5);
  EXPECT_THROW(BaseReader::open(file("cut")), Error);
  {
    std::fstream damage(file("base"), std::ios::in | std::ios::out | std::ios::binary);
    damage.seekp(static_cast<std::streamoff>(size) - 100);
    damage.put('\x55');
    damage.put('\x55');
  }
  BaseReader damaged = BaseReader::open(file("base"));
  EXPECT_THROW(damaged.rows(11), Error);
  EXPECT_NO_THROW(damaged.rows(0));
  std::ofstream(file("none")) << "no base at all, but long enough for a header";
  EXPECT_THROW(BaseReader::open(file("none")), Error);
}

TEST_P(Eval, ReadsLlamaFilesAndRefusesOtherTexts) {
  const auto runtime = open(EvalMode::Batch);
  run(*runtime, {.base_out = file("base")});
  BaseReader ours = BaseReader::open(file("base"));
  // The same rows in the layout of llama.cpp.
  {
    std::ofstream out(file("llama"), std::ios::binary);
    out << "_logits_";
    const int32_t head[] = {static_cast<int32_t>(kWindow),
                            static_cast<int32_t>(runtime->info().n_vocab), 12};
    out.write(reinterpret_cast<const char*>(head), sizeof head);
    const auto tokens = corpus_->tokens();
    out.write(reinterpret_cast<const char*>(tokens.data()),
              static_cast<std::streamsize>(tokens.size_bytes()));
    for (uint64_t w = 0; w < 12; ++w) {
      out.write(reinterpret_cast<const char*>(ours.rows(w).data),
                static_cast<std::streamsize>(ours.header().window_bytes()));
    }
  }
  BaseReader llama = BaseReader::open(file("llama"));
  EXPECT_TRUE(llama.llama());
  EXPECT_TRUE(
      same_scores(run(*runtime, {.base = &llama}).scores, run(*runtime, {.base = &ours}).scores));
  std::filesystem::resize_file(file("llama"), std::filesystem::file_size(file("llama")) - 1);
  EXPECT_THROW(BaseReader::open(file("llama")), Error);

  std::vector<int32_t> other(corpus_->tokens().begin(), corpus_->tokens().end());
  other[20] ^= 1;
  corpus_.emplace(surgery::Corpus::of(other, kWindow, std::nullopt));
  EXPECT_THROW(run(*runtime, {.base = &ours}), Error);
  // The last token of a window is looked up without ever being forwarded.
  for (const int64_t id : {int64_t{-1}, int64_t{runtime->info().n_vocab}}) {
    other[kWindow - 1] = static_cast<int32_t>(id);
    corpus_.emplace(surgery::Corpus::of(other, kWindow, std::nullopt));
    EXPECT_THROW(run(*runtime, {}), Error);
  }
}

// Writes NaN over the beginning of a tensor's data.
void spoil(const std::string& path, const std::string& name) {
  const gguf::Model model = gguf::Model::open(path);
  const gguf::Tensor& tensor = model.require(name);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const std::vector<float> bad(tensor.bytes / sizeof(float), std::nanf(""));
  file.seekp(static_cast<std::streamoff>(tensor.offset));
  file.write(reinterpret_cast<const char*>(bad.data()),
             static_cast<std::streamsize>(bad.size() * sizeof(float)));
}

TEST_P(Eval, WhatIsNotFiniteIsNamed) {
  const auto said = [&](const std::string& tensor) {
    path_ = penstock::testing::write_tiny(folder_.path(), GetParam());
    spoil(path_, tensor);
    try {
      run(*open(EvalMode::Batch, 3), {});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Numeric);
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const std::string last =
      fmt::format("blk.{}.ffn_down_exps.weight", open(EvalMode::Batch)->info().n_layer - 1);
  const std::string of_last = said(last);
  EXPECT_NE(of_last.find("window 0, position 0"), std::string::npos) << of_last;
  EXPECT_NE(
      of_last.find(fmt::format("layer {} is the first", open(EvalMode::Batch)->info().n_layer - 1)),
      std::string::npos)
      << of_last;
  const std::string of_first = said("blk.0.ffn_down_exps.weight");
  EXPECT_NE(of_first.find("position 0"), std::string::npos) << of_first;
  EXPECT_NE(of_first.find("layer"), std::string::npos) << of_first;
  const std::string of_output = said("output.weight");
  EXPECT_NE(of_output.find("output matrix"), std::string::npos) << of_output;
}

TEST_P(Eval, CacheAwareRoutingIsMeasuredInStepsOnly) {
  experts::MoceOptions moce;
  moce.mode = experts::Moce::Bonus;
  moce.protect = 1;
  moce.bonus = 4;
  const auto batch = open(EvalMode::Batch, 1, 8, moce);
  EXPECT_THROW(run(*batch, {}), Error);
  const auto live = open(EvalMode::Step, 1, 8, moce);
  EXPECT_THROW(run(*live, {.mode = EvalMode::Step}), Error);
  moce.residency = experts::MoceResidency::Epoch;
  const auto shard = open(EvalMode::Step, 1, 8, moce);
  EXPECT_THROW(run(*shard, {.mode = EvalMode::Step, .n_shards = 2}), Error);
  EXPECT_THROW(check_repeatable(*live, 1), Error);
  EXPECT_NO_THROW(check_repeatable(*shard, 1));
  const auto first = open(EvalMode::Step, 1, 8, moce);
  const ScoreSet scores = run(*first, {.mode = EvalMode::Step});
  const auto again = open(EvalMode::Step, 1, 8, moce);
  EXPECT_TRUE(same_scores(run(*again, {.mode = EvalMode::Step}).scores, scores.scores));
  const auto exact = open(EvalMode::Step, 1, 8);
  EXPECT_FALSE(same_scores(run(*exact, {.mode = EvalMode::Step}).scores, scores.scores));
  // Its key is its own, and the number of slots is part of it.
  EXPECT_NE(quality_key(*first).id, quality_key(*exact).id);
  EXPECT_EQ(quality_key(*first).id, quality_key(*again).id);
  const auto larger = open(EvalMode::Step, 1, 9, moce);
  EXPECT_NE(quality_key(*first).id, quality_key(*larger).id);
  EXPECT_EQ(quality_key(*exact).id, quality_key(*open(EvalMode::Step, 1, 9)).id);
  EXPECT_EQ(exact_key(quality_key(*first)).id, quality_key(*exact).id);
}

// What can be measured again stands for what cannot: a run that reads ahead finds its quality.
TEST_P(Eval, TheKeyHoldsWhatDecidesResidency) {
  experts::MoceOptions moce;
  moce.mode = experts::Moce::Bonus;
  moce.residency = experts::MoceResidency::Epoch;
  const auto key = [&](const std::function<void(engine::RuntimeOptions&)>& change) {
    return quality_key(*open(EvalMode::Step, 1, 24, moce, change)).id;
  };
  const std::string measured = key({});
  EXPECT_NE(measured, key([](auto& o) { o.stream.half_life = 7; }));
  EXPECT_NE(measured, key([](auto& o) { o.stream.evict = experts::Evict::Lru; }));
  const std::string profile = file("profile.json");
  const auto write = [&](uint64_t first) {
    const auto runtime = open(EvalMode::Step, 1, 8);
    experts::Profile p;
    p.model_id = runtime->file().model_id();
    p.routing = "exact";
    p.n_tokens = 10;
    for (const experts::LayerGeometry& layer : runtime->source().geometry.layers) {
      experts::LayerUses uses{layer.layer, {}, {}};
      uses.decode.assign(static_cast<size_t>(layer.n_expert), 1);
      uses.prompt.assign(static_cast<size_t>(layer.n_expert), 0);
      uses.decode[0] = first;
      p.layers.push_back(uses);
    }
    experts::write_profile(profile, p);
  };
  write(5);
  const auto with = [&](experts::Fill fill) {
    return key([&](auto& o) {
      o.profile = profile;
      o.stream.fill = fill;
    });
  };
  const std::string warm = with(experts::Fill::Warm);
  EXPECT_NE(warm, measured);
  EXPECT_EQ(with(experts::Fill::None), measured);  // nobody looks at the profile then
  write(9);
  EXPECT_NE(with(experts::Fill::Warm), warm);
  write(5);
  moce.residency = experts::MoceResidency::Live;
  EXPECT_EQ(with(experts::Fill::Lazy), warm);
  for (const auto mode :
       {experts::ReadAhead::On, experts::ReadAhead::Auto, experts::ReadAhead::Off}) {
    EXPECT_EQ(key([&](auto& o) { o.stream.read_ahead = mode; }), measured);
  }
  EXPECT_NE(measured, key([](auto& o) { o.stream.alias = true; }));
}

INSTANTIATE_TEST_SUITE_P(Architectures, Eval, ::testing::Values("qwen4exp", "qwen3moe"));

TEST(QualityStore, KeepsOneOfEachKind) {
  const penstock::testing::TemporaryFolder folder;
  const QualityStore store(folder.path() + "/new/folder");
  const QualityKey key{{{"a", 1}}, "00ff"};
  EXPECT_FALSE(store.find(key.id).has_value());
  EXPECT_EQ(quality_line(store.find(key.id)), "unmeasured");
  store.add(key, {{"kind", "perplexity"}, {"text", "t"}, {"ppl", 4.5}, {"ppl_error", 0.1}});
  store.add(key, {{"kind", "tasks"}, {"accuracy", 0.5}, {"n", 40}});
  store.add(key, {{"kind", "perplexity"}, {"text", "t"}, {"ppl", 4.25}, {"ppl_error", 0.1}});
  // A part of the text would speak for the whole of it.
  EXPECT_THROW(store.add(key, {{"kind", "perplexity"},
                               {"text", "t"},
                               {"ppl", 9.0},
                               {"windows", 3},
                               {"windows_in_text", 4}}),
               Error);
  const auto found = store.find(key.id);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->size(), 2u);
  EXPECT_EQ(quality_line(found), "tasks 50.0 % of 40; perplexity 4.25 +- 0.1 (t)");
  std::ofstream(store.path_of(key.id)) << "{\"schema\": 1}";
  EXPECT_FALSE(store.find(key.id).has_value());
}

}  // namespace
}  // namespace penstock::measure
