#include "experts/plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "experts/record.h"

namespace penstock::experts {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

LayerGeometry layer_of(int n_expert, int n_used, uint64_t gate, uint64_t down) {
  LayerGeometry layer;
  layer.n_expert = n_expert;
  layer.n_used = n_used;
  layer.gate.bytes = layer.up.bytes = layer.gate.stride = layer.up.stride = gate;
  layer.down.bytes = layer.down.stride = down;
  return layer;
}

// 12 layers of 64 experts, 4 used, 1 MiB in three matrices; a class of its own for `odd` layers.
Geometry model(int odd = 0) {
  Geometry geometry;
  for (int l = 0; l < 12; ++l) {
    geometry.layers.push_back(layer_of(64, 4, 344064, l < odd ? 688128 : 344064));
  }
  return geometry;
}

PlanRequest request_for(const Geometry& geometry) {
  PlanRequest request;
  request.terms.dense = 1000 * kMiB;
  request.terms.kv = 256 * kMiB;
  request.terms.state = 10 * kMiB;
  request.terms.scratch_decode = 4 * kMiB;
  request.terms.scratch_prompt = 128 * kMiB;
  request.terms.logits = kMiB;
  request.terms.io = kMiB;
  request.terms.tables = 8 * kMiB;
  request.terms.threads = kMiB;
  request.terms.ple = 4 * kMiB;
  request.shape = arena_shape(geometry, 512);
  request.machine.total = 24 * kGiB;
  request.machine.available = 20 * kGiB;
  request.ctx = 4096;
  request.kv_per_position = 65536;
  request.prompt_chunk = 512;
  request.scratch_per_token = 256 * 1024;
  return request;
}

constexpr uint64_t kOthers = (1000 + 256 + 10 + 4 + 128 + 1 + 1 + 8 + 1 + 4) * kMiB;

std::string refusal(const PlanRequest& request) {
  try {
    make_plan(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Plan);
    return error.what();
  }
  ADD_FAILURE() << "the plan was accepted";
  return "";
}

void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
  }
}

TEST(Shape, SlotsFollowTheSizesOfTheLayers) {
  const ArenaShape shape = arena_shape(model(3), 512);
  ASSERT_EQ(shape.classes.size(), 2u);
  EXPECT_EQ(shape.class_of[0], 0u);
  EXPECT_EQ(shape.class_of[11], 1u);
  EXPECT_EQ(shape.classes[0].n_experts, 3u * 64);
  EXPECT_EQ(shape.classes[1].n_experts, 9u * 64);
  EXPECT_EQ(shape.classes[1].cycle, 9u * 4);
  // Each of three parts: its bytes, already a multiple of 512, and 512 more; whole pages in all.
  EXPECT_EQ(shape.classes[1].slot_bytes, (3 * (344064 + 512) + 4095) / 4096 * 4096u);
  EXPECT_EQ(shape.cycle(), 48u);
  EXPECT_EQ(shape.largest_slot(), shape.classes[0].slot_bytes);
}

TEST(Shape, EveryExpertFitsItsSlotAtEveryAlignment) {
  for (const uint32_t alignment : {1u, 512u, 4096u}) {
    for (const bool merged : {false, true}) {
      LayerGeometry layer = layer_of(7, 2, 12345, 6789);
      layer.merged = merged;
      layer.gate.offset = 100000;
      layer.up.offset = 100000 + 12345;
      layer.down.offset = 777777;
      if (merged) layer.gate.stride = layer.up.stride = 2 * 12345;
      const RecordLayout layout = record_layout(layer, alignment);
      EXPECT_EQ(layout.n_parts, merged ? 2 : 3);
      EXPECT_EQ(layout.slot_bytes % 4096, 0u);
      for (int e = 0; e < 7; ++e) {
        uint64_t end = 0;
        for (int p = 0; p < layout.n_parts; ++p) {
          const PartRead read = part_read(layout, p, e);
          EXPECT_EQ(read.offset % alignment, 0u);
          EXPECT_EQ(read.bytes % alignment, 0u);
          EXPECT_EQ(read.at % alignment, 0u);
          EXPECT_GE(read.at, end);
          EXPECT_LE(read.needed, read.bytes);
          end = read.at + read.bytes;
        }
        EXPECT_LE(end, layout.slot_bytes);
        const std::byte* slot = nullptr;
        const ExpertData data = locate(layout, e, slot);
        const auto at = [&](const std::byte* matrix) {
          return static_cast<uint64_t>(matrix - slot);
        };
        const auto n = static_cast<uint64_t>(e);
        const PartRead gate = part_read(layout, 0, e);
        EXPECT_EQ(gate.offset + at(data.gate) - gate.at, 100000 + n * layer.gate.stride);
        const PartRead up = part_read(layout, merged ? 0 : 1, e);
        EXPECT_EQ(up.offset + at(data.up) - up.at, 100000 + 12345 + n * layer.up.stride);
        const PartRead down = part_read(layout, layout.n_parts - 1, e);
        EXPECT_EQ(down.offset + at(data.down) - down.at, 777777 + n * 6789);
        EXPECT_EQ(down.offset + down.needed, 777777 + (n + 1) * 6789);
      }
    }
  }
}

