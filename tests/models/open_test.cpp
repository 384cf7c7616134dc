// Opening: what is refused and why; nothing large is allocated by a hostile number.
#include <gtest/gtest.h>

#include "base/error.h"
#include "gguf/writer.h"
#include "models/harness.h"
#include "models/ngram_block.h"

namespace penstock::testing {
namespace {

struct Refusal {
  ErrorKind kind;
  std::string message;
};

std::optional<Refusal> try_open(const std::string& path, const models::OpenOptions& options = {}) {
  try {
    models::Sources sources;
    sources.trunk = std::make_shared<gguf::Model>(gguf::Model::open(path));
    models::open(sources, options);
  } catch (const Error& error) {
    return Refusal{error.kind(), error.what()};
  }
  return std::nullopt;
}

void expect_refused(const std::string& architecture, const TinyOptions& tiny, ErrorKind kind,
                    const std::string& word) {
  TemporaryFolder folder;
  const std::optional<Refusal> refusal = try_open(write_tiny(folder.path(), architecture, tiny));
  ASSERT_TRUE(refusal) << word;
  EXPECT_EQ(refusal->kind, kind) << refusal->message;
  EXPECT_NE(refusal->message.find(word), std::string::npos) << refusal->message;
}

TinyOptions with_key(const std::string& key, MetadataValue value) {
  TinyOptions tiny;
  tiny.set[key] = std::move(value);
  return tiny;
}

TEST(Open, UnknownArchitectureNamesTheKnownOnes) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/x.gguf";
  gguf::Writer writer(path);
  writer.set_string("general.architecture", "mammoth");
  const std::vector<uint64_t> dims{8};
  writer.add_tensor("a.weight", gguf::TypeId::F32, dims);
  writer.begin();
  writer.append(std::vector<std::byte>(32));
  writer.finish();
  const std::optional<Refusal> refusal = try_open(path);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->kind, ErrorKind::Unsupported);
  EXPECT_NE(refusal->message.find("mammoth"), std::string::npos);
  for (const std::string_view name : models::known_architectures()) {
    EXPECT_NE(refusal->message.find(name), std::string::npos) << name;
  }
}

TEST(Open, HostileNumbers) {
  const std::vector<std::pair<const char*, MetadataValue>> cases = {
      {"block_count", 4000000000u},
      {"block_count", 0u},
      {"nextn_predict_layers", 8u},
      {"embedding_length", 0u},
      {"embedding_length", 4294967295u},
      {"attention.head_count", 0u},
      {"attention.head_count", 4000000000u},
      {"attention.head_count", 3u},
      {"attention.head_count_kv", 0u},
      {"attention.key_length", 0u},
      {"attention.key_length", 12u},
      {"attention.value_length", 16u},
      {"attention.layer_norm_rms_epsilon", -1.0f},
      {"rope.dimension_count", 7u},
      {"rope.dimension_count", 4000u},
      {"rope.freq_base", 0.0f},
      {"rope.freq_base", std::string("fast")},
      {"expert_used_count", 0u},
      {"expert_used_count", 9u},
      {"full_attention_interval", 0u},
      {"ssm.conv_kernel", 0u},
      {"ssm.conv_kernel", 1000u},
      {"ssm.state_size", 0u},
      {"ssm.state_size", 4294967288u},
      {"ssm.group_count", 0u},
      {"ssm.group_count", 4u},
      {"ssm.time_step_rank", 4096u},
      {"ssm.inner_size", 95u},
      {"hyper_connection.count", 1u},
      {"hyper_connection.count", 64u},
      {"hyper_connection.low_rank", 0u},
      {"expert_weights_scale", 2.5f},
      {"attention.compress_ratios", std::vector<int32_t>{4}},
      {"attention.compress_ratios", std::vector<int32_t>{0, 0, 0, 4, 0, 0, 0, -4}},
      {"attention.compress_ratios", std::vector<int32_t>{0, 0, 0, 4, 0, 0, 0, 1000000}},
      {"attention.indexer.top_k", 0u},
      {"attention.indexer.head_count", 1000u},
      {"attention.indexer.key_length", 4u},
      {"ple.layers", std::vector<int32_t>{3}},
      {"ple.layers", std::vector<int32_t>{-1}},
      {"ple.layers", std::vector<int32_t>{1, 2}},
      {"ple.layers", std::vector<int32_t>{2000000000}},
      {"ple.ngram_size", 0u},
      {"ple.heads_per_ngram", 4000000000u},
      {"ple.layer_multipliers", std::vector<uint64_t>{1}},
      {"ple.head_vocab_sizes", std::vector<uint64_t>{0, 1, 1, 1}},
      {"ple.head_vocab_sizes", std::vector<uint64_t>{101, 103, 107, UINT64_MAX}},
      {"ple.head_offsets", std::vector<uint64_t>{0, 101, 204, 320}},
      {"embedding_length_per_layer_input", 4000000000u},
  };
  for (const auto& [key, value] : cases) {
    TemporaryFolder folder;
    const std::optional<Refusal> refusal =
        try_open(write_tiny(folder.path(), "qwen4exp", with_key(key, value)));
    ASSERT_TRUE(refusal) << key;
    EXPECT_EQ(refusal->kind, ErrorKind::Format) << key << ": " << refusal->message;
  }
}

