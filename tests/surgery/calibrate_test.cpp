// Calibration: the same sums whatever ran together, from whatever memory, in whatever pieces; and
// the right ones.
#include "surgery/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>

#include "base/error.h"
#include "engine/session.h"
#include "engine/tiny_runtime.h"
#include "experts/route.h"
#include "gguf/model.h"
#include "gguf/writer.h"

namespace penstock::surgery {
namespace {

constexpr int64_t kWindow = 12;

struct Setting {
  int at_once = 1;
  std::optional<uint64_t> slots = {};
  int threads = 1;
  quant::Precision precision = quant::Precision::Fast;
};

std::unique_ptr<engine::Runtime> open_windows(const std::string& path, const Setting& setting) {
  engine::RuntimeOptions options;
  options.model_path = path;
  options.precision = setting.precision;
  options.threads = setting.threads;
  options.n_ctx = kWindow;
  options.windows = true;
  options.prompt_chunk = setting.at_once * static_cast<int>(kWindow);
  options.arena_slots = setting.slots.value_or(4096);
  options.stream.huge_seconds = 0;
  options.stream.depth = 1;
  options.watchdog_ms = 0;
  return engine::Runtime::open(options, nullptr);
}

class Calibrate : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    penstock::testing::TinyOptions options;
    options.matrices = gguf::TypeId::Q8_0;
    path_ = penstock::testing::write_tiny(folder_.path(), GetParam(), options);
    tokens_ = penstock::testing::tiny_tokens(static_cast<int>(kWindow) * 7 + 5);
  }

  Corpus corpus(std::optional<int32_t> first = {}) const {
    return Corpus::of(tokens_, kWindow, first);
  }
  Calibration run(const Setting& setting, CalibrateOptions options = {}, int most_groups = 100,
                  std::optional<int32_t> first = {}) const {
    const auto runtime = open_windows(path_, setting);
    int groups = 0;
    return calibrate(
        *runtime, corpus(first), options, [&](const CalibrateProgress&) { ++groups; },
        [&] { return groups >= most_groups; });
  }
  std::string file(const char* name) const { return folder_.path() + "/" + name; }

  penstock::testing::TemporaryFolder folder_;
  std::string path_;
  std::vector<int32_t> tokens_;
};

void expect_same(const Calibration& a, const Calibration& b) {
  EXPECT_EQ(a.even, b.even);
  EXPECT_EQ(a.odd, b.odd);
  EXPECT_EQ(a.columns, b.columns);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.corpus, b.corpus);
  EXPECT_EQ(a.windows(), b.windows());
}

// The sums made again from single forward passes of one window each, with what the observer shows
// of the whole block and long double arithmetic.
struct Naive final : models::ComputeObserver {
  struct Sums {
    uint64_t n = 0;
    long double p = 0, p_selected = 0, g = 0, a = 0, ga = 0, ga2 = 0;
    float most = 0;
  };
  std::map<int, std::vector<Sums>> layers;
  std::map<std::string, std::vector<long double>> dense;
  std::map<std::pair<int, int>, std::vector<long double>> hidden;  // by layer and expert
  int64_t skip = 0;                                                // rows at the beginning

  void product(const ops::Matrix& matrix, const ops::Rows& input) override {
    std::vector<long double>& sums = dense[matrix.name];
    sums.resize(static_cast<size_t>(matrix.n_in));
    for (int64_t r = skip; r < input.count; ++r) {
      for (int64_t i = 0; i < matrix.n_in; ++i) {
        sums[static_cast<size_t>(i)] +=
            static_cast<long double>(input[r][i]) * static_cast<long double>(input[r][i]);
      }
    }
  }
  void experts(const models::ExpertsSeen& seen, ThreadPool&) override {
    std::vector<Sums>& sums = layers[seen.block];
    const auto n_expert = static_cast<size_t>(seen.bank->n_expert);
    sums.resize(n_expert);
    for (int64_t r = skip; r < seen.x.count; ++r) {
      long double total = 0;
      std::vector<long double> p(n_expert);
      for (size_t e = 0; e < n_expert; ++e) {
        p[e] = std::exp(static_cast<long double>(seen.logits[r][e]));
        total += p[e];
      }
      for (size_t e = 0; e < n_expert; ++e) sums[e].p += p[e] / total;
      for (int rank = 0; rank < seen.n_used; ++rank) {
        const int64_t pair = r * seen.n_used + rank;
        const auto e = static_cast<size_t>(seen.ids[static_cast<size_t>(pair)]);
        long double square = 0;
        for (int64_t i = 0; i < seen.out.width; ++i) {
          const auto v = static_cast<long double>(seen.out[pair][i]);
          square += v * v;
          sums[e].most = std::max(sums[e].most, std::abs(seen.out[pair][i]));
        }
        const long double a = std::sqrt(square);
        const auto g = static_cast<long double>(seen.weights[static_cast<size_t>(pair)]);
        ++sums[e].n;
        sums[e].p_selected += p[e] / total;
        sums[e].g += g;
        sums[e].a += a;
        sums[e].ga += g * a;
        sums[e].ga2 += g * a * g * a;
        std::vector<long double>& columns = hidden[{seen.block, static_cast<int>(e)}];
        columns.resize(static_cast<size_t>(seen.hidden.width));
        for (int64_t i = 0; i < seen.hidden.width; ++i) {
          const auto v = static_cast<long double>(seen.hidden[pair][i]);
          columns[static_cast<size_t>(i)] += v * v;
        }
      }
    }
  }
};