TEST(Shape, TheFloorIsALayerAndTheQueue) {
  EXPECT_EQ(hard_floor(arena_shape(model(), 512), 8), 4u + 8u);
  EXPECT_EQ(hard_floor(arena_shape(model(3), 512), 8), 2u * (4 + 8));
  Geometry tiny;
  tiny.layers.push_back(layer_of(6, 2, 4096, 4096));
  EXPECT_EQ(hard_floor(arena_shape(tiny, 512), 8), 6u);  // all there are
}

TEST(Shape, SlotsAreSharedInTokenCycles) {
  ArenaShape shape = arena_shape(model(3), 512);
  share_slots(shape, 240, 8, 16);
  EXPECT_EQ(shape.slots(), 240u);
  EXPECT_EQ(shape.classes[0].slots, 60u);  // cycles of 12 and 36
  EXPECT_EQ(shape.classes[1].slots, 180u);
  EXPECT_EQ(shape.transit, 16u);
  for (const uint64_t n : {24u, 25u, 31u, 100u, 700u, 767u}) {
    share_slots(shape, n, 8, 16);
    EXPECT_EQ(shape.slots(), n);
    EXPECT_GE(shape.classes[0].slots, 12u);
    EXPECT_GE(shape.classes[1].slots, 12u);
    EXPECT_LE(shape.classes[0].slots, 192u);
    EXPECT_LE(shape.classes[1].slots, 576u);
    EXPECT_FALSE(shape.holds_all());
  }
  share_slots(shape, 5000, 8, 16);
  EXPECT_TRUE(shape.holds_all());
  EXPECT_EQ(shape.transit, 0u);
}

TEST(Shape, BytesAreSharedWithoutWaste) {
  ArenaShape shape = arena_shape(model(3), 512);
  const uint64_t least = shape.classes[1].slot_bytes;
  for (const uint64_t bytes : {100 * kMiB, 333 * kMiB, 777 * kMiB}) {
    EXPECT_TRUE(share_bytes(shape, bytes, 8, 16));
    EXPECT_LE(shape.arena_bytes(), bytes);
    EXPECT_GT(shape.arena_bytes() + least, bytes);
  }
  EXPECT_FALSE(share_bytes(shape, 10 * kMiB, 8, 16));
  EXPECT_EQ(shape.slots(), 24u);
  EXPECT_TRUE(share_bytes(shape, 100 * kGiB, 8, 16));
  EXPECT_TRUE(shape.holds_all());
}

TEST(Plan, TermsAddUpUnderAMemoryLimit) {
  PlanRequest request = request_for(model());
  request.memory = 2 * kGiB;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.budget, 2 * kGiB);
  uint64_t sum = 0;
  for (const auto& [name, bytes] : plan.rows()) sum += bytes;
  EXPECT_EQ(sum, plan.peak_prefill);
  EXPECT_EQ(plan.peak_prefill, kOthers + plan.arena + plan.slack);
  EXPECT_EQ(plan.peak_prefill - plan.peak_decode, 128 * kMiB);
  EXPECT_EQ(plan.slack, (kOthers + plan.arena) / 50);
  EXPECT_LE(plan.peak_prefill, plan.budget);
  // One slot more, with its slack, would not fit.
  const uint64_t slot = plan.shape.classes[0].slot_bytes;
  EXPECT_GT(plan.peak_prefill + slot + slot / 50 + 1, plan.budget);
  EXPECT_EQ(plan.arena, (plan.slots() + 16) * slot);
  EXPECT_EQ(plan.shape.transit, 16u);
}