TEST(Open, HarmlessVariantsAreAccepted) {
  for (const auto& [key, value] : std::vector<std::pair<const char*, MetadataValue>>{
           {"expert_weights_scale", 0.0f},
           {"expert_weights_scale", 1.0f},
           {"rope.dimension_sections", std::vector<int32_t>{2, 1, 1}},
           {"attention.recurrent_layers", std::vector<int32_t>{1, 1, 1, 0, 1, 1, 1, 0}},
       }) {
    TemporaryFolder folder;
    EXPECT_FALSE(try_open(write_tiny(folder.path(), "qwen4exp", with_key(key, value)))) << key;
  }
}

TEST(Open, ShapesAreChecked) {
  TinyOptions tiny;
  tiny.shapes["blk.0.ffn_down_exps.weight"] = {48, 64, 8};  // padded rows
  expect_refused("qwen4exp", tiny, ErrorKind::Format, "blk.0.ffn_gate_exps.weight");
  tiny.shapes = {{"blk.2.attn_k.weight", {64, 16}}};
  expect_refused("qwen3moe", tiny, ErrorKind::Format, "blk.2.attn_k.weight");
  tiny.shapes = {{"blk.2.ffn_gate_inp.weight", {64, 7}}};
  expect_refused("qwen3moe", tiny, ErrorKind::Format, "blk.2.ffn_gate_inp.weight");
  tiny.shapes = {{"output.weight", {64, 127}}};
  expect_refused("qwen3moe", tiny, ErrorKind::Format, "output.weight");
  tiny.shapes = {{"per_layer_token_embd.weight", {16, 419}}};
  expect_refused("qwen4exp", tiny, ErrorKind::Format, "per_layer_token_embd.weight");
}

TEST(Open, UnknownEncodingsAreRefused) {
  TinyOptions tiny;
  tiny.extra["blk.1.ffn_down_exps.scale"] = {8};
  expect_refused("qwen3moe", tiny, ErrorKind::Unsupported, "blk.1.ffn_down_exps.weight");
  expect_refused("qwen4exp", with_key(".prism.hadamard.block", 64u), ErrorKind::Unsupported,
                 "prism.hadamard.block");
}

TEST(Open, MissingTensorIsNamed) {
  TinyOptions tiny;
  tiny.remove = {"blk.3.attn_v.weight"};
  expect_refused("qwen35moe", tiny, ErrorKind::Format, "blk.3.attn_v.weight");
}

TEST(Open, RopeScaling) {
  TinyOptions tiny = with_key("rope.scaling.type", std::string("longrope"));
  expect_refused("qwen3moe", tiny, ErrorKind::Unsupported, "longrope");
  tiny = with_key("rope.scaling.type", std::string("yarn"));
  expect_refused("qwen3moe", tiny, ErrorKind::Format, "rope.scaling.factor");
  tiny.set["rope.scaling.factor"] = 4.0f;
  tiny.set["rope.scaling.original_context_length"] = 32u;
  HarnessOptions options;
  options.tiny = tiny;
  Harness scaled("qwen3moe", options);
  Harness plain("qwen3moe");
  EXPECT_FALSE(same_bits(scaled.forward(tiny_tokens(8)), plain.forward(tiny_tokens(8))));
}

TEST(Open, UnusedTensorsAreReported) {
  HarnessOptions options;
  options.tiny.draft = true;
  options.tiny.set["nextn_predict_layers"] = 0u;    // block 8 becomes a trunk block: its extra
  options.tiny.set["attention.recurrent_layers"] =  // tensors are left over
      std::vector<int32_t>{1, 1, 1, 0, 1, 1, 1, 0, 0};
  Harness h("qwen35moe", options);
  const std::vector<std::string>& unused = h.info().unused_tensors;
  EXPECT_EQ(unused.size(), 4u);
  EXPECT_NE(std::find(unused.begin(), unused.end(), "blk.8.nextn.eh_proj.weight"), unused.end());
}

TEST(Open, DraftOnlyWhenAskedForAndThere) {
  HarnessOptions options;
  options.tiny.draft = true;
  Harness without("qwen4exp", options);
  EXPECT_FALSE(without.info().has_draft);
  EXPECT_EQ(without.model().experts().layers.size(), 8u);
  EXPECT_TRUE(without.info().unused_tensors.empty());
  options.open.draft = true;
  Harness with("qwen4exp", options);
  EXPECT_TRUE(with.info().has_draft);
  EXPECT_EQ(with.model().experts().layers.size(), 9u);
  EXPECT_EQ(with.info().n_hidden, 256);
  options.tiny.draft = false;
  Harness absent("qwen4exp", options);
  EXPECT_FALSE(absent.info().has_draft);
}

