#include "surgery/calibration.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/digest.h"
#include "base/error.h"
#include "base/file.h"
#include "gguf/model.h"
#include "gguf/writer.h"

namespace penstock::surgery {
namespace {

constexpr const char* kType = "penstock-calibration";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMostExperts = 1 << 16;

// A row of blk.N.even and blk.N.odd: n, n_windows, six sums of two words (high, low), max_abs.
constexpr size_t kSums = 6;
constexpr size_t kWords = 2 + 2 * kSums + 1;

constexpr ExactSum ExpertSums::*kSumMembers[kSums] = {&ExpertSums::p,  &ExpertSums::p_selected,
                                                      &ExpertSums::g,  &ExpertSums::a,
                                                      &ExpertSums::ga, &ExpertSums::ga2};

void put_expert(const ExpertSums& expert, int64_t* words) {
  words[0] = static_cast<int64_t>(expert.n);
  words[1] = static_cast<int64_t>(expert.n_windows);
  for (size_t i = 0; i < kSums; ++i) {
    const ExactSum& sum = expert.*kSumMembers[i];
    words[2 + 2 * i] = sum.high();
    words[3 + 2 * i] = static_cast<int64_t>(sum.low());
  }
  uint32_t bits = 0;
  std::memcpy(&bits, &expert.max_abs, sizeof bits);
  words[kWords - 1] = bits;
}

ExpertSums get_expert(const int64_t* words) {
  ExpertSums expert;
  expert.n = static_cast<uint64_t>(words[0]);
  expert.n_windows = static_cast<uint64_t>(words[1]);
  for (size_t i = 0; i < kSums; ++i) {
    expert.*kSumMembers[i] =
        ExactSum::from_words(words[2 + 2 * i], static_cast<uint64_t>(words[3 + 2 * i]));
  }
  const auto bits = static_cast<uint32_t>(words[kWords - 1]);
  std::memcpy(&expert.max_abs, &bits, sizeof bits);
  return expert;
}

// Of sums that no text can have given.
bool makes_sense(const ExpertSums& e) noexcept {
  if (!(e.max_abs >= 0) || !std::isfinite(e.max_abs) || e.n_windows > e.n) return false;
  for (const auto member : kSumMembers) {
    if ((e.*member).value() < 0) return false;
  }
  return e.n > 0 || (e.a == ExactSum() && e.ga == ExactSum() && e.max_abs == 0);
}

void add_expert(ExpertSums& all, const ExpertSums& more) {
  all.n += more.n;
  all.n_windows += more.n_windows;
  all.max_abs = std::max(all.max_abs, more.max_abs);
  for (const auto member : kSumMembers) {
    if (!(all.*member).add(more.*member)) {
      fail(ErrorKind::Numeric, "a sum over all windows leaves the range that statistics can hold");
    }
  }
}

void add_layers(std::vector<LayerStats>& all, const std::vector<LayerStats>& more) {
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t e = 0; e < all[i].experts.size(); ++e) {
      add_expert(all[i].experts[e], more[i].experts[e]);
    }
  }
}

std::string layer_name(int layer, const char* half) {
  return fmt::format("blk.{}.{}", layer, half);
}

Sha256 get_digest(const gguf::Metadata& metadata, const char* key) {
  const std::string_view digits = metadata.get_string(key);
  Sha256 digest{};
  if (!parse_sha256(digits, &digest)) {
    fail(ErrorKind::Format, "{}: {} is no SHA-256: '{}'", metadata.path(), key,
         gguf::printable(digits));
  }
  return digest;
}

const int64_t* words_of(const gguf::Model& file, const gguf::Tensor& tensor) {
  if (tensor.type != gguf::TypeId::I64) {
    fail(ErrorKind::Format, "{}: {} is {}, statistics are I64", file.path(), tensor.name,
         gguf::type_name(tensor.type));
  }
  return reinterpret_cast<const int64_t*>(file.data(tensor));
}

std::vector<LayerStats> read_half(const gguf::Model& file, const std::vector<LayerStats>& shape,
                                  const char* half) {
  std::vector<LayerStats> layers = shape;
  for (LayerStats& layer : layers) {
    const gguf::Tensor& tensor = file.require(layer_name(layer.layer, half));
    const int64_t* words = words_of(file, tensor);
    if (tensor.ne[0] != kWords || tensor.rows() != layer.experts.size()) {
      fail(ErrorKind::Format, "{}: {} is {}, not [{}, {}]", file.path(), tensor.name,
           gguf::shape_text(tensor), kWords, layer.experts.size());
    }
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      layer.experts[e] = get_expert(words + e * kWords);
      if (!makes_sense(layer.experts[e])) {
        fail(ErrorKind::Format, "{}: {} of expert {} makes no sense: the file is damaged",
             file.path(), tensor.name, e);
      }
    }
  }
  return layers;
}