void expect_near(const ExactSum& sum, long double expected) {
  EXPECT_NEAR(sum.value(), static_cast<double>(expected),
              1e-6 * std::abs(static_cast<double>(expected)) + 1e-12);
}

TEST_P(Calibrate, SumsWhatTheExpertsDo) {
  const auto runtime = open_windows(path_, {});
  const Corpus text = corpus();
  Naive naive;
  runtime->model().set_observer(&naive);
  for (uint64_t w = 0; w < text.n_windows(); ++w) {
    const std::vector<int32_t> ids = text.window(w);
    runtime->state().reset();
    // All rows of the last block too: every position's logits are asked for.
    std::vector<float> logits(ids.size() * static_cast<size_t>(runtime->info().n_vocab));
    runtime->model().forward(runtime->state(), runtime->stream(),
                             {ids, experts::Phase::Prompt, models::Logits::All, nullptr},
                             logits.data());
  }
  const Calibration c = run({}, {.importance = true});
  EXPECT_EQ(c.tokens, text.n_windows() * kWindow);
  const ExpertStats stats = c.stats();
  ASSERT_EQ(stats.layers.size(), naive.layers.size());
  for (const LayerStats& layer : stats.layers) {
    const std::vector<Naive::Sums>& expected = naive.layers.at(layer.layer);
    ASSERT_EQ(layer.experts.size(), expected.size());
    uint64_t uses = 0;
    for (size_t e = 0; e < expected.size(); ++e) {
      const ExpertSums& got = layer.experts[e];
      EXPECT_EQ(got.n, expected[e].n);
      EXPECT_EQ(got.max_abs, expected[e].most);
      expect_near(got.p, expected[e].p);
      expect_near(got.p_selected, expected[e].p_selected);
      expect_near(got.g, expected[e].g);
      expect_near(got.a, expected[e].a);
      expect_near(got.ga, expected[e].ga);
      expect_near(got.ga2, expected[e].ga2);
      uses += got.n;
    }
    EXPECT_EQ(uses, c.tokens * static_cast<uint64_t>(layer.n_used));
  }
  for (const auto& [key, sums] : naive.hidden) {
    const ColumnSums& got = c.columns.at(fmt::format("blk.{}.ffn_down_exps.weight", key.first));
    for (size_t i = 0; i < sums.size(); ++i) {
      expect_near(got.sums[static_cast<size_t>(key.second) * got.n_in + i], sums[i]);
    }
  }
  size_t dense = 0;
  for (const auto& [name, sums] : naive.dense) {
    if (!name.starts_with("blk.")) continue;
    const ColumnSums& got = c.columns.at(name);
    ++dense;
    for (size_t i = 0; i < sums.size(); ++i) expect_near(got.sums[i], sums[i]);
  }
  EXPECT_GT(dense, 5u);
}

TEST_P(Calibrate, SameBitsHoweverItRuns) {
  const Calibration expected = run({}, {.importance = true});
  for (const Setting& setting :
       {Setting{.at_once = 3}, Setting{.at_once = 7, .threads = 2},
        Setting{.at_once = 2, .slots = 6}, Setting{.slots = 6, .threads = 3}}) {
    expect_same(run(setting, {.importance = true}), expected);
  }
}

