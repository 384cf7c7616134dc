// A model: dense weights in memory, routed experts through experts::Stream, conversation state
// outside. Life of a model:
//
//   auto model = models::open(sources, options);     // metadata and tensors checked; nothing large
//   model->needs(state_options, chunk), model->experts(), model->table();     // for the plan
//   model->load(pool, DenseMode::Copy, progress);    // dense weights
//   auto state = model->new_state(state_options);
//   model->forward(*state, stream, batch, logits);   // prompt chunks, decode tokens
//   model->step(...); model->commit(*state, n);      // rows to be verified, then the accepted ones
//
// Same bits (law 2): the logits of a token depend on the weights, the precision, the KV type and
// the tokens before it; not on chunking, threads, phase, or on whether it came by forward or step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/locked_memory.h"
#include "base/thread_pool.h"
#include "experts/geometry.h"
#include "experts/stream.h"
#include "gguf/model.h"
#include "models/dense_convert.h"
#include "models/dense_report.h"
#include "models/observer.h"
#include "models/state.h"
#include "quant/matmul.h"

namespace penstock::experts {
class RowStore;
}

namespace penstock::models {

// The files of one model. `draft` and `table` may be null: then the draft (MTP) block and the
// n-gram table are looked for in the trunk file.
struct Sources {
  std::shared_ptr<const gguf::Model> trunk;
  std::shared_ptr<const gguf::Model> draft;
  std::shared_ptr<const gguf::Model> table;
};

enum class DraftNorm { Bundle, PerStream };  // spec/qwen4exp.md §6 step 2

struct OpenOptions {
  quant::Precision precision = quant::Precision::Fast;
  bool draft = false;  // use the draft block; without it its tensors are neither loaded nor counted
  DraftNorm draft_norm = DraftNorm::Bundle;
  std::vector<ConvertRule> convert = {};  // of dense matrices, the last that matches; lossy
};

enum class DenseMode {
  Copy,  // read into huge pages, with direct reads where the file system allows them
  Map,   // used in place in the file's mapping
};

// What every architecture can tell about itself.
struct Info {
  std::string architecture;
  int n_layer = 0;  // of the trunk
  int n_embd = 0;
  int n_streams = 1;  // residual streams
  bool has_shared_expert = false;
  int n_hidden = 0;  // floats per token that forward() can hand out for draft()
  int n_vocab = 0;
  int64_t n_context_trained = 0;
  int n_attention_layers = 0;
  int n_recurrent_layers = 0;               // 0: the state can be truncated anywhere
  bool has_draft = false;                   // a draft block is there and was asked for
  std::vector<std::string> unused_tensors;  // in the file, not used by this architecture
};

// Bytes, computed before anything large is taken.
struct MemoryNeeds {
  uint64_t dense = 0;         // weights in whole pages, DenseMode::Copy
  uint64_t dense_mapped = 0;  // the same, DenseMode::Map: the file's pages among them
  uint64_t kv = 0;            // keys, values and indexer keys for n_ctx tokens
  uint64_t state = 0;         // recurrent states, convolution windows, rows held for commit()
  uint64_t scratch_decode = 0;
  uint64_t scratch_prompt = 0;  // for the chunk, beside scratch_decode
  uint64_t logits = 0;          // one row
};

// The n-gram embedding table's place on disk: row r starts at offset + r * row_bytes.
struct TableGeometry {
  std::string path;
  uint64_t offset = 0;
  uint64_t row_bytes = 0;
  uint64_t n_rows = 0;
  gguf::TypeId type{};
  int row_elements = 0;
  int rows_per_token = 0;
};

enum class Logits { None, Last, All };

struct Batch {
  std::span<const int32_t> tokens;
  experts::Phase phase = experts::Phase::Decode;
  Logits logits = Logits::Last;
  float* hidden = nullptr;  // [tokens][n_hidden], what draft() takes; null when not wanted
};

// One of several sequences that are evaluated together.
struct Sequence {
  State* state = nullptr;
  std::span<const int32_t> tokens;
  int64_t first_logits = 0;  // logits are wanted from this row on; tokens.size(): of none
};

// Logits of some rows of a sequence: [n][n_vocab], the first of them row `first`.
using LogitRows = FunctionRef<void(size_t sequence, int64_t first, std::span<const float> logits)>;

using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;

// A look at intermediate values, for tests: what, layer (-1: not of a layer), the token's position,
// its values.
using Tap = std::function<void(std::string_view what, int layer, int64_t position,
                               std::span<const float> values)>;

class Model {
 public:
  virtual ~Model() = default;

