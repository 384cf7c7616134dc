#include "experts/predict.h"

#include <gtest/gtest.h>

#include "experts/record.h"

namespace penstock::experts {
namespace {

// Two layers of 8 experts, 2 used, 1 MB each; a disk of 1 GB/s: a read takes 1 ms and the latency.
std::vector<LayerLoad> layers() {
  return {{.n_expert = 8, .n_used = 2, .read_bytes = 1e6}, {8, 2, 1e6, 1}};
}
// 10 ms per token: 4 uses of 1 ms, 2 ms beside the routers, 4 ms of dense work.
constexpr DecodeCost kCompute = {.token_s = 10e-3, .experts_s = 4e-3, .shared_s = 2e-3};
constexpr DiskCost kDisk = {.bytes_per_s = 1e9, .latency_s = 0.5e-3};

TEST(Predict, WithoutMissesATokenTakesItsComputing) {
  const DecodePrediction p = predict_decode(layers(), kCompute, kDisk, 1.0);
  EXPECT_DOUBLE_EQ(p.misses, 0);
  EXPECT_DOUBLE_EQ(p.bytes, 0);
  EXPECT_DOUBLE_EQ(p.io_s, 0);
  EXPECT_NEAR(p.predicted_s, 10e-3, 1e-12);
  EXPECT_NEAR(p.overlap_s, 10e-3, 1e-12);
  EXPECT_NEAR(p.serial_s, 10e-3, 1e-12);
  EXPECT_NEAR(p.tokens_per_s(), 100, 1e-9);
}

TEST(Predict, AllMissesWaitBehindTheSharedWorkAlone) {
  // Per layer: max(1 ms shared, 0.5 + 2 ms of reading) + 2 ms of computing; and 4 ms dense.
  const DecodePrediction p = predict_decode(layers(), kCompute, kDisk, 0.0);
  EXPECT_DOUBLE_EQ(p.misses, 4);
  EXPECT_DOUBLE_EQ(p.bytes, 4e6);
  EXPECT_NEAR(p.io_s, 4e-3, 1e-12);
  EXPECT_NEAR(p.overlap_s, 10e-3, 1e-12);
  EXPECT_NEAR(p.serial_s, 14e-3, 1e-12);
  EXPECT_NEAR(p.predicted_s, 4e-3 + 2 * (2.5e-3 + 2e-3), 1e-12);
}

TEST(Predict, HalfOfTheUsesMiss) {
  // Two misses (1/4): 2.5 + 2. One (1/2): max(1 + 1, 0.5 + 1) + 1. None (1/4): 1 + 2.
  const double layer = 0.25 * 4.5e-3 + 0.5 * 3e-3 + 0.25 * 3e-3;
  const DecodePrediction p = predict_decode(layers(), kCompute, kDisk, 0.5);
  EXPECT_NEAR(p.predicted_s, 4e-3 + 2 * layer, 1e-12);
  EXPECT_DOUBLE_EQ(p.misses, 2);
}

TEST(Predict, ADiskSlowerThanTheComputingSetsThePace) {
  const DiskCost slow = {.bytes_per_s = 1e8, .latency_s = 0};
  const DecodePrediction p = predict_decode(layers(), kCompute, slow, 0.0);
  EXPECT_NEAR(p.io_s, 40e-3, 1e-12);
  EXPECT_NEAR(p.overlap_s, 40e-3, 1e-12);
  EXPECT_NEAR(p.serial_s, 50e-3, 1e-12);
  // The shared work alone hides: 4 dense + 40 of reading + 4 of the missed experts.
  EXPECT_NEAR(p.predicted_s, 48e-3, 1e-12);
}

TEST(Predict, ThePredictionLiesBetweenItsBounds) {
  const DiskCost disk = {.bytes_per_s = 3e8, .latency_s = 0};  // no latency above the serial sum
  for (int percent = 0; percent <= 100; percent += 5) {
    const DecodePrediction p = predict_decode(layers(), kCompute, disk, percent / 100.0);
    EXPECT_GE(p.predicted_s, p.overlap_s - 1e-12) << percent;
    EXPECT_LE(p.predicted_s, p.serial_s + 1e-12) << percent;
  }
  EXPECT_DOUBLE_EQ(predict_decode(layers(), kCompute, disk, 1.5).misses, 0);
  EXPECT_DOUBLE_EQ(predict_decode(layers(), kCompute, disk, -1).misses, 4);
}

TEST(Predict, LayersOfOtherSizesTakeTheirShare) {
  // The second layer's experts are three times as large and take three times as long.
  const std::vector<LayerLoad> mixed = {{4, 1, 1e6, 1}, {4, 1, 3e6, 3}};
  const DecodeCost compute = {.token_s = 4e-3, .experts_s = 4e-3, .shared_s = 0};
  const DiskCost disk = {.bytes_per_s = 1e9, .latency_s = 0};
  const DecodePrediction p = predict_decode(mixed, compute, disk, 0.0);
  EXPECT_NEAR(p.predicted_s, (1e-3 + 1e-3) + (3e-3 + 3e-3), 1e-12);
  EXPECT_DOUBLE_EQ(p.bytes, 4e6);
  EXPECT_NEAR(break_even_reads(mixed, compute, disk), 2, 1e-12);  // 4 ms at 1 GB/s: 4 MB of 2 MB
  EXPECT_EQ(break_even_reads({}, compute, disk), 0);
}

TEST(Predict, APromptReadsWhatItTouchesOncePerChunk) {
  const std::vector<LayerLoad> one = {{.n_expert = 4, .n_used = 1, .read_bytes = 1e6}};
  const DiskCost disk = {.bytes_per_s = 1e9, .latency_s = 0};
  // Chunks of 2: 4 * (1 - 0.75^2) = 1.75 experts each, the last of one token 1.
  const PromptPrediction p = predict_prompt(one, 1e-6, disk, 5, 2, 0);
  EXPECT_NEAR(p.bytes, 4.5e6, 1e-3);
  EXPECT_NEAR(p.io_s, 4.5e-3, 1e-12);
  EXPECT_NEAR(p.compute_s, 5e-6, 1e-12);
  EXPECT_NEAR(p.seconds, 4.5e-3, 1e-12);
  EXPECT_NEAR(p.tokens_per_s, 5 / 4.5e-3, 1e-6);
  EXPECT_NEAR(predict_prompt(one, 1e-6, disk, 5, 2, 0.5).bytes, 2.25e6, 1e-3);
  const PromptPrediction resident = predict_prompt(one, 1e-3, disk, 5, 2, 1);
  EXPECT_EQ(resident.io_s, 0);
  EXPECT_NEAR(resident.tokens_per_s, 1000, 1e-9);
}

TEST(Predict, AStaticArenaHoldsTheMostUsedOfEachSize) {
  const std::vector<LayerLoad> three = {{2, 1, 1e6, 1}, {2, 1, 1e6, 1}, {3, 1, 2e6, 2}};
  const std::vector<float> shares = {0.25f, 0.0625f, 0.125f, 0.0625f, 0.25f, 0.125f, 0.125f};
  ArenaShape shape;
  shape.classes = {{.slot_bytes = 1000000, .n_experts = 4, .cycle = 2, .max_used = 1, .slots = 2},
                   {.slot_bytes = 2000000, .n_experts = 3, .cycle = 1, .max_used = 1, .slots = 1}};
  shape.class_of = {0, 0, 1};
  EXPECT_DOUBLE_EQ(static_hit_rate(three, shares, shape), 0.25 + 0.125 + 0.25);
  shape.classes[0].slots = 100;
  shape.classes[1].slots = 3;
  EXPECT_DOUBLE_EQ(static_hit_rate(three, shares, shape), 1);
}

TEST(Predict, ReadsAreCountedAsTheyAreAskedFor) {
  Geometry geometry;
  LayerGeometry layer;
  layer.n_expert = 3;
  layer.n_used = 2;
  layer.gate.bytes = layer.up.bytes = layer.gate.stride = layer.up.stride = 1000;
  layer.down.bytes = layer.down.stride = 1024;
  layer.up.offset = 4096;
  layer.down.offset = 8192;
  geometry.layers.push_back(layer);
  const std::vector<LayerLoad> exact = layer_loads(geometry, 1);
  ASSERT_EQ(exact.size(), 1u);
  EXPECT_EQ(exact[0].n_expert, 3);
  EXPECT_EQ(exact[0].n_used, 2);
  EXPECT_DOUBLE_EQ(exact[0].read_bytes, 3024);
  EXPECT_DOUBLE_EQ(exact[0].work, 3024);
  // Gate and up of expert 0 lie in 1024 bytes, of 1 in 1536 (from 512 to 2048), of 2 in 1536 (from
  // 1536 to 3072); down always in 1024.
  EXPECT_DOUBLE_EQ(layer_loads(geometry, 512)[0].read_bytes,
                   (2 * (1024 + 1536 + 1536) + 3 * 1024) / 3.0);
}

}  // namespace
}  // namespace penstock::experts