TEST_P(Calibrate, ShardsMergeToTheWhole) {
  const Calibration whole = run({}, {.importance = true});
  Calibration all = run({.at_once = 2}, {.importance = true, .shard = 2, .n_shards = 3});
  for (const uint32_t shard : {0u, 1u}) {
    // Through files, as other machines would send them.
    write_calibration(file("part"), run({}, {.importance = true, .shard = shard, .n_shards = 3}));
    merge(all, read_calibration(file("part")), "part");
  }
  expect_same(all, whole);
  EXPECT_TRUE(all.complete());
  EXPECT_EQ(all.shards, whole.shards);
  EXPECT_THROW(merge(all, read_calibration(file("part")), "part"), Error);  // seen twice
}

TEST_P(Calibrate, GoesOnFromItsCheckpoint) {
  const Calibration whole = run({}, {.importance = true});
  const std::string checkpoint = file("checkpoint");
  const Calibration part = run({.at_once = 2}, {.importance = true, .checkpoint = checkpoint}, 2);
  EXPECT_EQ(part.windows(), 4u);
  EXPECT_FALSE(part.complete());
  expect_same(run({}, {.importance = true, .checkpoint = checkpoint}), whole);
  // Of something else it is refused, unless a fresh start is asked for.
  EXPECT_THROW(run({}, {.importance = false, .checkpoint = checkpoint}), Error);
  EXPECT_EQ(run({}, {.importance = false, .checkpoint = checkpoint, .restart = true}).windows(),
            7u);
}

// Between layers: what the group has added until then is dropped.
TEST_P(Calibrate, StopsWithinAGroup) {
  for (const bool importance : {false, true}) {
    const Calibration whole = run({}, {.importance = importance});
    const std::string checkpoint = file(importance ? "with" : "without");
    const CalibrateOptions options = {.importance = importance, .checkpoint = checkpoint};
    const auto interrupted = [&](int layers_of_the_third) {
      const auto runtime = open_windows(path_, {.at_once = 2});
      int groups = 0, asked = 0;
      return calibrate(
          *runtime, corpus(), options, [&](const CalibrateProgress&) { ++groups; },
          [&] { return groups >= 2 && ++asked > layers_of_the_third; });
    };
    const Calibration part = interrupted(2);
    EXPECT_EQ(part.windows(), importance ? 0u : 4u);
    EXPECT_EQ(std::filesystem::exists(checkpoint), !importance);
    if (!importance) expect_same(read_calibration(checkpoint), part);
    expect_same(run({.at_once = 3}, options), whole);
    // With a checkpoint: what it holds stays.
    run({.at_once = 2}, {.importance = importance, .checkpoint = checkpoint, .restart = true}, 1);
    EXPECT_EQ(interrupted(2).windows(), importance ? 2u : 6u);
    expect_same(run({}, options), whole);
  }
}

TEST_P(Calibrate, FileKeepsEverything) {
  const Calibration c = run({}, {.importance = true});
  write_calibration(file("stats"), c);
  const Calibration back = read_calibration(file("stats"));
  expect_same(back, c);
  EXPECT_EQ(back.model_id, c.model_id);
  EXPECT_EQ(back.corpus_id, c.corpus_id);
  EXPECT_EQ(back.shards, c.shards);
  const gguf::Model model = gguf::Model::open(path_);
  check_stats(back.stats(), "stats", model);
  penstock::testing::TinyOptions other;
  other.n_expert = 16;
  const gguf::Model stranger = gguf::Model::open(
      penstock::testing::write_tiny(folder_.path(), GetParam(), other, "other.gguf"));
  EXPECT_THROW(check_stats(back.stats(), "stats", stranger), Error);

  // As importance matrix: by expert, gate and up alike, in llama.cpp's terms.
  const Imatrix imatrix = c.importance();
  write_imatrix(file("imatrix"), imatrix);
  const Imatrix read = read_imatrix(file("imatrix"));
  ASSERT_EQ(read.tensors.size(), imatrix.tensors.size());
  const int layer = c.even.front().layer;
  const std::string bank = fmt::format("blk.{}.ffn_", layer);
  const Importance* down = read.find(bank + "down_exps.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->sums, imatrix.find(bank + "down_exps.weight")->sums);
  EXPECT_EQ(down->n_mat(), c.even.front().experts.size());
  if (const Importance* gate = read.find(bank + "gate_exps.weight")) {
    const Importance* up = read.find(bank + "up_exps.weight");
    ASSERT_NE(up, nullptr);
    EXPECT_EQ(up->sums, gate->sums);
  }
  std::vector<float> mean(static_cast<size_t>(down->n_in));
  ASSERT_TRUE(Imatrix::mean_squares(*down, 0, mean));
  for (const float value : mean) EXPECT_GE(value, 0);
}

TEST_P(Calibrate, LeavesTheBosOut) {
  const Calibration c = run({.at_once = 2}, {}, 100, 3);
  EXPECT_EQ(c.tokens, 7u * (kWindow - 1));
  uint64_t uses = 0;
  const ExpertStats stats = c.stats();
  for (const ExpertSums& e : stats.layers.front().experts) uses += e.n;
  EXPECT_EQ(uses, c.tokens * static_cast<uint64_t>(c.even.front().n_used));
}

std::string numeric_error(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Numeric);
    return error.what();
  }
  return "(none)";
}

