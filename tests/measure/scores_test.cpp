// Scores of positions, their statistics and the files that keep them.
#include "measure/scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "engine/tiny_runtime.h"
#include "measure/quality_report.h"
#include "measure/quality_stats.h"

namespace penstock::measure {
namespace {

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

}  // namespace
}  // namespace penstock::measure