TEST(Open, ExpertGeometry) {
  for (const bool merged : {false, true}) {
    HarnessOptions options;
    options.tiny.merged_gate_up = merged;
    Harness h("qwen35moe", options);
    const experts::Geometry& g = h.model().experts();
    ASSERT_EQ(g.layers.size(), 8u);
    ASSERT_EQ(g.shards.size(), 1u);
    const experts::LayerGeometry& layer = g.layers[3];
    EXPECT_EQ(layer.layer, 3);
    EXPECT_EQ(layer.n_expert, 8);
    EXPECT_EQ(layer.n_used, 3);
    EXPECT_EQ(layer.merged, merged);
    EXPECT_EQ(layer.gate.bytes, 64u * 4 * 32);
    EXPECT_EQ(layer.gate.stride, merged ? 2 * layer.gate.bytes : layer.gate.bytes);
    if (merged) {
      EXPECT_EQ(layer.up.offset, layer.gate.offset + layer.gate.bytes);
    }
    EXPECT_EQ(layer.down.n_in, 32);
    EXPECT_EQ(layer.down.n_out, 64);
  }
}

TEST(Open, TableInItsOwnFile) {
  TemporaryFolder folder;
  TinyOptions tiny;
  models::Sources sources;
  sources.table = std::make_shared<gguf::Model>(
      gguf::Model::open(write_tiny(folder.path(), "qwen4exp", tiny, "table.gguf")));
  tiny.remove = {"per_layer_token_embd.weight"};
  sources.trunk = std::make_shared<gguf::Model>(
      gguf::Model::open(write_tiny(folder.path(), "qwen4exp", tiny, "trunk.gguf")));
  Harness apart(sources, {});
  ASSERT_NE(apart.model().table(), nullptr);
  EXPECT_EQ(apart.model().table()->n_rows, 424u);
  EXPECT_NE(apart.model().table()->path.find("table.gguf"), std::string::npos);
  Harness together("qwen4exp");
  EXPECT_TRUE(same_bits(apart.forward(tiny_tokens(30)), together.forward(tiny_tokens(30))));
}

// spec/qwen4exp.md §4.1: the check vectors with the released constants, and §10.3's.
TEST(Ngram, RowsOfTheReleasedTable) {
  models::NgramConfig c;
  c.ngram_size = 3;
  c.heads_per_ngram = 8;
  c.eos = 248044;
  c.multipliers = {23703573157769u, 20109073645365u, 8052911324071u};
  c.sizes = {20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
             20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171};
  uint64_t sum = 0;
  for (const uint64_t size : c.sizes) {
    c.offsets.push_back(sum);
    sum += size;
  }
  EXPECT_EQ(sum, 320001446u);
  const std::vector<int32_t> tokens{248045, 846, 198, 248044, 760, 6511};
  const int64_t expected[6][4] = {
      {13981229, 30076798, 173637879, 312970430}, {4908448, 36872991, 170314019, 308659387},
      {4582007, 37691206, 163775156, 317942745},  {16849591, 37537304, 172066454, 306781843},
      {19535898, 36275492, 169296599, 315261947}, {17430990, 28899930, 166290545, 306842449}};
  for (int64_t p = 0; p < 6; ++p) {
    int64_t rows[16];
    models::ngram_rows(c, tokens, p, rows);
    EXPECT_EQ(rows[0], expected[p][0]) << p;
    EXPECT_EQ(rows[1], expected[p][1]) << p;
    EXPECT_EQ(rows[8], expected[p][2]) << p;
    EXPECT_EQ(rows[15], expected[p][3]) << p;
  }
}

TEST(Ngram, RowsOfTheTinyTable) {
  models::NgramConfig c;
  c.ngram_size = 3;
  c.heads_per_ngram = 2;
  c.eos = 5;
  c.multipliers = {40323955908725927u, 35454616657218691u, 55314113489879455u};
  c.sizes = {101, 103, 107, 109};
  c.offsets = {0, 101, 204, 311};
  const std::vector<std::pair<int64_t, std::vector<int64_t>>> expected = {
      {0, {76, 151, 275, 339}},  {1, {87, 139, 272, 366}},  {2, {49, 107, 222, 357}},
      {9, {77, 116, 252, 372}},  {10, {72, 129, 282, 403}}, {11, {29, 186, 243, 337}},
      {23, {35, 125, 271, 351}},
  };
  for (const auto& [position, rows] : expected) {
    std::vector<int64_t> got(4);
    models::ngram_rows(c, tiny_tokens(24), position, got.data());
    EXPECT_EQ(got, rows) << position;
  }
}

}  // namespace
}  // namespace penstock::testing