void read_columns(const gguf::Model& file, Calibration& calibration) {
  constexpr std::string_view kSuffix = ".in_sum2";
  for (const gguf::Tensor& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kSuffix)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kSuffix.size());
    const gguf::Tensor& counts = file.require(name + ".counts");
    const int64_t* words = words_of(file, tensor);
    const int64_t* numbers = words_of(file, counts);
    if (tensor.ne[0] % 2 != 0 || counts.n_elements() != tensor.rows()) {
      fail(ErrorKind::Format, "{}: {} and its counts do not fit together", file.path(),
           tensor.name);
    }
    ColumnSums& columns = calibration.columns[name];
    columns.n_in = tensor.ne[0] / 2;
    columns.counts.assign(numbers, numbers + counts.n_elements());
    columns.sums.resize(columns.n_in * columns.counts.size());
    for (size_t i = 0; i < columns.sums.size(); ++i) {
      columns.sums[i] = ExactSum::from_words(words[2 * i], static_cast<uint64_t>(words[2 * i + 1]));
      if (columns.sums[i].value() < 0) {
        fail(ErrorKind::Format, "{}: {} holds a negative sum of squares: the file is damaged",
             file.path(), tensor.name);
      }
    }
  }
}

}  // namespace

uint64_t Calibration::windows() const noexcept {
  uint64_t n = 0;
  for (const ShardSeen& shard : shards) n += shard.done;
  return n;
}

ExpertStats Calibration::stats() const {
  ExpertStats stats;
  stats.model_id = model_id;
  stats.model_name = model_name;
  stats.precision = precision;
  stats.window_tokens = window_tokens;
  stats.windows = windows();
  stats.tokens = tokens;
  stats.corpus = corpus;
  stats.layers = even;
  add_layers(stats.layers, odd);
  return stats;
}

Imatrix Calibration::importance() const {
  if (columns.empty()) {
    fail(ErrorKind::Usage,
         "these statistics hold no importance of input columns: calibrate with --importance");
  }
  Imatrix imatrix;
  for (const CorpusPart& part : corpus) imatrix.datasets.push_back(part.name);
  imatrix.n_chunks = static_cast<uint32_t>(windows());
  imatrix.chunk_tokens = static_cast<uint32_t>(window_tokens);
  for (const auto& [name, sums] : columns) {
    Importance importance;
    importance.n_in = static_cast<int64_t>(sums.n_in);
    for (const uint64_t count : sums.counts) {
      importance.counts.push_back(static_cast<float>(count));
    }
    for (const ExactSum& sum : sums.sums) {
      importance.sums.push_back(static_cast<float>(sum.value()));
    }
    // The experts' gate and up have the same input.
    constexpr std::string_view kGate = "ffn_gate_exps.weight";
    if (name.ends_with(kGate)) {
      const std::string up = name.substr(0, name.size() - kGate.size()) + "ffn_up_exps.weight";
      imatrix.tensors.emplace(up, importance);
    }
    imatrix.tensors.emplace(name, std::move(importance));
  }
  return imatrix;
}