void expect_all(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
  }
}

// A row of the embedding that is no number: whoever meets it first, router, sums or an expert's
// output, says in which window and at which position.
TEST_P(Calibrate, NamesWhereAValueIsNoNumber) {
  const std::string path =
      penstock::testing::write_tiny(folder_.path(), GetParam(), {}, "nan.gguf");
  uint64_t at = 0;
  {
    const gguf::Model model = gguf::Model::open(path);
    const gguf::Tensor& embedding = model.require("token_embd.weight");
    ASSERT_EQ(embedding.type, gguf::TypeId::F32);
    at = embedding.offset + static_cast<uint64_t>(tokens_[2 * kWindow + 7]) * embedding.ne[0] * 4;
  }
  ASSERT_EQ(std::find(tokens_.begin(), tokens_.end(), tokens_[2 * kWindow + 7]),
            tokens_.begin() + 2 * kWindow + 7);
  const float nan = std::nanf("");
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(at))
      .write(reinterpret_cast<const char*>(&nan), sizeof nan);
  for (const bool importance : {false, true}) {
    for (const int at_once : {1, 4}) {
      const std::string message = numeric_error([&] {
        const auto runtime = open_windows(path, {.at_once = at_once});
        calibrate(
            *runtime, corpus(), {.importance = importance}, [](const auto&) {},
            [] { return false; });
      });
      expect_all(message, {"window 2, position 7", "layer 0"});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Calibrate,
                         ::testing::Values("qwen4exp", "qwen3moe", "qwen35moe", "qwen3next"));

// Two windows of three tokens; layer 3 has four experts, two for a token: row r uses r % 4 and the
// next one. All that they show is 1.
struct TwoWindows {
  static constexpr int64_t kRows = 6, kUsed = 2, kExperts = 4, kWidth = 8;
  experts::Geometry geometry;
  Calibration calibration;
  std::vector<float> logits, x, hidden, out, weights;
  std::vector<int32_t> ids;
  ThreadPool pool{2};

  TwoWindows()
      : logits(kRows * kExperts, 1),
        x(kRows * kWidth, 1),
        hidden(kRows * kUsed * kWidth, 1),
        out(kRows * kUsed * kWidth, 1),
        weights(kRows * kUsed, 0.5f) {
    experts::LayerGeometry layer;
    layer.layer = 3;
    layer.n_expert = kExperts;
    layer.n_used = kUsed;
    geometry.layers = {layer};
    for (int32_t row = 0; row < kRows; ++row) {
      ids.push_back(row % 4);
      ids.push_back((row + 1) % 4);
    }
  }

  std::string error(bool importance) {
    return numeric_error([&] {
      Collector collector(geometry, importance, &calibration);
      const Collector::Next next[] = {{4, 3}, {6, 3}};
      collector.begin(next, false);
      const auto rows = [](std::vector<float>& of, int64_t count) {
        const int64_t width = static_cast<int64_t>(of.size()) / count;
        return ops::Rows{of.data(), width, count, width};
      };
      const ops::Matrix query{
          .type = gguf::TypeId::F32, .n_in = kWidth, .n_out = 1, .name = "blk.3.attn_q.weight"};
      collector.product(query, rows(x, kRows));
      collector.experts({3, &geometry.layers[0], kUsed, rows(logits, kRows), rows(x, kRows), ids,
                         weights, rows(hidden, kRows * kUsed), rows(out, kRows * kUsed)},
                        pool);
    });
  }
};

TEST(CalibrateRefusals, NameLayerWindowPositionAndWhat) {
  EXPECT_EQ(TwoWindows().error(true), "(none)");
  TwoWindows input;
  input.x[2 * TwoWindows::kWidth + 3] = std::nanf("");
  expect_all(input.error(true), {"layer 3, window 4, position 2", "blk.3.attn_q.weight"});
  TwoWindows output;
  output.out[(4 * 2 + 1) * TwoWindows::kWidth] = std::nanf("");
  expect_all(output.error(false), {"layer 3, window 6, position 1", "the output of expert 1"});
  // Finite, but its square is more than a sum holds.
  TwoWindows large;
  large.out[(5 * 2) * TwoWindows::kWidth] = 1e12f;
  expect_all(large.error(false), {"layer 3, window 6, position 2", "expert 1"});
  TwoWindows hidden;
  hidden.hidden[(1 * 2 + 1) * TwoWindows::kWidth + 5] = 1e12f;
  expect_all(hidden.error(true), {"layer 3, window 4, position 1", "expert 2"});
  EXPECT_EQ(hidden.error(false), "(none)");
}

TEST(CalibrationFile, RefusesWhatIsNone) {
  const penstock::testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  EXPECT_THROW(read_calibration(path), Error);
  std::ofstream(path) << "nothing";
  EXPECT_THROW(read_calibration(path), Error);
  const std::string model = penstock::testing::write_tiny(folder.path(), "qwen3moe");
  EXPECT_THROW(read_calibration(model), Error);
  EXPECT_THROW(read_imatrix(model), Error);
}

TEST(ImatrixFile, RefusesDamage) {
  const penstock::testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/imatrix.gguf";
  const auto write = [&](const std::vector<float>& sums, bool counts, const char* type) {
    gguf::Writer writer(path);
    writer.set_string("general.type", type);
    const uint64_t dims[] = {sums.size(), 1}, one[] = {1, 1};
    writer.add_tensor("blk.0.a.weight.in_sum2", gguf::TypeId::F32, dims);
    if (counts) writer.add_tensor("blk.0.a.weight.counts", gguf::TypeId::F32, one);
    writer.begin();
    writer.append(std::as_bytes(std::span(sums)));
    const float n = 4;
    if (counts) writer.append(std::as_bytes(std::span(&n, 1)));
    writer.finish();
  };
  write({1, 2, 3}, true, "imatrix");
  EXPECT_EQ(read_imatrix(path).tensors.size(), 1u);
  write({1, 2, 3}, false, "imatrix");
  EXPECT_THROW(read_imatrix(path), Error);
  write({1, -2, 3}, true, "imatrix");
  EXPECT_THROW(read_imatrix(path), Error);
  write({1, std::nanf(""), 3}, true, "imatrix");
  EXPECT_THROW(read_imatrix(path), Error);
  write({1, 2, 3}, true, "model");
  EXPECT_THROW(read_imatrix(path), Error);
}

TEST(ImatrixMeans, AnExpertWithoutTokensGetsTheLayersMean) {
  Importance importance{2, {2, 4, 0, 0, 6, 0}, {2, 0, 1}};
  std::vector<float> mean(2);
  ASSERT_TRUE(Imatrix::mean_squares(importance, 0, mean));
  EXPECT_EQ(mean, (std::vector<float>{1, 2}));
  ASSERT_TRUE(Imatrix::mean_squares(importance, 1, mean));
  EXPECT_EQ(mean, (std::vector<float>{8.0f / 3, 4.0f / 3}));
  importance.counts = {0, 0, 0};
  EXPECT_FALSE(Imatrix::mean_squares(importance, 1, mean));
}

TEST(HalvesAgreement, IsTheMeanJaccardOfTheChosen) {
  Calibration c;
  const auto layer = [](std::vector<double> reap) {
    LayerStats stats;
    for (const double value : reap) {
      ExpertSums e;
      e.n = 1;
      e.ga.add(value);
      stats.experts.push_back(e);
    }
    return stats;
  };
  c.even = {layer({4, 3, 2, 1}), layer({4, 3, 2, 1})};
  c.odd = {layer({4, 3, 2, 1}), layer({1, 4, 3, 2})};
  // {0, 1} twice; {0, 1} against {1, 2}.
  EXPECT_DOUBLE_EQ(halves_agreement(c, 0.5), (1.0 + 1.0 / 3) / 2);
}

}  // namespace
}  // namespace penstock::surgery