  virtual const Info& info() const = 0;
  // The trunk's MoE layers in order, then the draft block's if there is one.
  virtual const experts::Geometry& experts() const = 0;
  virtual const TableGeometry* table() const = 0;  // null: none
  virtual MemoryNeeds needs(const StateOptions& options, int64_t prompt_chunk,
                            int n_threads = 1) const = 0;

  // The pool is kept and must outlive the model. Throws Error(Io) naming tensor and offset.
  virtual void load(ThreadPool& pool, DenseMode mode, const LoadProgress& progress) = 0;
  // Locks the loaded dense weights in memory, region by region. What is refused is in dense().
  virtual void lock_dense(const MemoryLocker& lock) = 0;
  virtual DenseReport dense() const = 0;
  // The type that a dense matrix of the trunk's file is held in: its own unless it is converted.
  virtual gguf::TypeId held_type(const gguf::Tensor& tensor) const = 0;
  // The reader of the n-gram table's rows, if table() is not null. Without it they are taken from
  // the file's mapping.
  virtual void attach_table(experts::RowStore* rows) = 0;
  virtual std::unique_ptr<State> new_state(const StateOptions& options) const = 0;

  // Runs the tokens from state.position() on and advances the state. logits: [n_vocab] floats for
  // Last, [tokens][n_vocab] for All. A decode call ends the stream's step. Throws on a failed read;
  // the state then refuses further use until reset() or restore().
  virtual void forward(State& state, experts::Stream& stream, const Batch& batch,
                       float* logits) = 0;

  // The same for several sequences that stand at one position, layer by layer: an expert is read
  // once for all of them. Each one's logits are, bit for bit, those of a forward() of its own. They
  // are handed out in pieces that fit `buffer`, [n][n_vocab], in order. Prompts only; after a throw
  // none of the states can be used until reset().
  virtual void forward_together(std::span<const Sequence> sequences, experts::Stream& stream,
                                std::span<float> buffer, LogitRows rows) = 0;

  // Evaluates 1..kMaxStepRows tokens without advancing the state, then keeps the first n of them
  // (0..rows): bit for bit what forward() of those n would have left.
  virtual void step(State& state, experts::Stream& stream, const Batch& batch, float* logits) = 0;
  virtual void commit(State& state, int n) = 0;

  // Tells the table's reader that this token comes next (rows depend on token ids alone).
  virtual void prefetch(const State& state, int32_t token) = 0;

  // The draft block (info().has_draft). Pairs (token x_{p+1}, hidden of position p): extends the
  // draft's own cache at state.draft_position(), writes the last pair's logits and, if wanted, its
  // hidden for chaining. Truncate with state.truncate_draft().
  virtual void draft(State& state, experts::Stream& stream, std::span<const int32_t> tokens,
                     const float* hidden, float* logits, float* hidden_out) = 0;

  // Maps the scratch for prompt chunks of up to so many rows and faults it in, without clearing it;
  // and gives it back to the system. Scratch for a few rows is that of decode and stays.
  virtual void map_prompt_scratch(int64_t rows, const State& state) = 0;
  virtual void release_prompt_scratch() = 0;
  virtual void set_tap(Tap tap) = 0;
  virtual void set_observer(ComputeObserver* observer) = 0;  // null: nobody
};

// Throws Error(Unsupported) listing the known architectures when the file's is not one of them.
std::unique_ptr<Model> open(const Sources& sources, const OpenOptions& options);
std::vector<std::string_view> known_architectures();

}  // namespace penstock::models
