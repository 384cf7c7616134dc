// The model that all architectures here are: token embedding, blocks that read the residual through
// mixers, a head. An architecture is a loader that reads its hyper-parameters and puts the parts
// together (docs/adding-a-model.md).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/attention_block.h"
#include "models/delta_block.h"
#include "models/dense_store.h"
#include "models/mixer.h"
#include "models/model.h"
#include "models/moe_block.h"
#include "models/ngram_block.h"

namespace penstock::models {

// Where token rows are gathered from: the mapping, never resident.
struct Embedding {
  const gguf::Model* file = nullptr;
  const gguf::Tensor* tensor = nullptr;
};

struct Block {
  std::unique_ptr<NgramBlock> ngram;          // before the rest
  std::unique_ptr<Mixer> mixer;               // of the token mixing part
  std::unique_ptr<AttentionBlock> attention;  // one of these two
  std::unique_ptr<DeltaBlock> delta;
  std::unique_ptr<Mixer> moe_mixer;
  std::unique_ptr<MoeBlock> moe;
};

// The draft (MTP) block (spec/qwen4exp.md §6, spec/moe-architectures.md §3.4).
struct Draft {
  ops::Norm embedding_norm, hidden_norm;
  ops::Matrix project;  // embedding half first
  Block block;
  std::unique_ptr<Mixer> head_mixer;
  Embedding embedding;
  ops::Matrix own_output;  // absent: the trunk's
};

// What a loader puts together.
struct Parts {
  Parts(const Sources& sources_in, const OpenOptions& options_in)
      : sources(sources_in), options(options_in), store(options_in.convert) {}
  Parts(const Parts&) = delete;

  Sources sources;
  OpenOptions options;
  Config config;
  DenseStore store;
  ops::Rope rope;
  Embedding embedding;
  std::vector<Block> blocks;
  std::unique_ptr<Mixer> head_mixer;
  ops::Matrix output;
  std::unique_ptr<Draft> draft;
  bool hidden_before_head = false;  // what draft() takes: before the head's mixer, or after it
  experts::Geometry geometry;
  std::optional<TableGeometry> table;
  std::vector<std::string> unused;
  uint64_t n_skipped = 0,
           bytes_skipped = 0;  // of the trunk file, a draft that was not asked for too
};

class Transformer final : public Model {
 public:
  explicit Transformer(std::unique_ptr<Parts> parts);

  const Info& info() const override { return info_; }
  const experts::Geometry& experts() const override { return parts_->geometry; }
  const TableGeometry* table() const override { return parts_->table ? &*parts_->table : nullptr; }
  MemoryNeeds needs(const StateOptions& options, int64_t prompt_chunk,
                    int n_threads) const override;
  void load(ThreadPool& pool, DenseMode mode, const LoadProgress& progress) override;
  void lock_dense(const MemoryLocker& lock) override { parts_->store.lock(lock); }
  DenseReport dense() const override;
  gguf::TypeId held_type(const gguf::Tensor& tensor) const override {
    return parts_->store.conversions().held_type(tensor);
  }
  void attach_table(experts::RowStore* rows) override;
  std::unique_ptr<State> new_state(const StateOptions& options) const override;
  void forward(State& state, experts::Stream& stream, const Batch& batch, float* logits) override;
  void forward_together(std::span<const Sequence> sequences, experts::Stream& stream,
                        std::span<float> buffer, LogitRows rows) override;
  void step(State& state, experts::Stream& stream, const Batch& batch, float* logits) override;
  void commit(State& state, int n) override;
  void prefetch(const State& state, int32_t token) override;
  void draft(State& state, experts::Stream& stream, std::span<const int32_t> tokens,
             const float* hidden, float* logits, float* hidden_out) override;
  void map_prompt_scratch(int64_t rows, const State& state) override;
  void release_prompt_scratch() override;
  void set_tap(Tap tap) override { tap_ = std::move(tap); }
  void set_observer(ComputeObserver* observer) override { observer_ = observer; }

 private:
  struct Scratch {
    Mapping memory;
    std::unique_ptr<Buffers> buffers;
    int64_t n_ctx = 0;
  };
  // The tokens that decide the n-gram rows of `tokens`: those and a few before.
  std::span<const int32_t> recent(const State& state, std::span<const int32_t> tokens);
  Buffers& buffers_for(int64_t rows, int64_t n_ctx);
  ops::WorkspaceLimits workspace_limits() const noexcept;
  void run_batch(State& state, experts::Stream& stream, const Batch& batch, bool keep,
                 float* logits);
  void embed(Run& run, const Embedding& embedding, std::span<const int32_t> tokens,
             const ops::Rows& x) const;
  Run begin_run(Buffers& buffers, State& state, experts::Stream& stream,
                std::span<const int32_t> tokens, experts::Phase phase, int64_t row0);
  void set_angles(Run& run, int64_t rows) const;
  void mix(Run& run, const Block& block, int index) const;
  void feed_forward(Run& run, const Block& block, int index, int64_t first_row) const;
  ops::Rows head_input(Run& run, int64_t row, int64_t n) const;
  void multiply_output(Run& run, const ops::Rows& x, float* logits) const;
  void head(Run& run, const Batch& batch, float* logits) const;

  std::unique_ptr<Parts> parts_;
  Info info_;
  Extents extents_;
  StateShape shape_;
  ThreadPool* pool_ = nullptr;
  std::unique_ptr<ops::Workspace> workspace_;
  Scratch decode_, prompt_;
  std::vector<int32_t> recent_;
  Tap tap_;
  ComputeObserver* observer_ = nullptr;
};

// Steps that loaders share: tensors outside the blocks, a block's feed-forward part, the draft
// block from the trunk file or its own, what is left over in the file.
std::unique_ptr<Parts> begin_parts(const Sources& sources, const OpenOptions& options);
void bind_globals(Binder& binder, Parts& parts);
uint32_t add_shards(const gguf::Model& file, experts::Geometry* geometry);
// The file that holds block `block`'s nextn tensors, or null; reports when none was found.
const gguf::Model* draft_file(const Parts& parts, int block);
void bind_draft(Binder& binder, Parts& parts, const Config& config, int block,
                int64_t hidden_width);
std::unique_ptr<Model> finish(std::unique_ptr<Parts> parts, const Binder& trunk);

}  // namespace penstock::models
