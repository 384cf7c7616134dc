#include "measure/sim_clairvoyant.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace penstock::measure {
namespace {

std::vector<uint32_t> layer_bases(const TraceModel& model) {
  std::vector<uint32_t> base = {0};
  for (const experts::LayerGeometry& layer : model.geometry.layers) {
    base.push_back(base.back() + static_cast<uint32_t>(layer.n_expert));
  }
  return base;
}

// What a layer with so many missing experts waits for, as Replay::compute() has it.
std::vector<std::vector<double>> stall_table(const TraceModel& model, const SimCost& cost) {
  double work = 0;
  for (size_t l = 0; l < model.read_bytes.size(); ++l) {
    work += model.read_bytes[l] * model.geometry.layers[l].n_used;
  }
  std::vector<std::vector<double>> table;
  for (size_t l = 0; l < model.read_bytes.size(); ++l) {
    const int k = model.geometry.layers[l].n_used;
    const double use_s = cost.compute.experts_s * model.read_bytes[l] / work;
    const double shared_s =
        cost.compute.shared_s / static_cast<double>(model.geometry.layers.size());
    std::vector<double>& row = table.emplace_back(1, 0.0);
    for (int m = 1; m <= k; ++m) {
      const double read_s = cost.disk.latency_s + m * model.read_bytes[l] / cost.disk.bytes_per_s;
      row.push_back(std::max(0.0, read_s - shared_s - (k - m) * use_s));
    }
  }
  return table;
}

}  // namespace

NextUses::NextUses(const TraceModel& model) {
  const std::vector<uint32_t> base = layer_bases(model);
  // Keys first, then backwards through them: each is replaced by what comes after it.
  struct Mark {
    uint32_t count;  // of keys
    bool prompt;
  };
  std::vector<Mark> marks;
  read_chunks(model.path, false, [&](const TraceChunk& chunk) {
    for (const TraceEvent& e : chunk.events) {
      if (e.kind == TraceEventKind::Decode) {
        const uint32_t n = e.rows * static_cast<uint32_t>(model.geometry.layers[e.index].n_used);
        for (uint32_t i = 0; i < n; ++i) uses_.push_back(base[e.index] + chunk.ids[e.at + i]);
        marks.push_back({n, false});
      } else if (e.kind == TraceEventKind::Prompt) {
        const size_t before = prompts_.size();
        for (int i = 0; i < model.geometry.layers[e.index].n_expert; ++i) {
          if (chunk.uses[e.at + static_cast<size_t>(i)] != 0) {
            prompts_.push_back(base[e.index] + static_cast<uint32_t>(i));
          }
        }
        marks.push_back({static_cast<uint32_t>(prompts_.size() - before), true});
      }
    }
  });
  if (marks.size() >= kNever) {
    fail(ErrorKind::Unsupported, "{} is too long for the clairvoyant policies", model.path);
  }
  first_.assign(base.back(), kNever);
  auto time = static_cast<uint32_t>(
      std::count_if(marks.begin(), marks.end(), [](const Mark& m) { return !m.prompt; }));
  size_t use = uses_.size();
  size_t touched = prompts_.size();
  std::vector<uint32_t> keys;
  for (size_t i = marks.size(); i-- > 0;) {
    if (marks[i].prompt) {
      for (uint32_t k = 0; k < marks[i].count; ++k) {
        --touched;
        prompts_[touched] = first_[prompts_[touched]];
      }
      continue;
    }
    use -= marks[i].count;
    keys.assign(uses_.begin() + static_cast<std::ptrdiff_t>(use),
                uses_.begin() + static_cast<std::ptrdiff_t>(use + marks[i].count));
    for (uint32_t k = 0; k < marks[i].count; ++k) uses_[use + k] = first_[keys[k]];
    for (const uint32_t key : keys) first_[key] = time;
    --time;
  }
}

ClairvoyantReplay::ClairvoyantReplay(const TraceModel& model, const experts::ArenaShape& shape,
                                     bool admits, bool warm, const NextUses& next,
                                     const SimCost* cost)
    : model_(model),
      admits_(admits),
      uses_(next),
      class_of_(shape.class_of),
      base_(layer_bases(model)),
      reads_(model.geometry.layers.size(), 0) {
  const size_t keys = base_.back();
  resident_.assign(keys, 0);
  next_.assign(keys, NextUses::kNever);
  seen_.assign(keys, 0);
  for (const experts::SlotClass& c : shape.classes)
    pools_.push_back({.slots = c.slots, .heap = {}});
  if (cost != nullptr) stall_s_ = stall_table(model, *cost);
  if (!warm) return;
  std::vector<std::pair<uint32_t, uint32_t>> order;  // first use, key
  for (size_t l = 0; l + 1 < base_.size(); ++l) {
    for (uint32_t key = base_[l]; key < base_[l + 1]; ++key) {
      if (next.first(key) != NextUses::kNever) order.emplace_back(next.first(key), key);
    }
  }
  std::sort(order.begin(), order.end());
  for (const auto& [time, key] : order) {
    const auto after = std::upper_bound(base_.begin(), base_.end(), key);
    Pool& pool = pools_[class_of_[static_cast<size_t>(after - base_.begin()) - 1]];
    if (pool.used == pool.slots) continue;
    place(pool, key, time);
    ++counts_.fill_reads;
  }
}

