#include "surgery/synth.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "gguf/writer.h"
#include "quant/codec.h"
#include "quant/half.h"
#include "surgery/block_fill.h"
#include "surgery/synth_tokenizer.h"

namespace penstock::surgery {
namespace {

using gguf::TypeId;

constexpr uint64_t kTaskBytes = uint64_t{2} << 20;

void write_hyper_keys(const SynthPlan& plan, const std::string& arch, gguf::Writer* out) {
  const SynthShape& s = plan.shape;
  const auto u32 = [&](const char* key, uint64_t value) {
    out->set_u32(arch + key, static_cast<uint32_t>(value));
  };
  u32(".attention.indexer.head_count", 4);
  u32(".attention.indexer.key_length", 128);
  u32(".attention.indexer.top_k", 2048);
  std::vector<int32_t> ratios;
  for (int64_t l = 0; l < s.n_layer; ++l) {
    ratios.push_back((static_cast<uint64_t>(l) + 1) % s.interval == 0 ? 4 : 0);
  }
  out->set_i32_array(arch + ".attention.compress_ratios", ratios);
  u32(".hyper_connection.count", 4);
  u32(".hyper_connection.low_rank", s.n_embd / 8);
  out->set_i32_array(arch + ".ple.layers", std::vector<int32_t>{1});
  u32(".ple.ngram_size", 3);
  u32(".ple.heads_per_ngram", 8);
  u32(".ple.conv_kernel", 4);
  u32(".embedding_length_per_layer_input", s.n_embd / 16);
  out->set_u64_array(arch + ".ple.layer_multipliers", plan.ple_multipliers);
  out->set_u64_array(arch + ".ple.head_vocab_sizes", plan.ple_sizes);
  out->set_u64_array(arch + ".ple.head_offsets", plan.ple_offsets);
}

void write_keys(const SynthPlan& plan, const SynthOptions& options, gguf::Writer* out) {
  const SynthShape& s = plan.shape;
  const std::string& arch = s.arch;
  const auto u32 = [&](const char* key, uint64_t value) {
    out->set_u32(arch + key, static_cast<uint32_t>(value));
  };
  out->set_string("general.architecture", arch);
  out->set_string("general.type", "model");
  out->set_string("general.name", s.name + " (synthetic, random weights)");
  out->set_string("general.description",
                  fmt::format("penstock synth {} seed {}", options.preset, options.seed));
  out->set_u32("general.quantization_version", 2);
  u32(".block_count", static_cast<uint64_t>(s.n_layer));
  u32(".context_length", s.n_context);
  u32(".embedding_length", s.n_embd);
  if (!s.hyper && s.interval == 0) u32(".feed_forward_length", 8 * s.n_ff);
  u32(".attention.head_count", s.n_head);
  u32(".attention.head_count_kv", s.n_head_kv);
  u32(".attention.key_length", s.head_dim);
  u32(".attention.value_length", s.head_dim);
  out->set_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);
  out->set_f32(arch + ".rope.freq_base", s.rope_base);
  u32(".expert_count", s.n_expert);
  u32(".expert_used_count", s.n_used);
  u32(".expert_feed_forward_length", s.n_ff);
  if (s.n_ff_shared > 0) u32(".expert_shared_feed_forward_length", s.n_ff_shared);
  if (s.interval > 0) {
    u32(".full_attention_interval", s.interval);
    u32(".rope.dimension_count", s.n_rot);
    if (!s.ssm_ba) {
      out->set_i32_array(arch + ".rope.dimension_sections", std::vector<int32_t>{11, 11, 10, 0});
    }
    u32(".ssm.conv_kernel", 4);
    u32(".ssm.state_size", s.gdn_dim);
    u32(".ssm.group_count", s.gdn_k_heads);
    u32(".ssm.time_step_rank", s.gdn_v_heads);
    u32(".ssm.inner_size", s.gdn_v_heads * s.gdn_dim);
  }
  if (s.hyper) write_hyper_keys(plan, arch, out);
  const SynthVocabulary vocabulary = make_vocabulary(s.pre, s.n_vocab);
  if (s.hyper) u32(".ple.eos_token_id", vocabulary.pad);
  write_tokenizer(vocabulary, out);
}

// Makes rows of one tensor after another; knows no files.
class RowMaker {
 public:
  RowMaker(const SynthPlan& plan, uint64_t seed) : plan_(plan), seed_(seed) {
    for (const SynthTensor& tensor : plan.tensors) {
      if (fills_.count(tensor.type) == 0) fills_.emplace(tensor.type, BlockFill(tensor.type));
      uint64_t h = 0xcbf29ce484222325;
      for (const char c : tensor.name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
      seeds_.push_back(Random::mix(seed, h));
    }
  }

  void make(size_t index, uint64_t first, uint64_t n_rows, std::byte* out,
            std::vector<float>* scratch) const {
    const SynthTensor& tensor = plan_.tensors[index];
    const uint64_t bytes = gguf::row_bytes(tensor.type, tensor.dims[0]);
    for (uint64_t row = first; row < first + n_rows; ++row, out += bytes) {
      if (tensor.values) {
        scratch->resize(tensor.dims[0]);
        tensor.values(row, *scratch);
        encode(tensor, row, *scratch, out);
      } else {
        random_row(tensor, seeds_[index], row, out);
      }
    }
  }

 private:
  void random_row(const SynthTensor& tensor, uint64_t tensor_seed, uint64_t row,
                  std::byte* out) const {
    const BlockFill& fill = fills_.at(tensor.type);
    const uint64_t in_slice = tensor.dims.size() > 1 ? row % tensor.dims[1] : 0;
    const auto band = std::find_if(tensor.bands.begin(), tensor.bands.end(),
                                   [in_slice](const Band& b) { return in_slice < b.end; });
    const uint64_t own = Random::mix(tensor_seed, row);
    uint64_t number = 0;
    for (const Piece& piece : band->pieces) {
      const uint64_t seed =
          piece.key == 0 ? Random::mix(own, number)
                         : Random::mix(Random::mix(seed_, piece.key), in_slice % piece.period);
      fill.fill(out + gguf::row_bytes(tensor.type, piece.begin), piece.end - piece.begin,
                piece.deviation, seed);
      ++number;
    }
  }

  // Types that have no encoder get random blocks of the row's size.
  void encode(const SynthTensor& tensor, uint64_t row, const std::vector<float>& values,
              std::byte* out) const {
    const auto n = static_cast<int64_t>(values.size());
    if (quant::can_encode(tensor.type)) {
      quant::encode_row(tensor.type, values.data(), out, n, nullptr);
      return;
    }
    double square = 0;
    for (const float x : values) square += static_cast<double>(x) * static_cast<double>(x);
    fills_.at(tensor.type)
        .fill(out, values.size(), static_cast<float>(std::sqrt(square / static_cast<double>(n))),
              Random::mix(seed_, row));
  }

  const SynthPlan& plan_;
  uint64_t seed_;
  std::map<TypeId, BlockFill> fills_;
  std::vector<uint64_t> seeds_;
};

struct Task {
  size_t tensor = 0;
  uint64_t row = 0;
  uint64_t n_rows = 0;
};

std::vector<Task> split_tasks(const SynthPlan& plan) {
  std::vector<Task> tasks;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const SynthTensor& tensor = plan.tensors[i];
    uint64_t rows = 1;
    for (size_t d = 1; d < tensor.dims.size(); ++d) rows *= tensor.dims[d];
    const uint64_t per =
        std::max<uint64_t>(1, kTaskBytes / gguf::row_bytes(tensor.type, tensor.dims[0]));
    for (uint64_t row = 0; row < rows; row += per) {
      tasks.push_back({i, row, std::min(per, rows - row)});
    }
  }
  return tasks;
}

}  // namespace

