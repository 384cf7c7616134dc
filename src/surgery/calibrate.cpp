#include "surgery/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/not_finite.h"
#include "experts/route.h"
#include "gguf/model.h"
#include "surgery/moe_layout.h"

namespace penstock::surgery {
namespace {

// ||x||_2 squared and the largest |x|; the sum runs in eight lanes, added in a fixed order.
double square_sum(const float* x, int64_t n, float* largest) noexcept {
  double lanes[8] = {};
  float most[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) {
      const double v = static_cast<double>(x[i + k]);
      lanes[k] += v * v;
      most[k] = std::max(most[k], std::abs(x[i + k]));
    }
  }
  for (; i < n; ++i) {
    lanes[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    most[0] = std::max(most[0], std::abs(x[i]));
  }
  *largest = *std::max_element(most, most + 8);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void add_squares(const float* x, double* sums, int64_t n) noexcept {
  for (int64_t i = 0; i < n; ++i) {
    sums[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
}

// The largest magnitude; infinite for what is no number.
float largest_of(const float* x, int64_t n) noexcept {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float v = std::abs(x[i]);
    if (!(v <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::infinity();
    most = std::max(most, v);
  }
  return most;
}

// One window's sums join those of all; false when one is not finite or too large.
bool join(std::vector<double>& sums, ExactSum* all) noexcept {
  bool fine = true;
  for (size_t i = 0; i < sums.size(); ++i) fine = all[i].add(sums[i]) && fine;
  std::fill(sums.begin(), sums.end(), 0.0);
  return fine;
}

std::vector<LayerStats> empty_layers(const experts::Geometry& geometry) {
  std::vector<LayerStats> layers;
  for (const experts::LayerGeometry& layer : geometry.layers) {
    layers.push_back(
        {layer.layer, layer.n_used, std::vector<ExpertSums>(static_cast<size_t>(layer.n_expert))});
  }
  return layers;
}

}  // namespace

Collector::Collector(const experts::Geometry& geometry, bool importance, Calibration* calibration,
                     std::function<bool()> stop)
    : calibration_(*calibration), importance_(importance), stop_(std::move(stop)) {
  if (calibration_.even.empty()) {
    calibration_.even = empty_layers(geometry);
    calibration_.odd = calibration_.even;
  }
  for (size_t i = 0; i < geometry.layers.size(); ++i) {
    const auto block = static_cast<size_t>(geometry.layers[i].layer);
    layer_of_block_.resize(std::max(layer_of_block_.size(), block + 1));
    layer_of_block_[block] = i;
  }
}

Collector::~Collector() = default;

uint64_t Collector::importance_bytes(const gguf::Model& model) {
  uint64_t columns = 0;
  for (const gguf::Tensor& tensor : model.tensors()) {
    // Of experts' gate and up one holds for both.
    if (tensor.n_dims < 2 || tensor.name.find("ffn_up_exps") != std::string::npos) continue;
    if (!tensor.name.starts_with("blk.")) continue;
    columns += tensor.ne[0] * (gguf::is_expert_bank(tensor.name) ? tensor.ne[2] : 1);
  }
  return columns * sizeof(ExactSum);
}

void Collector::begin(std::span<const Next> windows, bool skip_first) {
  groups_.clear();
  total_rows_ = 0;
  skip_first_ = skip_first;
  for (const Next& window : windows) {
    groups_.push_back({window.index, total_rows_, total_rows_ + window.rows});
    total_rows_ += window.rows;
    calibration_.tokens += static_cast<uint64_t>(window.rows - (skip_first ? 1 : 0));
  }
}

ColumnSums& Collector::columns(const std::string& name, int64_t n_in, int64_t n_mat) {
  ColumnSums& columns = calibration_.columns[name];
  if (columns.sums.empty()) {
    columns.n_in = static_cast<uint64_t>(n_in);
    columns.counts.resize(static_cast<size_t>(n_mat));
    columns.sums.resize(static_cast<size_t>(n_mat * n_in));
  }
  return columns;
}

void Collector::refuse(int block, const Group& group, int64_t row, std::string_view what) const {
  fail(ErrorKind::Numeric,
       "layer {}, window {}, position {}: {} is not finite or beyond what a sum can hold; the "
       "model's weights or the text's activations are damaged (--precision exact rules out "
       "rounding)",
       block, group.index, row - group.first, what);
}

void Collector::product(const ops::Matrix& matrix, const ops::Rows& input) {
  if (!importance_ || !matrix.name.starts_with("blk.")) return;
  ColumnSums& sums = columns(matrix.name, matrix.n_in, 1);
  std::vector<double> window(static_cast<size_t>(matrix.n_in));
  // Rows `first` to `end` of the input; null: of a group that is not known here.
  const auto add = [&](const Group* group, int64_t first, int64_t end) {
    const int64_t from = first + (skip_first_ ? 1 : 0);
    for (int64_t row = from; row < end; ++row) {
      add_squares(input[row], window.data(), matrix.n_in);
      ++sums.counts[0];
    }
    if (join(window, sums.sums.data())) return;
    if (group == nullptr) {
      fail(ErrorKind::Numeric, "{}: an input is not finite or too large for a sum", matrix.name);
    }
    int64_t worst = from;
    for (int64_t row = from; row < end; ++row) {
      if (largest_of(input[row], matrix.n_in) > largest_of(input[worst], matrix.n_in)) worst = row;
    }
    refuse(block_of(matrix.name), *group, worst, "an input of " + matrix.name);
  };
  // The rows of all windows, or those of one.
  if (input.count == total_rows_) {
    for (const Group& group : groups_) add(&group, group.first, group.end);
  } else {
    add(nullptr, 0, input.count);
  }
}

// Counting sort of the (row, rank) pairs that count, by expert; an expert's stay in order.
void Collector::sort_pairs(const models::ExpertsSeen& seen) {
  const auto n_expert = static_cast<size_t>(seen.bank->n_expert);
  const auto n_used = static_cast<size_t>(seen.n_used);
  starts_.assign(n_expert + 1, 0);
  sorted_.resize(seen.ids.size());
  const auto each = [&](auto visit) {
    for (const Group& group : groups_) {
      const auto first = static_cast<size_t>(group.first + (skip_first_ ? 1 : 0));
      for (size_t pair = first * n_used; pair < static_cast<size_t>(group.end) * n_used; ++pair) {
        visit(pair);
      }
    }
  };
  each([&](size_t pair) { ++starts_[static_cast<size_t>(seen.ids[pair]) + 1]; });
  std::partial_sum(starts_.begin(), starts_.end(), starts_.begin());
  std::vector<int32_t> next(starts_.begin(), starts_.end() - 1);
  each([&](size_t pair) {
    sorted_[static_cast<size_t>(next[static_cast<size_t>(seen.ids[pair])]++)] =
        static_cast<int32_t>(pair);
  });
}

// The router's mass: p of every expert at every token.
void Collector::add_scores(const models::ExpertsSeen& seen, ThreadPool& pool, size_t layer) {
  const auto n_expert = static_cast<int64_t>(seen.bank->n_expert);
  probabilities_.resize(static_cast<size_t>(total_rows_ * n_expert));
  ops::for_ranges(pool, total_rows_, 8 * n_expert, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      // The stream has refused logits that give none.
      experts::route_probabilities({seen.logits[row], static_cast<size_t>(n_expert)},
                                   probabilities_.data() + row * n_expert);
    }
  });
  constexpr int64_t kExperts = 64;  // of a task
  const int64_t n_tasks = (n_expert + kExperts - 1) / kExperts;
  pool.parallel_for(n_tasks, [&](int64_t task, int) {
    const int64_t first = task * kExperts, n = std::min(kExperts, n_expert - first);
    for (const Group& group : groups_) {
      double mass[kExperts] = {};
      for (int64_t row = group.first + (skip_first_ ? 1 : 0); row < group.end; ++row) {
        const float* p = probabilities_.data() + row * n_expert + first;
        for (int64_t e = 0; e < n; ++e) mass[e] += static_cast<double>(p[e]);
      }
      LayerStats& stats = (group.index % 2 == 0 ? calibration_.even : calibration_.odd)[layer];
      for (int64_t e = 0; e < n; ++e) {
        stats.experts[static_cast<size_t>(first + e)].p.add(mass[e]);  // at most the rows
      }
    }
  });
}

// What an expert did with each token routed to it, window by window.
void Collector::add_pairs(const models::ExpertsSeen& seen, ThreadPool& pool, size_t layer) {
  const int64_t n_used = seen.n_used, n_expert = seen.bank->n_expert;
  const int64_t n_in = seen.x.width, n_ff = seen.hidden.width;
  ColumnSums* x_sums = nullptr;
  ColumnSums* hidden_sums = nullptr;
  if (importance_) {
    const std::string prefix = fmt::format("blk.{}.", seen.block);
    const char* gate = seen.bank->merged ? "ffn_gate_up_exps.weight" : "ffn_gate_exps.weight";
    x_sums = &columns(prefix + gate, n_in, n_expert);
    hidden_sums = &columns(prefix + "ffn_down_exps.weight", n_ff, n_expert);
  }
  // By expert: the first window that went beyond what its sums hold.
  std::vector<const Group*> beyond(static_cast<size_t>(n_expert), nullptr);
  pool.parallel_for(n_expert, [&](int64_t expert, int) {
    const auto e = static_cast<size_t>(expert);
    std::vector<double> x_window(importance_ ? static_cast<size_t>(n_in) : 0);
    std::vector<double> hidden_window(importance_ ? static_cast<size_t>(n_ff) : 0);
    auto at = sorted_.begin() + starts_[e];
    const auto end = sorted_.begin() + starts_[e + 1];
    for (const Group& group : groups_) {
      double p = 0, g = 0, a = 0, ga = 0, ga2 = 0;
      float most = 0;
      uint64_t n = 0;
      for (; at != end && *at < group.end * n_used; ++at) {
        const auto pair = static_cast<size_t>(*at);
        const int64_t row = *at / n_used;
        const double weight = static_cast<double>(seen.weights[pair]);
        const double weighted = weight * norms_[pair];
        p += static_cast<double>(probabilities_[static_cast<size_t>(row * n_expert + expert)]);
        g += weight;
        a += norms_[pair];
        ga += weighted;
        ga2 += weighted * weighted;
        most = std::max(most, largest_[pair]);
        ++n;
        if (importance_) {
          add_squares(seen.x[row], x_window.data(), n_in);
          add_squares(seen.hidden[*at], hidden_window.data(), n_ff);
        }
      }
      if (n == 0) continue;
      LayerStats& stats = (group.index % 2 == 0 ? calibration_.even : calibration_.odd)[layer];
      ExpertSums& sums = stats.experts[e];
      sums.n += n;
      ++sums.n_windows;
      sums.max_abs = std::max(sums.max_abs, most);
      bool fine = sums.p_selected.add(p) && sums.g.add(g) && sums.a.add(a) && sums.ga.add(ga) &&
                  sums.ga2.add(ga2);
      if (importance_) {
        x_sums->counts[e] += n;
        hidden_sums->counts[e] += n;
        fine = join(x_window, x_sums->sums.data() + e * x_sums->n_in) && fine;
        fine = join(hidden_window, hidden_sums->sums.data() + e * hidden_sums->n_in) && fine;
      }
      if (!fine && beyond[e] == nullptr) beyond[e] = &group;
    }
  });
  const Group* first = nullptr;
  for (const Group* group : beyond) {
    if (group != nullptr && (first == nullptr || group->first < first->first)) first = group;
  }
  if (first == nullptr) return;
  const auto expert =
      static_cast<size_t>(std::find(beyond.begin(), beyond.end(), first) - beyond.begin());
  refuse(seen.block, *first, largest_row(seen, *first, expert),
         fmt::format("what expert {} adds to a sum", expert));
}

// Of the group's rows that were routed to an expert.
int64_t Collector::largest_row(const models::ExpertsSeen& seen, const Group& group,
                               size_t expert) const {
  int64_t found = group.first;
  double most = -1;
  for (int32_t i = starts_[expert]; i < starts_[expert + 1]; ++i) {
    const int64_t pair = sorted_[static_cast<size_t>(i)], row = pair / seen.n_used;
    if (row < group.first || row >= group.end) continue;
    double value = norms_[static_cast<size_t>(pair)];
    if (importance_) {
      value = std::max({value, static_cast<double>(largest_of(seen.x[row], seen.x.width)),
                        static_cast<double>(largest_of(seen.hidden[pair], seen.hidden.width))});
    }
    if (value <= most) continue;
    most = value;
    found = row;
  }
  return found;
}

void Collector::experts(const models::ExpertsSeen& seen, ThreadPool& pool) {
  if (stop_ && stop_()) fail(ErrorKind::Cancelled, "interrupted in layer {}", seen.block);
  const auto n_pairs = static_cast<int64_t>(seen.ids.size());
  if (n_pairs != total_rows_ * seen.n_used) {
    fail(ErrorKind::Internal, "{} pairs of {} rows", n_pairs, total_rows_);
  }
  norms_.resize(seen.ids.size());
  largest_.resize(seen.ids.size());
  ops::for_ranges(pool, n_pairs, seen.out.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t pair = begin; pair < end; ++pair) {
      const auto i = static_cast<size_t>(pair);
      norms_[i] = std::sqrt(square_sum(seen.out[pair], seen.out.width, &largest_[i]));
    }
  });
  for (const Group& group : groups_) {
    for (int64_t pair = group.first * seen.n_used; pair < group.end * seen.n_used; ++pair) {
      if (std::isfinite(norms_[static_cast<size_t>(pair)])) continue;
      refuse(seen.block, group, pair / seen.n_used,
             fmt::format("the output of expert {}", seen.ids[static_cast<size_t>(pair)]));
    }
  }
  const size_t layer = layer_of_block_[static_cast<size_t>(seen.block)];
  sort_pairs(seen);
  add_scores(seen, pool, layer);
  add_pairs(seen, pool, layer);
}

namespace {

Calibration begin_calibration(engine::Runtime& runtime, const Corpus& corpus,
                              const CalibrateOptions& options) {
  Calibration c;
  c.model_id = runtime.file().model_id();
  c.model_name = runtime.file().metadata().get_string("general.name", "");
  c.precision = runtime.options().precision == quant::Precision::Exact ? "exact" : "fast";
  c.window_tokens = static_cast<uint64_t>(corpus.window_tokens());
  c.n_windows = corpus.n_windows();
  c.corpus_id = corpus.id();
  for (const Corpus::Part& part : corpus.parts()) {
    c.corpus.push_back({part.name, part.tokens_id, 0});
  }
  c.shards = {{options.shard, options.n_shards, 0}};
  return c;
}

uint64_t bytes_read(const engine::Runtime& runtime) {
  const experts::Counters counters = runtime.counters();
  return counters.prompt.bytes + counters.fill.bytes + counters.ple.bytes;
}

// Whether a checkpoint goes on where this run would begin; throws when it is of something else.
bool resume(Calibration* fresh, const CalibrateOptions& options) {
  std::error_code error;
  if (options.checkpoint.empty() || options.restart ||
      !std::filesystem::exists(options.checkpoint, error)) {
    return false;
  }
  Calibration saved = read_calibration(options.checkpoint);
  const bool same = saved.model_id == fresh->model_id && saved.corpus_id == fresh->corpus_id &&
                    saved.window_tokens == fresh->window_tokens &&
                    saved.precision == fresh->precision && saved.shards.size() == 1 &&
                    saved.shards[0].index == options.shard &&
                    saved.shards[0].of == options.n_shards &&
                    (saved.columns.empty() == !options.importance || saved.shards[0].done == 0);
  if (!same) {
    fail(ErrorKind::Usage,
         "{} holds an interrupted calibration of another model, text, window, shard or choice of "
         "importance: remove it, or start over with --restart",
         options.checkpoint);
  }
  *fresh = std::move(saved);
  return true;
}

// What a checkpoint that this run has begun with or written says; without one, nothing seen.
Calibration last_saved(engine::Runtime& runtime, const Corpus& corpus,
                       const CalibrateOptions& options, bool saved) {
  if (saved) return read_calibration(options.checkpoint);
  Calibration c = begin_calibration(runtime, corpus, options);
  c.even = c.odd = empty_layers(runtime.source().geometry);
  return c;
}

// After an Error(Numeric) in a group of windows: throws one that names window and position, if
// they can be told. The sums are worth nothing then.
void name_window(engine::Runtime& runtime, engine::Windows& windows, Collector& collector,
                 std::span<const engine::Window> group, std::span<const Collector::Next> next,
                 bool skip_first) {
  runtime.model().set_observer(nullptr);
  for (size_t i = 0; i < group.size(); ++i) {
    const std::string found = engine::find_not_finite(runtime, group[i].tokens);
    if (!found.empty()) fail(ErrorKind::Numeric, "window {}, {}", next[i].index, found);
  }
  // All is finite, but something is too large for a sum: a window alone says which.
  runtime.model().set_observer(&collector);
  for (size_t i = 0; i < group.size(); ++i) {
    collector.begin(next.subspan(i, 1), skip_first);
    windows.run(group.subspan(i, 1), [](size_t, int64_t, std::span<const float>) {});
  }
}

}  // namespace

uint64_t windows_of_shard(const Corpus& corpus, const CalibrateOptions& options) {
  return (corpus.n_windows() + options.n_shards - 1 - options.shard) / options.n_shards;
}

Calibration calibrate(engine::Runtime& runtime, const Corpus& corpus,
                      const CalibrateOptions& options,
                      const std::function<void(const CalibrateProgress&)>& progress,
                      const std::function<bool()>& stop) {
  // A checkpoint costs time: at most a twentieth of it.
  constexpr double kCheckpointSeconds = 60, kCheckpointShare = 0.05;
  constexpr uint64_t kCompareEvery = 16;  // windows
  if (options.until_stable && options.n_shards > 1) {
    fail(ErrorKind::Usage, "a shard alone cannot tell when the whole is stable");
  }
  if (runtime.options().stream.moce.mode != experts::Moce::Off) {
    fail(ErrorKind::Usage, "calibration needs exact routing: leave --moce off");
  }
  Calibration c = begin_calibration(runtime, corpus, options);
  CalibrateProgress state;
  if (resume(&c, options)) state.resumed = c.shards[0].done;
  ShardSeen& shard = c.shards[0];
  state.n_windows = windows_of_shard(corpus, options);
  bool saved = state.resumed > 0;
  Collector collector(runtime.source().geometry, options.importance, &c, stop);
  engine::Windows windows(runtime);
  struct Attached {
    models::Model& model;
    ~Attached() { model.set_observer(nullptr); }
  } const attached{runtime.model()};
  runtime.model().set_observer(&collector);

  const int64_t began = now_ns();
  const uint64_t bytes_before = bytes_read(runtime);
  int64_t saved_at = began;
  double save_s = 0;
  std::vector<std::vector<int32_t>> texts;
  std::vector<engine::Window> group;
  std::vector<Collector::Next> next;
  while (shard.done < state.n_windows && !stop()) {
    std::optional<Calibration> before;
    if (!options.importance) before = c;
    texts.clear();
    group.clear();
    next.clear();
    // No group passes a place where the halves are compared: what is seen until then must not
    // depend on how many windows fit into memory.
    const uint64_t end =
        options.until_stable
            ? std::min(state.n_windows, (shard.done / kCompareEvery + 1) * kCompareEvery)
            : state.n_windows;
    for (uint64_t w = shard.done; w < end && texts.size() < windows.at_once(); ++w) {
      const uint64_t index = shard.index + w * shard.of;
      texts.push_back(corpus.window(index));
      next.push_back({index, corpus.window_tokens()});
      c.corpus[corpus.part_of(index)].tokens += static_cast<uint64_t>(corpus.window_tokens());
    }
    for (const std::vector<int32_t>& text : texts) {
      group.push_back({text, static_cast<int64_t>(text.size())});
    }
    collector.begin(next, corpus.begins_with_bos());
    try {
      windows.run(group, [](size_t, int64_t, std::span<const float>) {});
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Cancelled) {
        if (!before) return last_saved(runtime, corpus, options, saved);
        c = std::move(*before);
        break;
      }
      if (error.kind() != ErrorKind::Numeric) throw;
      name_window(runtime, windows, collector, group, next, corpus.begins_with_bos());
      fail(ErrorKind::Numeric, "windows {} to {}: {}", next.front().index, next.back().index,
           error.what());
    }
    shard.done += texts.size();
    state.windows = shard.done;
    state.tokens += texts.size() * static_cast<uint64_t>(corpus.window_tokens());
    state.seconds = seconds_since(began);
    state.bytes_read = bytes_read(runtime) - bytes_before;
    if (options.until_stable && shard.done == end) {
      state.agreement = halves_agreement(c, *options.until_stable);
    }
    progress(state);
    if (options.until_stable && state.agreement >= options.agreement) break;
    if (!options.checkpoint.empty() &&
        seconds_since(saved_at) > std::max(kCheckpointSeconds, save_s / kCheckpointShare)) {
      const int64_t at = now_ns();
      write_calibration(options.checkpoint, c);
      saved = true;
      save_s = seconds_since(at);
      saved_at = now_ns();
    }
  }
  if (c.shards[0].done < state.n_windows && stop() && !options.checkpoint.empty()) {
    write_calibration(options.checkpoint, c);
  }
  return c;
}

}  // namespace penstock::surgery