void write_calibration(const std::string& path, const Calibration& c) {
  gguf::Writer writer(path);
  writer.set_string("general.type", kType);
  writer.set_string("general.name", c.model_name);
  writer.set_u32("calibration.version", kVersion);
  writer.set_string("calibration.model_id", hex(c.model_id));
  writer.set_string("calibration.precision", c.precision);
  writer.set_u64("calibration.window_tokens", c.window_tokens);
  writer.set_u64("calibration.n_windows", c.n_windows);
  writer.set_u64("calibration.tokens", c.tokens);
  writer.set_string("calibration.corpus_id", hex(c.corpus_id));
  std::vector<std::string> names, ids;
  std::vector<uint64_t> counts, shards;
  for (const CorpusPart& part : c.corpus) {
    names.push_back(part.name);
    ids.push_back(hex(part.tokens_id));
    counts.push_back(part.tokens);
  }
  for (const ShardSeen& shard : c.shards) {
    shards.insert(shards.end(), {shard.index, shard.of, shard.done});
  }
  writer.set_string_array("calibration.corpus.names", names);
  writer.set_string_array("calibration.corpus.token_ids", ids);
  writer.set_u64_array("calibration.corpus.tokens", counts);
  writer.set_u64_array("calibration.shards", shards);
  std::vector<uint32_t> blocks, used, experts;
  for (const LayerStats& layer : c.even) {
    blocks.push_back(static_cast<uint32_t>(layer.layer));
    used.push_back(static_cast<uint32_t>(layer.n_used));
    experts.push_back(static_cast<uint32_t>(layer.experts.size()));
  }
  writer.set_u32_array("calibration.layers", blocks);
  writer.set_u32_array("calibration.n_used", used);
  writer.set_u32_array("calibration.n_expert", experts);

  for (const LayerStats& layer : c.even) {
    const uint64_t dims[] = {kWords, layer.experts.size()};
    writer.add_tensor(layer_name(layer.layer, "even"), gguf::TypeId::I64, dims);
    writer.add_tensor(layer_name(layer.layer, "odd"), gguf::TypeId::I64, dims);
  }
  for (const auto& [name, columns] : c.columns) {
    const uint64_t dims[] = {2 * columns.n_in, columns.counts.size()};
    const uint64_t count_dims[] = {1, columns.counts.size()};
    writer.add_tensor(name + ".in_sum2", gguf::TypeId::I64, dims);
    writer.add_tensor(name + ".counts", gguf::TypeId::I64, count_dims);
  }
  writer.begin();
  std::vector<int64_t> words;
  const auto put_layer = [&](const LayerStats& layer) {
    words.resize(kWords * layer.experts.size());
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      put_expert(layer.experts[e], words.data() + e * kWords);
    }
    writer.append(std::as_bytes(std::span(words)));
  };
  for (size_t i = 0; i < c.even.size(); ++i) {
    put_layer(c.even[i]);
    put_layer(c.odd[i]);
  }
  for (const auto& [name, columns] : c.columns) {
    // A matrix at a time: an expert bank's sums are large.
    for (size_t m = 0; m < columns.counts.size(); ++m) {
      words.clear();
      for (uint64_t i = 0; i < columns.n_in; ++i) {
        const ExactSum& sum = columns.sums[m * columns.n_in + i];
        words.insert(words.end(), {sum.high(), static_cast<int64_t>(sum.low())});
      }
      writer.append(std::as_bytes(std::span(words)));
    }
    writer.append(std::as_bytes(std::span(columns.counts)));
  }
  writer.finish();
}

namespace {

Calibration parse_calibration(const std::string& path) {
  const gguf::Model file = gguf::Model::open(path);
  const gguf::Metadata& m = file.metadata();
  const std::string_view type = m.get_string("general.type", "");
  if (type != kType) {
    fail(ErrorKind::Format,
         "{} holds no calibration statistics (general.type is '{}'). Make them with `penstock "
         "calibrate MODEL --text FILE -o STATS`",
         path, gguf::printable(type));
  }
  if (m.get_u64("calibration.version") != kVersion) {
    fail(ErrorKind::Unsupported, "{}: statistics of version {}; this program knows version {}",
         path, m.get_u64("calibration.version"), kVersion);
  }
  Calibration c;
  c.model_id = get_digest(m, "calibration.model_id");
  c.model_name = m.get_string("general.name");
  c.precision = m.get_string("calibration.precision");
  c.window_tokens = m.get_u64("calibration.window_tokens");
  c.n_windows = m.get_u64("calibration.n_windows");
  c.tokens = m.get_u64("calibration.tokens");
  c.corpus_id = get_digest(m, "calibration.corpus_id");
  const auto names = m.get_string_array("calibration.corpus.names");
  const auto ids = m.get_string_array("calibration.corpus.token_ids");
  const auto counts = m.get_u64_array("calibration.corpus.tokens");
  const auto shards = m.get_u64_array("calibration.shards");
  const auto blocks = m.get_u64_array("calibration.layers");
  const auto used = m.get_u64_array("calibration.n_used");
  const auto experts = m.get_u64_array("calibration.n_expert");
  if (ids.size() != names.size() || counts.size() != names.size() || shards.size() % 3 != 0 ||
      used.size() != blocks.size() || experts.size() != blocks.size()) {
    fail(ErrorKind::Format, "{}: calibration.* arrays of lengths that do not fit together", path);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    CorpusPart part{std::string(names[i]), {}, counts[i]};
    if (!parse_sha256(ids[i], &part.tokens_id)) {
      fail(ErrorKind::Format, "{}: calibration.corpus.token_ids: no SHA-256", path);
    }
    c.corpus.push_back(std::move(part));
  }
  for (size_t i = 0; i < shards.size(); i += 3) {
    const ShardSeen shard{static_cast<uint32_t>(shards[i]), static_cast<uint32_t>(shards[i + 1]),
                          shards[i + 2]};
    if (shard.of == 0 || shard.index >= shard.of || shard.done > c.n_windows) {
      fail(ErrorKind::Format, "{}: calibration.shards: shard {}/{}, {} windows of {}", path,
           shards[i], shards[i + 1], shards[i + 2], c.n_windows);
    }
    c.shards.push_back(shard);
  }
  std::vector<LayerStats> shape;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (experts[i] == 0 || experts[i] > kMostExperts || used[i] > experts[i]) {
      fail(ErrorKind::Format, "{}: calibration.n_expert: layer {} with {} experts, {} used", path,
           blocks[i], experts[i], used[i]);
    }
    shape.push_back({static_cast<int>(blocks[i]), static_cast<int>(used[i]),
                     std::vector<ExpertSums>(experts[i])});
  }
  c.even = read_half(file, shape, "even");
  c.odd = read_half(file, shape, "odd");
  read_columns(file, c);
  return c;
}

}  // namespace

