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
  for (const Evict evict : {Evict::Lfu, Evict::Lru, Evict::Profile}) {
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
        return std::make_tuple(evict != Evict::Lru ? frequency[{slot.layer, slot.expert}] : 0.0f,
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

TEST(Residency, CycleEvictsWhatTheTokenHasGoneBy) {
  Fixture f(Evict::Cycle, 6);
  Residency& r = *f.residency;
  for (int l = 0; l < 3; ++l) {
    for (int e = 0; e < 2; ++e) f.load(l, e, static_cast<uint64_t>(10 * l + e + 1));
  }
  const auto victim = [&](int position) {
    r.set_position(position);
    const Slot& s = r.slot(r.victim(0));
    return std::pair(s.layer, s.expert);
  };
  using At = std::pair<int32_t, int32_t>;
  EXPECT_EQ(victim(2), (At{0, 0}));  // the least recent of all three layers
  EXPECT_EQ(victim(0), (At{0, 0}));
  // Layer 0 is in use: what is still ahead, the last layer first.
  r.pin(r.find(0, 0));
  r.pin(r.find(0, 1));
  EXPECT_EQ(victim(0), (At{2, 0}));
  EXPECT_EQ(victim(1), (At{1, 0}));
  r.unpin(r.find(0, 0), 99);
  EXPECT_EQ(victim(0), (At{0, 0}));  // recent, but needed again in the next token only
  EXPECT_EQ(victim(1), (At{1, 0}));
}

TEST(Residency, APriorLeadsUntilTheCountsAreTrusted) {
  Fixture f(Evict::Profile, 2);
  Residency& r = *f.residency;
  std::vector<float> shares(24, 0.0f);
  shares[0] = 0.9f;  // expert 0 of layer 0
  shares[1] = 0.1f;
  r.set_prior(shares);
  const int32_t a = f.load(0, 0, 1);
  const int32_t b = f.load(0, 1, 2);
  for (int i = 0; i < 3; ++i) {
    r.pin(b);
    r.count_use(0, 1);
    r.unpin(b, 3);
  }
  r.age(1);
  // Counts 1 and 4, total 5: 0.2 * 1 + 0.8 * 4.5 against 0.2 * 4 + 0.8 * 0.5.
  EXPECT_EQ(r.victim(0), b);
  r.age(255);  // now the counts alone
  EXPECT_EQ(r.victim(0), a);
}

TEST(Residency, TheHotSetLeavesALayerAndMoreCold) {
  EXPECT_EQ(Residency::hot_cap(2728, 256), 2440u);  // the reference system's figure
  EXPECT_EQ(Residency::hot_cap(288, 256), 0u);
  EXPECT_EQ(Residency::hot_cap(100, 256), 0u);
}

TEST(Residency, HotExpertsGoLastAndNotForGuesses) {
  Fixture f(Evict::Lru, 60);
  f.geometry = geometry_of(10, 8, 2);
  f.shape = arena_shape(f.geometry, 512);
  f.shape.classes[0].slots = 60;
  f.shape.transit = 2;
  f.residency = std::make_unique<Residency>(f.geometry, f.shape, Evict::Lru);
  Residency& r = *f.residency;
  for (int i = 0; i < 60; ++i) f.load(i / 8, i % 8, static_cast<uint64_t>(i + 1));
  for (int e = 0; e < 8; ++e) {
    for (int n = 0; n < 5; ++n) r.count_use(0, e);  // the oldest ones are the most used
  }
  EXPECT_EQ(r.slot(r.victim(0)).layer, 0);
  r.choose_hot(1.0);
  EXPECT_EQ(r.n_hot(), 20u);  // 60 - (8 + 32)
  EXPECT_EQ(r.n_hot_resident(), 20u);
  for (int e = 0; e < 8; ++e) EXPECT_TRUE(r.is_hot(0, e));
  // Reads ahead take the 40 cold ones and no more; demand then takes a hot one.
  r.note_median();
  int32_t ahead = 0;
  int n_ahead = 0;
  for (int e = 0; e < 8; ++e) {
    if (r.find(8, e) != kNoSlot) continue;
    ahead = r.acquire_ahead(8, e, 100, 100);
    if (ahead == kNoSlot) break;
    EXPECT_FALSE(r.is_hot(0, r.slot(ahead).expert) && r.slot(ahead).layer == 0);
    ++n_ahead;
  }
  EXPECT_EQ(n_ahead, 8);
  EXPECT_EQ(r.evictions_hot(), 0u);
  std::vector<int32_t> pinned;
  for (int i = 0; i < 60; ++i) {
    const int32_t id = r.find(i / 8, i % 8);
    if (id == kNoSlot || r.is_hot(i / 8, i % 8)) continue;
    r.pin(id);
    pinned.push_back(id);
  }
  EXPECT_EQ(r.acquire_ahead(9, 0, 100, 100), kNoSlot);
  EXPECT_NE(r.acquire(9, 0, ReadReason::Demand, true), kNoSlot);
  EXPECT_EQ(r.evictions_hot(), 1u);
  EXPECT_EQ(r.n_hot(), 20u);
  EXPECT_EQ(r.n_hot_resident(), 19u);
  r.choose_hot(0.0);
  EXPECT_EQ(r.n_hot(), 0u);
  for (const int32_t id : pinned) r.unpin(id, 0);
}

TEST(Residency, RetiredSlotsAreGone) {
  Fixture f(Evict::Lfu, 6);
  Residency& r = *f.residency;
  for (int e = 0; e < 5; ++e) f.load(0, e, static_cast<uint64_t>(e + 1));
  r.retire(0, 3);  // slots 3 to 5: two experts and an empty one
  EXPECT_EQ(r.find(0, 3), kNoSlot);
  EXPECT_EQ(r.find(0, 4), kNoSlot);
  EXPECT_FALSE(ready(r, 0, 4));
  EXPECT_EQ(r.evictions(), 2u);
  for (int e = 0; e < 8; ++e) {
    if (r.find(1, e) != kNoSlot) continue;
    EXPECT_LT(f.load(1, e, 10), 3);
  }
  EXPECT_THROW(r.retire(0, 4), Error);
  r.pin(r.find(1, 7));
  EXPECT_THROW(r.retire(0, 3), Error);
}

// The short ways leave the same order of victims as the long ones.
TEST(Residency, UseAndCompleteUsedAreWhatTheyStandFor) {
  for (const Evict evict : {Evict::Lfu, Evict::Lru, Evict::Profile, Evict::Cycle}) {
    Fixture a(evict), b(evict);
    std::mt19937 random(7);
    for (uint64_t now = 1; now < 400; ++now) {
      const int layer = static_cast<int>(random() % 3);
      const int expert = static_cast<int>(random() % 8);
      for (Fixture* f : {&a, &b}) f->residency->set_position(layer);
      const int32_t slot = a.residency->find(layer, expert);
      ASSERT_EQ(slot, b.residency->find(layer, expert));
      if (slot != kNoSlot) {
        a.residency->pin(slot);
        a.residency->count_use(layer, expert);
        a.residency->unpin(slot, now);
        b.residency->use(slot, now);
      } else {
        const int32_t id = a.residency->acquire(layer, expert, ReadReason::Demand, true);
        ASSERT_EQ(id, b.residency->acquire(layer, expert, ReadReason::Demand, true));
        for (Fixture* f : {&a, &b}) f->residency->count_use(layer, expert);
        a.residency->complete(id, true);
        a.residency->pin(id);
        a.residency->unpin(id, now);
        b.residency->complete_used(id, now);
      }
      if (now % 50 == 0) {
        for (Fixture* f : {&a, &b}) f->residency->halve_frequencies();
      }
      ASSERT_EQ(a.residency->victim(0), b.residency->victim(0)) << evict_name(evict) << now;
    }
  }
}

TEST(Residency, AnEpochSeesWhatStayed) {
  Fixture f(Evict::Lfu, 2);
  Residency& r = *f.residency;
  f.load(0, 0, 1);
  EXPECT_EQ(r.epoch_bits(0)[0], 0u);
  r.begin_epoch();
  EXPECT_EQ(r.epoch_bits(0)[0], 1u);
  f.load(0, 1, 2);  // read during the epoch
  EXPECT_EQ(r.epoch_bits(0)[0], 1u);
  f.load(1, 5, 3);  // takes the slot of (0, 0)
  EXPECT_EQ(r.find(0, 0), kNoSlot);
  EXPECT_EQ(r.epoch_bits(0)[0], 0u);
  f.load(0, 0, 4);  // back, but only for the next epoch
  EXPECT_EQ(r.epoch_bits(0)[0], 0u);
  r.begin_epoch();
  EXPECT_TRUE(r.epoch_bits(0)[0] & 1);
}

}  // namespace
}  // namespace penstock::experts
