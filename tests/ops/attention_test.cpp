// Attention and block selection against plain f64 programs, and the same bits for any grouping.
#include "ops/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ops/support.h"

namespace penstock::testing {
namespace {

constexpr ops::AttentionShape kShape{6, 2, 16, 0.25f};

struct Cache {
  Cache(ops::KvType type, int64_t n_ctx) : k(bytes(type, n_ctx)), v(bytes(type, n_ctx)) {
    view = {type, k.data(), v.data(), kShape.n_head_kv * kShape.head_dim};
  }
  static size_t bytes(ops::KvType type, int64_t n_ctx) {
    return static_cast<size_t>(n_ctx * kShape.n_head_kv * kShape.head_dim) * ops::kv_bytes(type);
  }
  std::vector<std::byte> k, v;
  ops::KvCache view;
};

std::vector<double> plain_attention(const Table& q, int64_t row, int64_t head, const Table& k,
                                    const Table& v, const std::vector<int32_t>& positions) {
  const int64_t dim = kShape.head_dim;
  const int64_t kv = head / (kShape.n_head / kShape.n_head_kv) * dim;
  std::vector<double> scores, out(static_cast<size_t>(dim), 0.0);
  double most = -1e300, sum = 0.0;
  for (const int32_t p : positions) {
    double s = 0.0;
    for (int64_t d = 0; d < dim; ++d) {
      s +=
          static_cast<double>(q.rows[row][head * dim + d]) * static_cast<double>(k.rows[p][kv + d]);
    }
    scores.push_back(s * static_cast<double>(kShape.scale));
    most = std::max(most, scores.back());
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    const double w = std::exp(scores[i] - most);
    sum += w;
    for (int64_t d = 0; d < dim; ++d) {
      out[static_cast<size_t>(d)] += w * static_cast<double>(v.rows[positions[i]][kv + d]);
    }
  }
  for (double& x : out) x /= sum;
  return out;
}

class AttentionTest : public ::testing::TestWithParam<ops::KvType> {
 protected:
  static constexpr int64_t kContext = 700;
  AttentionTest() : cache(GetParam(), kContext), q(kContext, 96), k(kContext, 32), v(kContext, 32) {
    std::mt19937 random(5);
    q.fill(random, -2.0f, 2.0f);
    k.fill(random, -2.0f, 2.0f);
    v.fill(random);
    ops::store_kv(one.context, cache.view, 0, k.rows, v.rows);
  }
  Table run(TestContext& context, int64_t first, int64_t n, const ops::Visible& visible) {
    std::vector<std::byte> memory;
    ops::Layout counted;
    ops::attention_partials(counted, kShape, 8);
    memory.resize(counted.bytes() + 64);
    void* aligned = memory.data();
    size_t space = memory.size();
    std::align(64, counted.bytes(), aligned, space);
    ops::Layout layout(static_cast<std::byte*>(aligned));
    const ops::AttentionPartials partials = ops::attention_partials(layout, kShape, 8);
    Table out(n, 96);
    ops::attend(context.context, kShape, cache.view, first, q.rows.from(first, n), visible,
                partials, out.rows);
    return out;
  }
  TestContext one{1};
  Cache cache;
  Table q, k, v;
};

TEST_P(AttentionTest, DenseIsRight) {
  const Table out = run(one, 0, kContext, {});
  const double tolerance = GetParam() == ops::KvType::F16 ? 3e-3 : 2e-6;
  for (const int64_t row : {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{256}, int64_t{699}}) {
    std::vector<int32_t> positions;
    for (int32_t p = 0; p <= row; ++p) positions.push_back(p);
    for (int64_t h = 0; h < kShape.n_head; ++h) {
      const std::vector<double> expected = plain_attention(q, row, h, k, v, positions);
      for (int64_t d = 0; d < kShape.head_dim; ++d) {
        EXPECT_NEAR(static_cast<double>(out.rows[row][h * kShape.head_dim + d]),
                    expected[static_cast<size_t>(d)], tolerance);
      }
    }
  }
}

TEST_P(AttentionTest, SameBitsForAnyGrouping) {
  const Table all = run(one, 0, kContext, {});
  TestContext three(3);
  for (const auto& [first, n] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {0, 8}, {250, 8}, {300, 1}, {699, 1}, {255, 3}, {100, 300}, {511, 40}}) {
    for (TestContext* context : {&one, &three}) {
      const Table some = run(*context, first, n, {});
      EXPECT_EQ(std::memcmp(some.data.data(), all.rows[first], some.data.size() * 4), 0)
          << first << " " << n;
    }
  }
}

TEST_P(AttentionTest, ListsOfPositions) {
  const std::vector<int32_t> list{0, 1, 2, 3, 40, 41, 42, 43, 300, 301, 302, 303, 500};
  const int64_t stride = 16;
  std::vector<int32_t> positions(20 * 16);
  std::vector<int32_t> counts(20, static_cast<int32_t>(list.size()));
  for (size_t r = 0; r < 20; ++r) std::copy(list.begin(), list.end(), &positions[r * 16]);
  counts[3] = 0;  // a dense row among them
  const Table many = run(one, 600, 20, {positions.data(), stride, counts.data()});
  const Table few = run(one, 600, 5, {positions.data(), stride, counts.data()});
  EXPECT_EQ(std::memcmp(many.data.data(), few.data.data(), few.data.size() * 4), 0);
  const double tolerance = GetParam() == ops::KvType::F16 ? 3e-3 : 2e-6;
  const std::vector<double> expected = plain_attention(q, 604, 5, k, v, list);
  for (size_t d = 0; d < 16; ++d) {
    EXPECT_NEAR(static_cast<double>(many.rows[4][80 + d]), expected[d], tolerance);
  }
  const Table dense = run(one, 603, 1, {});
  EXPECT_EQ(std::memcmp(many.rows[3], dense.rows[0], 96 * 4), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionTest,
                         ::testing::Values(ops::KvType::F32, ops::KvType::F16),
                         [](const auto& test) {
                           return test.param == ops::KvType::F32 ? "F32" : "F16";
                         });

TEST(SelectBlocks, WholeBlocksAndTail) {
  constexpr ops::IndexShape kIndex{2, 8, 4, 3};
  constexpr int64_t kRows = 60;
  std::mt19937 random(6);
  Table keys(kRows / 4, 8), q(kRows, 16);
  keys.fill(random);
  q.fill(random);
  std::fill_n(keys.rows[2], 8, 0.0f);  // ties at zero
  std::fill_n(keys.rows[5], 8, 0.0f);
  std::vector<std::vector<int32_t>> results;
  for (const int threads : {1, 3}) {
    TestContext context(threads);
    std::vector<float> scores(8 * 16);
    std::vector<int32_t> order(8 * 16), positions(kRows * 15), counts(kRows);
    ops::select_blocks(context.context, kIndex, keys.data.data(), 0, q.rows,
                       {scores.data(), order.data(), 16}, positions.data(), counts.data());
    results.push_back(positions);
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t n_blocks = (row + 1) / 4;
      if (n_blocks <= kIndex.budget) {
        EXPECT_EQ(counts[static_cast<size_t>(row)], 0);
        continue;
      }
      std::vector<std::pair<double, int64_t>> ranked;
      for (int64_t b = 0; b < n_blocks; ++b) {
        double score = 0.0;
        for (int64_t h = 0; h < 2; ++h) {
          double dot = 0.0;
          for (int64_t d = 0; d < 8; ++d) {
            dot +=
                static_cast<double>(q.rows[row][h * 8 + d]) * static_cast<double>(keys.rows[b][d]);
          }
          score += std::max(0.0, dot);
        }
        ranked.emplace_back(-score, b);
      }
      std::sort(ranked.begin(), ranked.end());
      std::set<int32_t> expected;
      for (int64_t i = 0; i < kIndex.budget; ++i) {
        for (int64_t t = 0; t < 4; ++t) {
          expected.insert(static_cast<int32_t>(ranked[static_cast<size_t>(i)].second * 4 + t));
        }
      }
      for (int64_t p = n_blocks * 4; p <= row; ++p) expected.insert(static_cast<int32_t>(p));
      const auto start = positions.begin() + row * kIndex.list_length();
      const std::vector<int32_t> got(start, start + counts[static_cast<size_t>(row)]);
      EXPECT_EQ(got, std::vector<int32_t>(expected.begin(), expected.end())) << row;
    }
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace penstock::testing
