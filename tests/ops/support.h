// Random rows, contexts and comparisons for the tests of the operations.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "ops/context.h"
#include "ops/rows.h"

namespace penstock::testing {

// Rows with memory of their own.
struct Table {
  Table(int64_t count, int64_t width) : data(static_cast<size_t>(count * width)) {
    rows = {data.data(), width, count, width};
  }
  Table(const Table& other) : data(other.data), rows(other.rows) { rows.data = data.data(); }
  Table& operator=(const Table&) = delete;
  Table& fill(std::mt19937& random, float low = -1.0f, float high = 1.0f) {
    std::uniform_real_distribution<float> value(low, high);
    for (float& x : data) x = value(random);
    return *this;
  }
  bool same_bits(const Table& other) const {
    return data.size() == other.data.size() &&
           std::memcmp(data.data(), other.data.data(), data.size() * sizeof(float)) == 0;
  }
  std::vector<float> data;
  ops::Rows rows;
};

struct TestContext {
  explicit TestContext(int threads)
      : pool(threads),
        workspace({.n_in = 1024, .head_dim = 128, .heads_per_kv = 16, .delta_key_dim = 128},
                  threads),
        context{pool, workspace, quant::Precision::Exact} {}
  ThreadPool pool;
  ops::Workspace workspace;
  ops::Context context;
};

}  // namespace penstock::testing