void ClairvoyantReplay::run(const TraceChunk& chunk) {
  for (const TraceEvent& event : chunk.events) {
    switch (event.kind) {
      case TraceEventKind::Decode:
        decode(event, chunk);
        break;
      case TraceEventKind::Predicted:
        break;
      case TraceEventKind::Prompt:
        prompt(event, chunk);
        break;
      case TraceEventKind::StepEnd:
        step_end(static_cast<int>(event.rows));
        break;
      case TraceEventKind::TurnEnd:
        ++counts_.turns;
        turn_tokens_ = 0;
        break;
    }
  }
}

void ClairvoyantReplay::place(Pool& pool, uint32_t key, uint32_t next) {
  if (!resident_[key]) ++pool.used;
  resident_[key] = 1;
  next_[key] = next;
  if (pool.heap.size() > 2 * pool.slots + 64) drop_stale(pool);
  pool.heap.push_back({next, key});
  std::push_heap(pool.heap.begin(), pool.heap.end());
}

void ClairvoyantReplay::drop_stale(Pool& pool) {
  std::erase_if(pool.heap, [&](const Entry& entry) { return is_stale(entry); });
  std::make_heap(pool.heap.begin(), pool.heap.end());
}

// Into an empty slot, or that of what is used later than this; with `must`, of whatever is used
// last but for what the same event selected.
void ClairvoyantReplay::insert(Pool& pool, uint32_t key, uint32_t next, bool must) {
  if (pool.used < pool.slots) return place(pool, key, next);
  aside_.clear();
  while (!pool.heap.empty()) {
    const Entry top = pool.heap.front();
    const bool stale = is_stale(top);
    if (!stale && !must && top.next <= next) break;
    std::pop_heap(pool.heap.begin(), pool.heap.end());
    pool.heap.pop_back();
    if (stale) continue;
    if (must && seen_[top.key] == event_) {
      aside_.push_back(top);
      continue;
    }
    resident_[top.key] = 0;
    --pool.used;
    ++counts_.evict_total;
    place(pool, key, next);
    break;
  }
  for (const Entry& entry : aside_) {
    pool.heap.push_back(entry);
    std::push_heap(pool.heap.begin(), pool.heap.end());
  }
}

void ClairvoyantReplay::decode(const TraceEvent& event, const TraceChunk& chunk) {
  const size_t l = event.index;
  if (l == 0 && begun_) step_ = {};  // the step before was given up half-way
  if (l == 0) begun_ = true;
  ++event_;
  Pool& pool = pools_[class_of_[l]];
  const uint32_t n = event.rows * static_cast<uint32_t>(model_.geometry.layers[l].n_used);
  const uint16_t* const ids = chunk.ids.data() + event.at;
  // What is there first: its next use is the one after this.
  uint32_t missing = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t key = base_[l] + ids[i];
    const bool first = std::exchange(seen_[key], event_) != event_;
    if (resident_[key]) {
      ++step_.arena;
      if (first) place(pool, key, uses_.of_use(use_ + i));
    } else if (first) {
      ++step_.miss_issued;
      ++missing;
    } else {
      ++step_.miss_joined;
    }
  }
  if (missing != 0) {
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t key = base_[l] + ids[i];
      if (!resident_[key]) insert(pool, key, uses_.of_use(use_ + i), admits_);
    }
    reads_[l] += missing;
    counts_.demand_reads += missing;
    if (!stall_s_.empty()) {
      const std::vector<double>& row = stall_s_[l];
      counts_.stall_s += row[std::min<size_t>(missing, row.size() - 1)];
    }
  }
  use_ += n;
}

// A prompt reads what it touches whatever is kept: keeping costs nothing.
void ClairvoyantReplay::prompt(const TraceEvent& event, const TraceChunk& chunk) {
  const size_t l = event.index;
  Pool& pool = pools_[class_of_[l]];
  for (int e = 0; e < model_.geometry.layers[l].n_expert; ++e) {
    if (chunk.uses[event.at + static_cast<size_t>(e)] == 0) continue;
    const uint32_t next = uses_.of_prompt(touched_++);
    const uint32_t key = base_[l] + static_cast<uint32_t>(e);
    ++counts_.prompt_experts_touched;
    if (resident_[key]) {
      ++counts_.prompt_arena_used;
    } else {
      ++counts_.prompt_reads;
      if (next != NextUses::kNever) insert(pool, key, next, false);
    }
  }
}

void ClairvoyantReplay::step_end(int rows) {
  (counts_.steps == 0 ? counts_.first : counts_.steady) += step_;
  counts_.uses_expected += step_.total();
  ++counts_.steps;
  counts_.tokens += static_cast<uint64_t>(rows);
  if (turn_tokens_ < kTurnStart) {
    counts_.turn_start_tokens += static_cast<uint64_t>(rows);
    counts_.turn_start_misses += step_.miss_issued + step_.miss_joined;
  }
  turn_tokens_ += static_cast<uint64_t>(rows);
  step_ = {};
  begun_ = false;
}

SimCounts ClairvoyantReplay::counts() const {
  SimCounts out = counts_;
  for (size_t l = 0; l < reads_.size() && !model_.read_bytes.empty(); ++l) {
    out.decode_bytes += static_cast<double>(reads_[l]) * model_.read_bytes[l];
  }
  return out;
}

}  // namespace penstock::measure