TEST(Plan, AutomaticMemoryLeavesFuseAndMargin) {
  PlanRequest request = request_for(model());
  request.machine.available = 5 * kGiB;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.fuse, 24 * kGiB / 10);
  EXPECT_EQ(plan.margin, 256 * kMiB);
  EXPECT_EQ(plan.budget, 5 * kGiB - plan.fuse - plan.margin);
  EXPECT_EQ(plan.available_source, "host (MemAvailable)");
  EXPECT_EQ(plan.slots(), 12u * 64);  // everything fits
  EXPECT_EQ(plan.shape.transit, 0u);
  request.machine.total = 4 * kGiB;
  EXPECT_EQ(make_plan(request).fuse, kGiB);
  // What is already taken counts as available.
  request.machine.available = 4 * kGiB;
  request.taken = kGiB;
  EXPECT_EQ(make_plan(request).budget, 5 * kGiB - kGiB - 256 * kMiB);
}

TEST(Plan, SlackHasItsFloors) {
  Geometry small;
  small.layers.push_back(layer_of(8, 2, 4096, 4096));
  PlanRequest request;
  request.shape = arena_shape(small, 512);
  request.machine.total = request.machine.available = 24 * kGiB;
  request.terms.dense = kMiB;
  EXPECT_EQ(make_plan(request).slack, 64 * kMiB);
  request.memory = kGiB;
  EXPECT_EQ(make_plan(request).slack, 4 * kMiB);
  request.memory.reset();
  request.arena_slots = 8;
  EXPECT_EQ(make_plan(request).slack, 4 * kMiB);
}

TEST(Plan, ACgroupBindsWithItsOwnFuse) {
  PlanRequest request = request_for(model());
  request.machine.cgroup_limit = 4 * kGiB;
  request.machine.cgroup_headroom = 3 * kGiB;
  request.machine.cgroup_path = "/sys/fs/cgroup/box";
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.available, 3 * kGiB);
  EXPECT_EQ(plan.available_source, "cgroup /sys/fs/cgroup/box");
  EXPECT_EQ(plan.fuse, 4 * kGiB / 20);
  EXPECT_EQ(plan.margin, 4 * kGiB / 50);
  EXPECT_LE(plan.peak_prefill, 3 * kGiB - plan.fuse - plan.margin);
  request.machine.cgroup_limit = 2 * kGiB;
  request.machine.cgroup_headroom = 2 * kGiB;
  EXPECT_EQ(make_plan(request).fuse, 128 * kMiB);
}

TEST(Plan, ExplicitSlotsAreTakenAsTheyAre) {
  PlanRequest request = request_for(model());
  request.arena_slots = 100;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.slots(), 100u);
  EXPECT_TRUE(plan.warnings.empty());
  request.arena_slots = 30;  // under the cycle of 48
  EXPECT_EQ(make_plan(request).warnings.size(), 1u);
  request.evict = Evict::Lru;
  ASSERT_EQ(make_plan(request).warnings.size(), 1u);
  expect_in(make_plan(request).warnings[0],
            {"30 slots", "48", "every use will miss", "--evict lfu"});
  request.evict = Evict::Lfu;
  request.arena_slots = 12;
  EXPECT_EQ(make_plan(request).slots(), 12u);
  request.arena_slots = 11;
  expect_in(refusal(request), {"--arena-slots 11", "at least 12", "dense", "arena"});
}

