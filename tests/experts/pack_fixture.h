// Small models in GGUF with expert banks of known bytes, and packs of them. What a pack must hold
// is read from the GGUF again, by this file's own arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "experts/expert_files.h"
#include "experts/pack_writer.h"
#include "gguf/model.h"
#include "gguf/writer.h"

namespace penstock::experts::test {

using gguf::TypeId;

struct BankSpec {
  int n_expert = 8;
  int n_used = 2;
  uint64_t n_embd = 64;
  uint64_t n_ff = 96;
  TypeId gate = TypeId::Q8_0, up = TypeId::Q8_0, down = TypeId::Q8_0;
  bool merged = false;  // gate and up in one tensor (of one type)
};

inline const std::vector<BankSpec>& mixed_banks() {
  static const std::vector<BankSpec> banks = {
      {},
      {.n_expert = 12, .n_used = 3, .merged = true},
      {.n_expert = 5, .n_ff = 160, .gate = TypeId::Q4_0, .up = TypeId::F16, .down = TypeId::F32}};
  return banks;
}

struct ModelSpec {
  std::vector<BankSpec> banks = mixed_banks();
  uint32_t seed = 1;             // of all bytes
  uint64_t max_shard_bytes = 0;  // 0: one file
  std::string name = "model";
  std::string note = "a model";  // a metadata value
};

inline std::vector<std::byte> random_bytes(std::mt19937& random, uint64_t n) {
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Writes NAME.gguf (or shards) and returns its path, or the first shard's.
inline std::string write_model(const Directory& directory, const ModelSpec& spec = {}) {
  gguf::Writer writer(directory.file(spec.name + ".gguf"),
                      {.max_shard_bytes = spec.max_shard_bytes});
  writer.set_string("general.architecture", "test");
  writer.set_string("general.name", spec.note);
  const std::vector<std::string> words = {"a", "b", "<end>"};
  writer.set_string_array("tokenizer.ggml.tokens", words);
  std::vector<uint64_t> sizes;
  const auto add = [&](const std::string& name, TypeId type, std::vector<uint64_t> dims) {
    writer.add_tensor(name, type, dims);
    uint64_t bytes = gguf::row_bytes(type, dims[0]);
    for (size_t d = 1; d < dims.size(); ++d) bytes *= dims[d];
    sizes.push_back(bytes);
  };
  add("token_embd.weight", TypeId::F32, {64, 100});
  for (size_t l = 0; l < spec.banks.size(); ++l) {
    const BankSpec& b = spec.banks[l];
    const std::string block = "blk." + std::to_string(l) + ".";
    const auto n = static_cast<uint64_t>(b.n_expert);
    add(block + "attn_q.weight", TypeId::Q8_0, {b.n_embd, 64});
    if (b.merged) {
      add(block + "ffn_gate_up_exps.weight", b.gate, {b.n_embd, 2 * b.n_ff, n});
    } else {
      add(block + "ffn_gate_exps.weight", b.gate, {b.n_embd, b.n_ff, n});
      add(block + "ffn_up_exps.weight", b.up, {b.n_embd, b.n_ff, n});
    }
    add(block + "ffn_down_exps.weight", b.down, {b.n_ff, b.n_embd, n});
    add(block + "ffn_gate_inp.weight", TypeId::F32, {b.n_embd, n});
  }
  add("output_norm.weight", TypeId::F32, {64});
  writer.begin();
  std::mt19937 random(spec.seed);
  for (const uint64_t bytes : sizes) writer.append(random_bytes(random, bytes));
  writer.finish();
  return writer.file_names().front();
}

// The experts' places in the model's files.
inline Geometry geometry_of(const gguf::Model& model, const std::vector<BankSpec>& banks) {
  Geometry geometry;
  for (const gguf::Shard& shard : model.shards()) geometry.shards.push_back(shard.path);
  for (size_t l = 0; l < banks.size(); ++l) {
    const BankSpec& b = banks[l];
    const auto matrix = [&](const char* kind, uint64_t n_out, uint64_t first_row) {
      const gguf::Tensor& t =
          model.require("blk." + std::to_string(l) + ".ffn_" + kind + "_exps.weight");
      return MatrixGeometry{t.type,
                            static_cast<int64_t>(t.ne[0]),
                            static_cast<int64_t>(n_out),
                            t.row_bytes,
                            n_out * t.row_bytes,
                            t.shard,
                            t.offset + first_row * t.row_bytes,
                            t.ne[1] * t.row_bytes};
    };
    LayerGeometry layer;
    layer.layer = static_cast<int>(l);
    layer.n_expert = b.n_expert;
    layer.n_used = b.n_used;
    layer.merged = b.merged;
    layer.gate = matrix(b.merged ? "gate_up" : "gate", b.n_ff, 0);
    layer.up = matrix(b.merged ? "gate_up" : "up", b.n_ff, b.merged ? b.n_ff : 0);
    layer.down = matrix("down", b.n_embd, 0);
    geometry.layers.push_back(layer);
  }
  return geometry;
}

inline std::string file_bytes(const std::string& path) {
  return read_text_file(path);
}

// A new file takes the place of the one of that name.
inline void write_bytes(const std::string& path, const std::string& bytes) {
  const std::string beside = path + ".new";
  std::ofstream(beside, std::ios::binary) << bytes;
  std::filesystem::rename(beside, path);
}

// The bytes of one of an expert's matrices in the GGUF.
inline std::string source_matrix(const Geometry& geometry, const MatrixGeometry& m, int expert) {
  const File file = File::open_read(geometry.shards[m.shard]);
  std::string bytes(m.bytes, '\0');
  file.read_at(m.offset + static_cast<uint64_t>(expert) * m.stride,
               std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// A model, opened, and the request that packs it to NAME.xpk beside it.
struct PackBench {
  explicit PackBench(const Directory& directory, const ModelSpec& made = {})
      : spec(made),
        path(write_model(directory, made)),
        model(gguf::Model::open(path)),
        geometry(geometry_of(model, made.banks)),
        out(directory.file(made.name + ".xpk")) {}

  PackRequest request() const {
    PackRequest request;
    request.source = &model;
    request.geometry = geometry;
    request.n_trunk = static_cast<int>(spec.banks.size());
    request.out = out;
    request.tool = "penstock test";
    request.align = 4096;
    request.stream.depth = 3;
    return request;
  }
  PackResult pack() const { return write_pack(request()); }
  std::string partial() const { return out + ".partial"; }

  ModelSpec spec;
  std::string path;
  gguf::Model model;
  Geometry geometry;
  std::string out;
};

template <typename F>
std::string message_of(ErrorKind kind, F&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "\"" << word << "\" is not in: " << text;
  }
}

}  // namespace penstock::experts::test
