#include "experts/residency.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "base/error.h"

namespace penstock::experts {
namespace {

Geometry geometry_of(int n_layers, int n_expert, int n_used) {
  Geometry geometry;
  for (int l = 0; l < n_layers; ++l) {
    LayerGeometry layer;
    layer.layer = l;
    layer.n_expert = n_expert;
    layer.n_used = n_used;
    layer.gate.bytes = layer.up.bytes = layer.down.bytes = 4096;
    geometry.layers.push_back(layer);
  }
  return geometry;
}

struct Fixture {
  explicit Fixture(Evict evict, uint64_t slots = 6, uint64_t transit = 2)
      : geometry(geometry_of(3, 8, 2)), shape(arena_shape(geometry, 512)) {
    shape.classes[0].slots = slots;
    shape.transit = transit;
    residency = std::make_unique<Residency>(geometry, shape, evict);
  }
  int32_t load(int layer, int expert, uint64_t used_at) {
    const int32_t id = residency->acquire(layer, expert, ReadReason::Demand, true);
    residency->complete(id, true);
    residency->pin(id);
    residency->count_use(layer, expert);
    residency->unpin(id, used_at);
    return id;
  }
  Geometry geometry;
  ArenaShape shape;
  std::unique_ptr<Residency> residency;
};

bool ready(const Residency& r, int layer, int expert) {
  return (r.ready_bits(layer)[0] >> expert & 1) != 0;
}

TEST(Residency, ASlotGoesThroughItsStates) {
  Fixture f(Evict::Lfu);
  Residency& r = *f.residency;
  EXPECT_EQ(r.find(1, 3), kNoSlot);
  const int32_t id = r.acquire(1, 3, ReadReason::Demand, false);
  EXPECT_EQ(r.slot(id).state, SlotState::Reading);
  EXPECT_EQ(r.find(1, 3), id);
  EXPECT_FALSE(ready(r, 1, 3));
  const uint32_t gen = r.slot(id).gen;
  r.complete(id, true);
  EXPECT_EQ(r.slot(id).state, SlotState::Ready);
  EXPECT_TRUE(ready(r, 1, 3));
  for (int e = 0; e < 5; ++e) f.load(0, e, 5);
  EXPECT_EQ(r.victim(0), id);  // never used
  const int32_t next = r.acquire(2, 7, ReadReason::Demand, true);
  EXPECT_EQ(next, id);
  EXPECT_EQ(r.slot(id).gen, gen + 1);
  EXPECT_FALSE(ready(r, 1, 3));
  EXPECT_EQ(r.find(1, 3), kNoSlot);
  EXPECT_EQ(r.evictions(), 1u);
}

TEST(Residency, AFailedReadLeavesNothingBehind) {
  Fixture f(Evict::Lfu, 1);
  Residency& r = *f.residency;
  const int32_t id = r.acquire(0, 1, ReadReason::Demand, true);
  r.complete(id, false);
  EXPECT_EQ(r.slot(id).state, SlotState::Failed);
  EXPECT_EQ(r.find(0, 1), kNoSlot);
  EXPECT_FALSE(ready(r, 0, 1));
  EXPECT_EQ(r.acquire(0, 2, ReadReason::Demand, true), kNoSlot);
  r.recycle_failed();
  EXPECT_EQ(r.acquire(0, 2, ReadReason::Demand, true), id);
}

TEST(Residency, NeitherPinnedNorReadingSlotsAreVictims) {
  Fixture f(Evict::Lru, 2);
  Residency& r = *f.residency;
  const int32_t pinned = f.load(0, 0, 1);
  r.pin(pinned);
  const int32_t reading = r.acquire(0, 1, ReadReason::Demand, true);
  EXPECT_EQ(r.victim(0), kNoSlot);
  EXPECT_EQ(r.acquire(0, 2, ReadReason::Demand, true), kNoSlot);
  r.complete(reading, true);
  EXPECT_EQ(r.acquire(0, 2, ReadReason::Demand, true), reading);
  r.unpin(pinned, 9);
  EXPECT_EQ(r.victim(0), pinned);
}

TEST(Residency, MisuseIsAnError) {
  Fixture f(Evict::Lfu);
  Residency& r = *f.residency;
  const int32_t id = r.acquire(0, 1, ReadReason::Demand, true);
  EXPECT_THROW(r.acquire(0, 1, ReadReason::Demand, true), Error);
  EXPECT_THROW(r.pin(id), Error);
  r.complete(id, true);
  EXPECT_THROW(r.complete(id, true), Error);
  EXPECT_THROW(r.unpin(id, 1), Error);
}

TEST(Residency, TransitSlotsStayOutsideTheMap) {
  Fixture f(Evict::Lfu, 1, 2);
  Residency& r = *f.residency;
  const int32_t a = r.acquire_transit(0, 4);
  const int32_t b = r.acquire_transit(0, 5);
  EXPECT_TRUE(r.is_transit(a) && r.is_transit(b) && a != b);
  EXPECT_EQ(r.acquire_transit(0, 6), kNoSlot);
  r.complete(a, true);
  EXPECT_EQ(r.find(0, 4), kNoSlot);
  EXPECT_FALSE(ready(r, 0, 4));
  r.release_transit(a);
  EXPECT_EQ(r.acquire_transit(0, 6), a);
}

TEST(Residency, CountsSurviveEviction) {
  Fixture f(Evict::Lfu, 1);
  Residency& r = *f.residency;
  f.load(0, 0, 1);
  f.load(0, 1, 2);  // the only slot changes hands
  EXPECT_EQ(r.find(0, 0), kNoSlot);
  EXPECT_EQ(r.frequency(0, 0), 1.0f);
  f.load(0, 0, 3);
  EXPECT_EQ(r.frequency(0, 0), 2.0f);
  EXPECT_EQ(r.frequency(0, 1), 1.0f);
}

// The heap against a scan of all slots, under random work.
TEST(Residency, TheVictimIsTheOneAScanFinds) {
  for (const Evict evict : {Evict::Lfu, Evict::Lru}) {
    Fixture f(evict, 10);
    Residency& r = *f.residency;
    std::mt19937 random(11);
    std::map<std::pair<int, int>, float> frequency;
    uint64_t now = 0;
    for (int step = 0; step < 20000; ++step) {
      const int layer = static_cast<int>(random() % 3);
      const int expert = static_cast<int>(random() % 8 * (random() % 8) / 7);
      ++now;
      int32_t id = r.find(layer, expert);
      if (id == kNoSlot) {
        id = r.acquire(layer, expert, ReadReason::Demand, true);
        ASSERT_NE(id, kNoSlot);
        r.complete(id, true);
      }
      r.pin(id);
      r.count_use(layer, expert);
      frequency[{layer, expert}] += 1;
      r.unpin(id, now / 2);  // equal times occur
      if (step % 32 == 31) {
        r.halve_frequencies();
        for (auto& [key, value] : frequency) value *= 0.5f;
      }
      int32_t want = kNoSlot;
      const auto score = [&](int32_t s) {
        const Slot& slot = r.slot(s);
        return std::make_tuple(evict == Evict::Lfu ? frequency[{slot.layer, slot.expert}] : 0.0f,
                               slot.last_use, slot.layer, slot.expert);
      };
      for (int32_t s = 0; s < 10; ++s) {
        if (r.slot(s).state != SlotState::Ready) continue;
        if (want == kNoSlot || score(s) < score(want)) want = s;
      }
      ASSERT_EQ(r.victim(0), want) << step;
      ASSERT_EQ(r.frequency(layer, expert), (frequency[{layer, expert}]));
    }
    EXPECT_GT(r.evictions(), 100u);
  }
}

TEST(Residency, AgeingLetsANewFavouriteWin) {
  Fixture f(Evict::Lfu, 2);
  Residency& r = *f.residency;
  for (int i = 0; i < 64; ++i) r.count_use(0, 0);
  const int32_t old = f.load(0, 0, 1);
  const int32_t fresh = f.load(0, 1, 2);
  for (int i = 0; i < 3; ++i) {
    r.pin(fresh);
    r.count_use(0, 1);
    r.unpin(fresh, 3);
  }
  EXPECT_EQ(r.victim(0), fresh);
  for (int i = 0; i < 5; ++i) r.halve_frequencies();  // 65 -> 2.03
  for (int i = 0; i < 3; ++i) {
    r.pin(fresh);
    r.count_use(0, 1);
    r.unpin(fresh, 4);
  }
  EXPECT_EQ(r.victim(0), old);
}

}  // namespace
}  // namespace penstock::experts
