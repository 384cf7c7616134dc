#include "engine/speed.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "engine/calibrate_machine.h"
#include "models/tiny_models.h"

namespace penstock::engine {
namespace {

using testing::TinyOptions;

constexpr uint64_t kGiB = uint64_t{1} << 30;

class SpeedTest : public ::testing::Test {
 protected:
  OpenedModel open(std::optional<uint64_t> slots = std::nullopt) const {
    TinyOptions tiny;
    tiny.matrices = gguf::TypeId::Q8_0;
    RuntimeOptions options;
    options.model_path = testing::write_tiny(folder_.path(), "qwen3moe", tiny);
    options.threads = 1;
    options.n_ctx = 64;
    options.arena_slots = slots;
    options.stream.depth = 2;
    return open_model(options);
  }
  MachineFile machine() const { return MachineFile::read(folder_.path() + "/machine.json"); }
  MemoryPlan plan(const OpenedModel& opened) const {
    MemoryFacts facts;
    facts.total = facts.available = 8 * kGiB;
    return opened.plan(facts, 0);
  }

  testing::TemporaryFolder folder_;
};

TEST_F(SpeedTest, WithoutMeasurementsNothingIsSaid) {
  const OpenedModel opened = open();
  const SpeedFigures figures = speed_figures(opened, machine());
  EXPECT_FALSE(figures.disk);
  EXPECT_FALSE(figures.decode);
  EXPECT_EQ(figures.missing.size(), 2u);
  EXPECT_EQ(figures.layers.size(), opened.source.geometry.layers.size());
  const SpeedPrediction speed = predict_speed(figures, plan(opened), {{0.5, "given"}});
  EXPECT_TRUE(speed.rows.empty());
  EXPECT_FALSE(speed.prompt_cold);
}

TEST_F(SpeedTest, TheWorkOfATokenIsItsDenseMatricesAndTheExpertsUsed) {
  const OpenedModel opened = open();
  uint64_t dense = 0, experts = 0, expected_dense = 0, expected_experts = 0;
  for (const TypeWork& work : token_work(opened)) {
    dense += work.dense_bytes;
    experts += work.expert_bytes;
    EXPECT_GT(work.n_in, 0);
  }
  for (const gguf::Tensor& tensor : opened.file->tensors()) {
    if (tensor.n_dims == 2 && tensor.name != "token_embd.weight") expected_dense += tensor.bytes;
    // qwen3moe: banks of all experts, of which a share is used.
    if (gguf::is_expert_bank(tensor.name)) {
      const auto& layer = opened.source.geometry.layers.front();
      expected_experts += tensor.bytes / static_cast<uint64_t>(layer.n_expert) *
                          static_cast<uint64_t>(layer.n_used);
    }
  }
  EXPECT_EQ(dense, expected_dense);
  EXPECT_EQ(experts, expected_experts);
}

TEST_F(SpeedTest, AnUnmeasuredModelIsEstimatedFromTheKernels) {
  const OpenedModel opened = open();
  MachineFile file = machine();
  file.put(disk_key(opened), DiskFigures{1e9, 1e-4, 1, 10, 10, "reader", 50});
  double bytes = 0, expert_bytes = 0;
  int64_t time = 100;
  for (const TypeWork& work : token_work(opened)) {
    EXPECT_FALSE(speed_figures(opened, file).decode);  // until the last type is known
    file.put(compute_key(opened.options), KernelFigures{gguf::type_name(work.type), 1e9, time++});
    bytes += static_cast<double>(work.dense_bytes + work.expert_bytes);
    expert_bytes += static_cast<double>(work.expert_bytes);
  }
  const SpeedFigures figures = speed_figures(opened, file);
  ASSERT_TRUE(figures.decode);
  EXPECT_FALSE(figures.decode_measured);
  EXPECT_NEAR(figures.decode->token_s, bytes / 1e9, 1e-12);
  EXPECT_NEAR(figures.decode->experts_s, expert_bytes / 1e9, 1e-12);
  EXPECT_EQ(figures.compute_time, 100);
  EXPECT_TRUE(figures.missing.empty());

  // All experts have slots: one row. With fewer: the uniform rate first, then a range, and what
  // was given.
  const SpeedPrediction all = predict_speed(figures, plan(opened), {});
  ASSERT_EQ(all.rows.size(), 1u);
  EXPECT_EQ(all.rows[0].hits.rate, 1);
  EXPECT_FALSE(all.prompt_cold);  // prompts are not estimated
  const OpenedModel few = open(6);
  const SpeedPrediction some = predict_speed(figures, plan(few), {{0.6, "given"}});
  ASSERT_GT(some.rows.size(), 3u);
  EXPECT_EQ(some.rows[0].hits.rate,
            6.0 / static_cast<double>(plan(few).outcome.plan.shape.n_experts()));
  for (size_t i = 1; i < some.rows.size(); ++i) {
    EXPECT_GE(some.rows[i].hits.rate, some.rows[i - 1].hits.rate);
    EXPECT_LE(some.rows[i].decode.predicted_s, some.rows[i - 1].decode.predicted_s);
  }
  EXPECT_TRUE(std::any_of(some.rows.begin(), some.rows.end(),
                          [](const auto& row) { return row.hits.what == "given"; }));
}

TEST_F(SpeedTest, CalibrationFindsEveryFigure) {
  const OpenedModel opened = open();
  MachineFile file = machine();
  std::map<std::string, uint64_t> phases;
  calibrate_machine(opened, plan(opened), &file,
                    [&](std::string_view phase, uint64_t done, uint64_t total, const char*) {
                      EXPECT_LE(done, total) << phase;
                      phases[std::string(phase)] = done;
                    },
                    {});
  file.write();
  for (const char* phase : {"expert reads", "kernels", "decode", "prompt"}) {
    EXPECT_GT(phases[phase], 0u) << phase;
  }
  const SpeedFigures figures = speed_figures(opened, machine());
  EXPECT_TRUE(figures.missing.empty());
  ASSERT_TRUE(figures.disk);
  ASSERT_TRUE(figures.decode);
  EXPECT_TRUE(figures.decode_measured);
  EXPECT_GT(figures.decode->token_s, figures.decode->experts_s + figures.decode->shared_s);
  EXPECT_GT(figures.decode->experts_s, 0);
  EXPECT_GT(figures.prompt_token_s, 0);
  EXPECT_GT(figures.prompt_tokens, 0);
  EXPECT_TRUE(predict_speed(figures, plan(opened), {}).prompt_cold);
}

TEST_F(SpeedTest, WhatDoesNotFitIsNotRun) {
  const OpenedModel opened = open(1);
  MachineFile file = machine();
  const MemoryPlan refused = plan(opened);
  ASSERT_FALSE(refused.outcome.fits());
  const auto notes = calibrate_machine(opened, refused, &file, [](auto, auto, auto, auto) {}, {});
  ASSERT_FALSE(notes.empty());
  EXPECT_NE(notes.back().find("does not fit"), std::string::npos);
  EXPECT_NE(file.find(disk_key(opened)), nullptr);
  EXPECT_EQ(file.find_model(compute_key(opened.options), hex(opened.file->header_id())), nullptr);
}

TEST_F(SpeedTest, ItCanBeInterrupted) {
  const OpenedModel opened = open();
  MachineFile file = machine();
  try {
    calibrate_machine(
        opened, plan(opened), &file, [](auto, auto, auto, auto) {}, [] { return false; });
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Cancelled);
  }
}

}  // namespace
}  // namespace penstock::engine