TEST(Plan, ARefusalNamesEverythingAndThreeWaysOut) {
  PlanRequest request = request_for(model());
  request.machine.available = 4 * kGiB;  // minus 2.4 GiB and 256 MiB: 1382.4 MiB
  const std::string text = refusal(request);
  const uint64_t slot = request.shape.classes[0].slot_bytes;
  const uint64_t arena = (48 + 16) * slot;
  const uint64_t slack = 64 * kMiB;
  const uint64_t budget = 4 * kGiB - 24 * kGiB / 10 - 256 * kMiB;
  const uint64_t shortfall = kOthers + arena + slack - budget;
  for (const uint64_t bytes : {1000 * kMiB, 256 * kMiB, 10 * kMiB, 4 * kMiB, 128 * kMiB, 8 * kMiB,
                               arena, slack, budget, 4 * kGiB, 24 * kGiB / 10, shortfall}) {
    expect_in(text, {std::to_string(bytes) + " B"});
  }
  for (const char* term : {"dense", "kv", "state", "scratch_decode", "scratch_prompt", "logits",
                           "io", "tables", "threads", "ple", "slack", "arena", "fuse"}) {
    expect_in(text, {term});
  }
  expect_in(text, {"1000.0 MiB", "host (MemAvailable)", "--ctx ", "--prompt-chunk ", "pruned"});
  // The first remedy, followed, is enough.
  const uint64_t positions = (shortfall + 65535) / 65536;
  expect_in(text, {"--ctx " + std::to_string(4096 - positions) + " instead of 4096"});
  request.terms.kv -= positions * 65536;
  EXPECT_EQ(make_plan(request).slots(), 48u);
  request.terms.kv += 65536;
  expect_in(refusal(request), {"short by"});
}

TEST(Plan, FewerSlotsThanATokenTouchesMustBeAskedForByNumber) {
  PlanRequest request = request_for(model());
  request.memory = memory_for_slots(request, 30);
  for (const Evict evict : {Evict::Lfu, Evict::Lru}) {
    request.evict = evict;
    expect_in(refusal(request), {"the smallest arena, 48 slots", "short by", "--memory ",
                                 "--arena-slots 30", "one token touches 48 experts"});
  }
  request.memory = memory_for_slots(request, 48);
  EXPECT_EQ(make_plan(request).slots(), 48u);
  EXPECT_TRUE(make_plan(request).warnings.empty());
  request.memory = memory_for_slots(request, 30);
  request.arena_slots = 30;
  EXPECT_EQ(make_plan(request).slots(), 30u);
  EXPECT_EQ(make_plan(request).warnings.size(), 1u);
}

TEST(Plan, RemediesFitTheSettings) {
  PlanRequest request = request_for(model());
  request.memory = 30 * kGiB;
  request.machine.available = 6 * kGiB;
  request.terms.dense = 5 * kGiB;
  expect_in(refusal(request), {"pruned"});  // no --memory helps
  request.terms.dense = 2600 * kMiB;
  expect_in(refusal(request), {"--memory 3430M, the most that is free"});
  request.memory = 3430 * kMiB;
  EXPECT_GE(make_plan(request).slots(), 48u);
  request = request_for(model());
  request.memory = kGiB;
  const std::string text = refusal(request);
  expect_in(text, {"or more"});
  const size_t at = text.find("--memory ", text.find("3. "));
  PlanRequest followed = request;
  followed.memory = std::stoull(text.substr(at + 9)) * kMiB;
  EXPECT_GE(make_plan(followed).slots(), 48u);

  request = request_for(model());
  request.machine.available = 4 * kGiB + 400 * kMiB;
  request.arena_slots = 700;
  const std::string fewer = refusal(request);
  const size_t slots = fewer.find("--arena-slots ", fewer.find("3. "));
  request.arena_slots = std::stoull(fewer.substr(slots + 14));
  EXPECT_EQ(make_plan(request).slots(), *request.arena_slots);
}

TEST(Plan, TheTableShowsWhatWasDecided) {
  PlanRequest request = request_for(model(3));
  request.arena_slots = 240;
  const std::string text = format_plan(make_plan(request));
  expect_in(text, {"dense", "1048576000 B", "1000.0 MiB", "peak, decode", "peak, prompt", "budget",
                   "available", "fuse", "60 of ", "180 of ", "240 slots, 5.00 token cycles of 48",
                   "16 transit"});
}

}  // namespace
}  // namespace penstock::experts