Calibration read_calibration(const std::string& path) {
  Calibration calibration = parse_calibration(path);
  // Read once: its pages are better used for experts.
  const File file = File::open_read(path);
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  return calibration;
}

void merge(Calibration& all, const Calibration& more, const std::string& path) {
  const auto refuse = [&](const char* what) {
    fail(ErrorKind::Usage, "{} was made from another {} than the files before it", path, what);
  };
  if (more.model_id != all.model_id) refuse("model");
  if (more.corpus_id != all.corpus_id || more.n_windows != all.n_windows) refuse("text");
  if (more.window_tokens != all.window_tokens) refuse("window length");
  if (more.precision != all.precision) refuse("precision");
  const auto same_shape = [](const LayerStats& a, const LayerStats& b) {
    return a.layer == b.layer && a.experts.size() == b.experts.size();
  };
  if (!std::equal(all.even.begin(), all.even.end(), more.even.begin(), more.even.end(),
                  same_shape)) {
    refuse("set of layers");
  }
  for (const ShardSeen& a : all.shards) {
    for (const ShardSeen& b : more.shards) {
      // Shards of different divisions share windows unless one saw nothing.
      if (a.done > 0 && b.done > 0 && (a.of != b.of || a.index == b.index)) {
        fail(ErrorKind::Usage,
             "{}: shard {}/{} and shard {}/{} saw the same windows; merge shards of one division, "
             "each once",
             path, b.index, b.of, a.index, a.of);
      }
    }
  }
  const auto same_columns = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.sums.size() == b.second.sums.size();
  };
  if (!std::equal(all.columns.begin(), all.columns.end(), more.columns.begin(), more.columns.end(),
                  same_columns)) {
    refuse("choice of importance");
  }
  all.tokens += more.tokens;
  for (size_t i = 0; i < all.corpus.size(); ++i) all.corpus[i].tokens += more.corpus[i].tokens;
  all.shards.insert(all.shards.end(), more.shards.begin(), more.shards.end());
  std::sort(all.shards.begin(), all.shards.end(),
            [](const ShardSeen& a, const ShardSeen& b) { return a.index < b.index; });
  add_layers(all.even, more.even);
  add_layers(all.odd, more.odd);
  for (auto& [name, columns] : all.columns) {
    const ColumnSums& other = more.columns.at(name);
    for (size_t i = 0; i < columns.counts.size(); ++i) columns.counts[i] += other.counts[i];
    for (size_t i = 0; i < columns.sums.size(); ++i) {
      if (!columns.sums[i].add(other.sums[i])) {
        fail(ErrorKind::Numeric, "{}: a sum over all windows leaves the range", name);
      }
    }
  }
  // All of it, whoever saw which part.
  if (all.complete()) all.shards = {{0, 1, all.n_windows}};
}

double halves_agreement(const Calibration& calibration, double keep_share) {
  const auto best = [&](const LayerStats& layer) {
    const size_t n = layer.experts.size();
    const auto keep = static_cast<size_t>(std::llround(keep_share * static_cast<double>(n)));
    std::vector<size_t> order(n);
    for (size_t e = 0; e < n; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return layer.experts[a].reap() > layer.experts[b].reap();
    });
    std::vector<bool> kept(n);
    for (size_t i = 0; i < std::min(keep, n); ++i) kept[order[i]] = true;
    return kept;
  };
  double sum = 0;
  for (size_t i = 0; i < calibration.even.size(); ++i) {
    const std::vector<bool> a = best(calibration.even[i]), b = best(calibration.odd[i]);
    size_t both = 0, either = 0;
    for (size_t e = 0; e < a.size(); ++e) {
      both += a[e] && b[e];
      either += a[e] || b[e];
    }
    sum += either == 0 ? 1 : static_cast<double>(both) / static_cast<double>(either);
  }
  return calibration.even.empty() ? 1 : sum / static_cast<double>(calibration.even.size());
}

ExpertStats read_stats(const std::string& path) {
  return read_calibration(path).stats();
}

void check_stats(const ExpertStats& stats, const std::string& path, const gguf::Model& model) {
  if (stats.model_id != model.model_id()) {
    fail(ErrorKind::Usage,
         "{} was made from another model ('{}'): statistics hold for the file they were made from",
         path, gguf::printable(stats.model_name));
  }
}

}  // namespace penstock::surgery
