// Steps that the architectures' loaders share.
#include "base/error.h"
#include "base/log.h"
#include "models/transformer.h"
#include "quant/codec.h"

namespace penstock::models {
namespace {

Embedding bind_embedding(Binder& binder, const std::string& name, int64_t n_embd) {
  const gguf::Tensor& tensor = binder.take(name);
  if (tensor.ne[0] != static_cast<uint64_t>(n_embd) || tensor.n_dims != 2 || tensor.rows() < 1 ||
      tensor.rows() > kMostVocab || !quant::can_decode(tensor.type)) {
    binder.wrong_shape(tensor, fmt::format("[{}, vocabulary]", n_embd));
  }
  return {&binder.file(), &tensor};
}

}  // namespace

std::unique_ptr<Parts> begin_parts(const Sources& sources, const OpenOptions& options) {
  auto parts = std::make_unique<Parts>(sources, options);
  for (const auto& entry : sources.trunk->metadata().entries()) {
    if (entry.key.starts_with("prism.hadamard")) {
      fail(ErrorKind::Unsupported,
           "{}: key {}: weights rotated by a Hadamard transform are not known",
           sources.trunk->path(), entry.key);
    }
  }
  return parts;
}

void bind_globals(Binder& binder, Parts& parts) {
  Config& config = parts.config;
  parts.embedding = bind_embedding(binder, "token_embd.weight", config.n_embd);
  config.n_vocab = static_cast<int>(parts.embedding.tensor->rows());
  const bool tied = !binder.has("output.weight");
  binder.matrix(&parts.output, tied ? "token_embd.weight" : "output.weight", config.n_embd,
                config.n_vocab);
  parts.rope = ops::Rope(config.n_rot, config.rope_base, config.rope_scaling);
}

uint32_t add_shards(const gguf::Model& file, experts::Geometry* geometry) {
  const auto first = static_cast<uint32_t>(geometry->shards.size());
  for (const gguf::Shard& shard : file.shards()) geometry->shards.push_back(shard.path);
  return first;
}

const gguf::Model* draft_file(const Parts& parts, int block) {
  if (!parts.options.draft) return nullptr;
  const std::string name = block_name(block, "nextn.eh_proj.weight");
  for (const gguf::Model* file : {parts.sources.draft.get(), parts.sources.trunk.get()}) {
    if (file != nullptr && file->find(name) != nullptr) return file;
  }
  if (parts.sources.draft != nullptr) {
    fail(ErrorKind::Format, "{}: holds no draft block {} (tensor {})", parts.sources.draft->path(),
         block, name);
  }
  return nullptr;
}

void bind_draft(Binder& binder, Parts& parts, const Config& config, int block,
                int64_t hidden_width) {
  Draft& d = *parts.draft;
  const auto name = [&](const char* suffix) { return block_name(block, suffix); };
  const int64_t n_embd = parts.config.n_embd;
  if (config.n_embd != parts.config.n_embd || config.n_streams != parts.config.n_streams ||
      config.head_dim != parts.config.head_dim || config.n_rot != parts.config.n_rot) {
    fail(ErrorKind::Format, "{}: the draft block is of another shape than the model {}",
         binder.file().path(), parts.sources.trunk->path());
  }
  const bool bundle = parts.options.draft_norm == DraftNorm::Bundle;
  d.embedding_norm = {nullptr, n_embd, n_embd, config.eps};
  d.hidden_norm = {nullptr, hidden_width, bundle ? hidden_width : n_embd, config.eps};
  binder.floats(&d.embedding_norm.weight, name("nextn.enorm.weight"), n_embd);
  binder.floats(&d.hidden_norm.weight, name("nextn.hnorm.weight"), hidden_width);
  binder.matrix(&d.project, name("nextn.eh_proj.weight"), 2 * n_embd, n_embd);
  d.embedding = parts.embedding;
  for (const std::string& own :
       {name("nextn.embed_tokens.weight"), std::string("token_embd.weight")}) {
    if (!binder.has(own)) continue;
    d.embedding = bind_embedding(binder, own, n_embd);
    break;
  }
  if (d.embedding.tensor->rows() < static_cast<uint64_t>(parts.config.n_vocab)) {
    binder.wrong_shape(*d.embedding.tensor, fmt::format("[{}, {}]", n_embd, parts.config.n_vocab));
  }
  const std::string head = name("nextn.shared_head_head.weight");
  if (binder.has(head)) {
    binder.matrix(&d.own_output, head, n_embd, parts.config.n_vocab);
  } else if (&binder.file() != parts.sources.trunk.get() && binder.has("output.weight")) {
    binder.matrix(&d.own_output, "output.weight", n_embd, parts.config.n_vocab);
  }
}

std::unique_ptr<Model> finish(std::unique_ptr<Parts> parts, const Binder& trunk) {
  // A draft block that was not asked for is left alone, not forgotten.
  const std::string draft = fmt::format("blk.{}.", parts->config.n_trunk);
  for (const gguf::Tensor* tensor : trunk.unused()) {
    ++parts->n_skipped;
    parts->bytes_skipped += tensor->bytes;
    if (!(parts->config.n_blocks > parts->config.n_trunk && tensor->name.starts_with(draft))) {
      parts->unused.push_back(tensor->name);
    }
  }
  parts->store.conversions().check(*parts->sources.trunk);
  if (!parts->unused.empty()) {
    log::warn("{}: {} tensors are not used by architecture {}, the first is {}",
              parts->sources.trunk->path(), parts->unused.size(), parts->config.architecture,
              parts->unused.front());
  }
  return std::make_unique<Transformer>(std::move(parts));
}

}  // namespace penstock::models
