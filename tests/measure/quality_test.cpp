// Runs that score a text, their base logits and keys, and the store of what was measured.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "engine/tiny_runtime.h"
#include "experts/profile.h"
#include "gguf/model.h"
#include "measure/base_logits.h"
#include "measure/evaluate.h"
#include "measure/quality_store.h"
#include "models/small_disk.h"

namespace penstock::measure {
namespace {

constexpr int64_t kWindow = 16;

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

TEST(BaseLogits, WithoutRoomTheyDoNotBegin) {
  const penstock::testing::TemporaryFolder folder;
  const penstock::testing::SmallDisk disk(folder.path(), "64k");
  if (!disk.mounted()) GTEST_SKIP() << "no file system can be mounted here: it takes root";
  BaseHeader header;
  header.n_vocab = 1000;
  header.window_tokens = 64;
  header.n_windows = 100;
  header.mode = "batch";
  const std::string path = folder.path() + "/base.logits";
  try {
    const BaseWriter writer(path, header, header.n_windows);
    ADD_FAILURE() << "it began";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Io);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("more bytes are needed, the disk has 65536"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  // What fits is written.
  header.n_windows = 0;
  EXPECT_NO_THROW(BaseWriter(path, header, 0));
}

}  // namespace
}  // namespace penstock::measure