SynthResult write_synthetic(const SynthOptions& options, const std::string& path,
                            uint64_t max_shard_bytes, ThreadPool& pool,
                            const std::function<void(uint64_t, uint64_t)>& progress) {
  const int64_t start = now_ns();
  const SynthPlan plan = make_synth_plan(options);
  const RowMaker maker(plan, options.seed);
  gguf::Writer writer(path, {.max_shard_bytes = max_shard_bytes});
  write_keys(plan, options, &writer);
  SynthResult result;
  for (const SynthTensor& tensor : plan.tensors) {
    writer.add_tensor(tensor.name, tensor.type, tensor.dims);
    uint64_t n = 1;
    for (const uint64_t d : tensor.dims) n *= d;
    result.n_parameters += n;
  }
  writer.begin();

  const std::vector<Task> tasks = split_tasks(plan);
  std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(pool.size()));
  std::vector<std::vector<float>> scratch(buffers.size());
  std::atomic<uint64_t> done{0};
  std::mutex mutex;
  std::exception_ptr error;
  std::atomic<bool> failed{false};
  pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t index, int thread) {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      const Task& task = tasks[static_cast<size_t>(index)];
      const SynthTensor& tensor = plan.tensors[task.tensor];
      const uint64_t row = gguf::row_bytes(tensor.type, tensor.dims[0]);
      std::vector<std::byte>& buffer = buffers[static_cast<size_t>(thread)];
      buffer.resize(task.n_rows * row);
      maker.make(task.tensor, task.row, task.n_rows, buffer.data(),
                 &scratch[static_cast<size_t>(thread)]);
      writer.write_at(task.tensor, task.row * row, buffer);
      const uint64_t now = done.fetch_add(buffer.size()) + buffer.size();
      if (thread == 0 && progress) progress(now, writer.total_bytes());
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
      failed = true;
    }
  });
  if (error) std::rethrow_exception(error);
  writer.finish();
  result.files = writer.file_names();
  result.bytes = writer.total_bytes();
  result.n_tensors = plan.tensors.size();
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace penstock::surgery
