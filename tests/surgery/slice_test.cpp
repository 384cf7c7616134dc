#include "surgery/slice.h"

#include <nlohmann/json.hpp>
#include <set>

#include "gguf/raw_gguf.h"
#include "gguf/writer.h"
#include "models/tiny_models.h"
#include "surgery/rewritten.h"

namespace penstock::surgery {
namespace {

using gguf::test::error_of;
using testing::TemporaryFolder;
using testing::TinyOptions;
using testing::write_tiny;

// The bytes of places `kept` along the last dimension.
std::string cut(const gguf::Model& model, const std::string& name,
                const std::vector<uint32_t>& kept) {
  const gguf::Tensor& tensor = model.require(name);
  const std::string all = bytes_of(model, name);
  const size_t one = all.size() / tensor.ne[tensor.n_dims - 1];
  std::string out;
  for (const uint32_t place : kept) out += all.substr(place * one, one);
  return out;
}

bool is_cut(const std::string& name) {
  for (const char* part : {"_exps.", "ffn_gate_inp.", "exp_probs_b"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

std::string raw_value(const gguf::Model& model, std::string_view key) {
  const gguf::Entry* entry = model.metadata().find(key);
  if (entry == nullptr) return "(none)";
  return {reinterpret_cast<const char*>(entry->bytes.data()), entry->bytes.size()};
}

// Every tensor is the source's, cut where it has an expert axis; every key is the source's but for
// those that speak of experts.
void expect_cut(const gguf::Model& source, const gguf::Model& pruned, const KeepMap& map) {
  ASSERT_EQ(pruned.tensors().size(), source.tensors().size());
  for (size_t t = 0; t < source.tensors().size(); ++t) {
    const gguf::Tensor& tensor = source.tensors()[t];
    EXPECT_EQ(pruned.tensors()[t].name, tensor.name);
    EXPECT_EQ(pruned.tensors()[t].type, tensor.type);
    const std::vector<uint32_t>* kept = nullptr;
    for (const KeptLayer& layer : map.layers) {
      if (block_of(tensor.name) == layer.layer && is_cut(tensor.name)) kept = &layer.kept;
    }
    EXPECT_EQ(bytes_of(pruned, tensor.name),
              kept != nullptr ? cut(source, tensor.name, *kept) : bytes_of(source, tensor.name))
        << tensor.name;
  }
  std::set<std::string> keys;
  for (const gguf::Entry& entry : source.metadata().entries()) keys.insert(std::string(entry.key));
  for (const gguf::Entry& entry : pruned.metadata().entries()) keys.insert(std::string(entry.key));
  for (const std::string& key : keys) {
    if (key.starts_with("penstock.") || key.ends_with(".expert_count") ||
        key == "general.size_label" || key.starts_with("split.")) {
      continue;
    }
    EXPECT_EQ(raw_value(pruned, key), raw_value(source, key)) << key;
  }
}

TEST(Slice, CutsWhatHasAnExpertAxisAndNothingElse) {
  const TemporaryFolder folder;
  for (const char* architecture : {"qwen3moe", "qwen35moe", "qwen3next", "qwen4exp"}) {
    TinyOptions options;
    options.matrices = gguf::TypeId::Q8_0;
    options.merged_gate_up = std::string(architecture) == "qwen35moe";
    options.draft = std::string(architecture) == "qwen4exp";
    options.set[".general.name"] = std::string("Tiny");
    options.extra["blk.1.exp_probs_b.bias"] = {architecture == std::string("qwen3next") ? 10u : 8u};
    const auto source =
        gguf::Model::open(write_tiny(folder.path(), architecture, options, "source.gguf"));
    const KeepMap map = map_for(source, {{0, 2, 3, 5, 7}});
    const auto pruned =
        gguf::Model::open(prune_to(source, map, folder.path() + "/" + architecture + ".out.gguf"));
    expect_cut(source, pruned, map);
    const uint64_t n_draft = options.draft ? 8 : 5;
    if (options.draft) {  // full width, and said so
      EXPECT_EQ(pruned.require("blk.8.ffn_down_exps.weight").ne[2], n_draft);
      for (const std::string& key :
           {pruned.arch_key("expert_count"), std::string("penstock.expert_counts")}) {
        EXPECT_EQ(pruned.metadata().get_u64_array(key),
                  (std::vector<uint64_t>{5, 5, 5, 5, 5, 5, 5, 5, 8}));
      }
    } else {
      EXPECT_EQ(pruned.metadata().get_u64(pruned.arch_key("expert_count")), 5u);
      EXPECT_FALSE(pruned.metadata().has("penstock.expert_counts"));
    }
    EXPECT_EQ(pruned.metadata().get_string("penstock.keep_map_id"), hex(keep_map_id(map)));
    EXPECT_EQ(pruned.metadata().get_string("penstock.prune.source_model_id"),
              hex(source.model_id()));
    EXPECT_EQ(pruned.metadata().get_u64_array("penstock.prune.kept.1"),
              (std::vector<uint64_t>{0, 2, 3, 5, 7}));
  }
}

TEST(Slice, ShardsInAndOut) {
  const TemporaryFolder folder;
  TinyOptions options;
  options.matrices = gguf::TypeId::Q8_0;
  const auto source = gguf::Model::open(write_tiny(folder.path(), "qwen3moe", options));
  const KeepMap map = map_for(source, {{1, 2, 6}, {0, 1, 2, 3, 7}});
  RewritePlan plan = copy_plan(source);
  const RewriteResult copied =
      carry_out(plan, folder.path() + "/split.gguf", 2,
                [](RewriteRequest* request) { request->max_shard_bytes = 60000; });
  ASSERT_GT(copied.files.size(), 3u);
  const auto split = gguf::Model::open(copied.files[1]);
  expect_cut(source, split, KeepMap{});
  const std::string whole = prune_to(split, map, folder.path() + "/whole.gguf");
  expect_cut(split, gguf::Model::open(whole), map);
  plan = copy_plan(split);
  apply_keep_map(map, moe_layers(split), "test", &plan);
  const RewriteResult again =
      carry_out(plan, folder.path() + "/again.gguf", 1,
                [](RewriteRequest* request) { request->max_shard_bytes = 50000; });
  ASSERT_GT(again.files.size(), 1u);
  expect_cut(split, gguf::Model::open(again.files.back()), map);
}

TEST(Slice, PruningAgainComposes) {
  const TemporaryFolder folder;
  const auto source = gguf::Model::open(write_tiny(folder.path(), "qwen3moe"));
  const KeepMap first = map_for(source, {{0, 2, 3, 5, 6, 7}});
  const auto once = gguf::Model::open(prune_to(source, first, folder.path() + "/once.gguf"));
  const KeepMap second = map_for(once, {{0, 2, 3, 5}, {1, 3, 4}});
  const auto twice = gguf::Model::open(prune_to(once, second, folder.path() + "/twice.gguf"));
  EXPECT_EQ(twice.metadata().get_u64_array("penstock.prune.kept.0"),
            (std::vector<uint64_t>{0, 3, 5, 7}));
  EXPECT_EQ(twice.metadata().get_u64_array("penstock.prune.kept.1"),
            (std::vector<uint64_t>{2, 5, 6}));
  EXPECT_EQ(twice.metadata().get_u64_array("penstock.prune.original_counts"),
            (std::vector<uint64_t>(4, 8)));
  EXPECT_EQ(bytes_of(twice, "blk.1.ffn_up_exps.weight"),
            cut(source, "blk.1.ffn_up_exps.weight", {2, 5, 6}));
  const auto steps = twice.metadata().get_string_array("penstock.prune.steps");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(nlohmann::json::parse(steps[0])["keep_map_id"], hex(keep_map_id(first)));
  EXPECT_EQ(nlohmann::json::parse(steps[1])["source_model_id"], hex(once.model_id()));
  // Uneven first, then even: the one count is back.
  const auto even =
      gguf::Model::open(prune_to(twice, map_for(twice, {{0, 1, 2}}), folder.path() + "/even.gguf"));
  EXPECT_EQ(even.metadata().get_u64("qwen3moe.expert_count"), 3u);
  EXPECT_FALSE(even.metadata().has("penstock.expert_counts"));
}

// Biases, scales, selection biases and routing groups are of architectures that others run.
TEST(MoeLayout, FindsEveryTensorWithAnExpertAxis) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& extra, std::vector<uint64_t> dims, uint32_t groups) {
    gguf::Writer writer(folder.path() + "/m.gguf");
    writer.set_string("general.architecture", "other");
    writer.set_u32("other.block_count", 3);
    writer.set_u32("other.nextn_predict_layers", 1);
    writer.set_u32("other.expert_used_count", 2);
    if (groups > 1) {
      writer.set_u32("other.expert_group_count", groups);
      writer.set_u32("other.expert_group_used_count", 1);
    }
    const auto add = [&](const std::string& name, std::vector<uint64_t> d) {
      writer.add_tensor(name, gguf::TypeId::F32, d);
    };
    add("blk.0.ffn_up.weight", {4, 8});
    for (const std::string b : {"blk.1.", "blk.2."}) {
      add(b + "ffn_gate_inp.weight", {4, 6});
      add(b + "ffn_gate_inp.bias", {6});
      add(b + "exp_probs_b.bias", {6});
      for (const char* kind : {"gate", "up", "down"}) {
        add(b + "ffn_" + kind + "_exps.weight", {4, 4, 6});
        add(b + "ffn_" + kind + "_exps.bias", {4, 6});
        add(b + "ffn_" + kind + "_exps.scale", {6});
      }
      add(b + "ffn_gate_shexp.weight", {4, 4});
    }
    if (!extra.empty()) add(extra, dims);
    writer.begin();
    const std::vector<std::byte> zeros(writer.total_bytes());
    const auto sizes = [&](size_t n) { writer.append(std::span(zeros).first(n)); };
    sizes(4 * 32);
    for (int b = 0; b < 2; ++b) {
      sizes(96), sizes(24), sizes(24);
      for (int k = 0; k < 3; ++k) sizes(384), sizes(96), sizes(24);
      sizes(64);
    }
    if (!extra.empty()) {
      uint64_t n = 4;
      for (const uint64_t d : dims) n *= d;
      sizes(n);
    }
    writer.finish();
    return gguf::Model::open(folder.path() + "/m.gguf");
  };
  const gguf::Model model = write("", {}, 3);
  const std::vector<MoeLayer> layers = moe_layers(model);
  ASSERT_EQ(layers.size(), 1u);  // block 0 is dense, block 2 a draft block
  EXPECT_EQ(layers[0].layer, 1);
  EXPECT_EQ(layers[0].n_expert, 6u);
  EXPECT_EQ(layers[0].n_used, 2u);
  EXPECT_EQ(layers[0].n_groups, 3u);
  EXPECT_EQ(layers[0].tensors.size(), 12u);
  const KeepMap map = map_for(model, {{0, 1, 4, 5}});
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { check_keep_map(map, "m", layers, nullptr); }),
                  "groups");

  const gguf::Model free = write("", {}, 1);
  const auto pruned = gguf::Model::open(prune_to(free, map, folder.path() + "/p.gguf"));
  EXPECT_EQ(pruned.require("blk.1.ffn_up_exps.bias").ne[1], 4u);
  EXPECT_EQ(pruned.require("blk.1.ffn_up_exps.scale").ne[0], 4u);
  EXPECT_EQ(pruned.require("blk.1.exp_probs_b.bias").ne[0], 4u);
  EXPECT_EQ(pruned.require("blk.2.exp_probs_b.bias").ne[0], 6u);
  EXPECT_EQ(pruned.require("blk.1.ffn_gate_shexp.weight").ne[1], 4u);
  EXPECT_EQ(pruned.metadata().get_u64_array("penstock.expert_counts"),
            (std::vector<uint64_t>{0, 4, 6}));

  const auto message = [&](const std::string& extra, const std::vector<uint64_t>& dims,
                           ErrorKind kind) {
    const gguf::Model with = write(extra, dims, 1);
    return error_of(kind, [&] { moe_layers(with); });
  };
  EXPECT_CONTAINS(message("blk.1.ffn_up_chexps.weight", {4, 4, 6}, ErrorKind::Unsupported),
                  "blk.1.ffn_up_chexps.weight");
  EXPECT_CONTAINS(message("blk.1.ffn_gate_up_exps.weight", {4, 8, 5}, ErrorKind::Format),
                  "block 1 has 6 experts");
  EXPECT_CONTAINS(message("blk.0.ffn_gate_inp.weight", {4, 6}, ErrorKind::Format),
                  "no ffn_down_exps");
}

TEST(Slice, SizeLabels) {
  const std::vector<uint64_t> flash = {176943899520, 125743653760};
  const auto label = [&](const std::string& text, uint64_t removed, uint64_t n = 0) {
    return pruned_size_label(text, flash, removed, n);
  };
  // 48 layers lose 256 experts of 4,915,200 weights each, and their router rows.
  EXPECT_EQ(label("126B-A6B", 60429434880), "65B-A6B");
  EXPECT_EQ(label("125B-A6B", 60429434880), "65B-A6B");  // rounds to no exact count: taken as told
  EXPECT_EQ(label("177B", 60429434880), "117B");
  EXPECT_EQ(label("128x8B", 1000, 64), "64x8B");
  EXPECT_EQ(label("128x8B", 1000, 0), "");
  EXPECT_EQ(pruned_size_label("1.5B-A0.3B", {}, 700000000, 8), "800M-A0.3B");
  EXPECT_EQ(pruned_size_label("30B-A3B", {}, 24000000000, 8), "6B-A3B");
  EXPECT_EQ(pruned_size_label("30B-A3B", {}, 23700000000, 8), "6.3B-A3B");
  EXPECT_EQ(pruned_size_label("297.66K", std::vector<uint64_t>{297664}, 147664, 4), "150K");
  for (const char* text : {"", "large", "30", "30Bx", "x8B", "-3B", "30B-turbo"}) {
    EXPECT_EQ(pruned_size_label(text, {}, 1, 4), "") << text;
  }
  const TemporaryFolder folder;
  TinyOptions options;
  options.set[".general.size_label"] = std::string("298K-A0.2M");
  const auto source = gguf::Model::open(write_tiny(folder.path(), "qwen3moe", options));
  const auto pruned = gguf::Model::open(
      prune_to(source, map_for(source, {{0, 1, 2, 3}}), folder.path() + "/p.gguf"));
  // 4 layers x 4 experts x 3 x 2048 weights, and 64 per router row.
  EXPECT_EQ(pruned.metadata().get_string("general.size_label"), "198K-A0.2M");
  // One count cannot be told of layers that differ.
  options.set[".general.size_label"] = std::string("8x0.1M");
  const auto times = gguf::Model::open(write_tiny(folder.path(), "qwen3moe", options, "x.gguf"));
  const auto even = gguf::Model::open(
      prune_to(times, map_for(times, {{0, 1, 2, 3}}), folder.path() + "/even.gguf"));
  EXPECT_EQ(even.metadata().get_string("general.size_label"), "4x0.1M");
  const auto uneven = gguf::Model::open(
      prune_to(times, map_for(times, {{0, 1, 2, 3}, {4, 5, 6}}), folder.path() + "/uneven.gguf"));
  EXPECT_FALSE(uneven.metadata().has("general.size_label"));
}

TEST(Slice, ImportanceFollowsTheExperts) {
  KeepMap map;
  map.layers = {{0, 4, {1, 3}}, {1, 4, {0, 2}}};
  Imatrix imatrix;
  imatrix.n_chunks = 3;
  imatrix.tensors["blk.0.ffn_down_exps.weight"] = {2, {0, 1, 10, 11, 20, 21, 30, 31}, {5, 6, 7, 8}};
  imatrix.tensors["blk.0.attn_q.weight"] = {2, {1, 2}, {9}};
  imatrix.tensors["blk.2.ffn_down_exps.weight"] = {1, {1, 2, 3, 4}, {1, 1, 1, 1}};  // a draft block
  const Imatrix out = slice_imatrix(imatrix, map);
  EXPECT_EQ(out.n_chunks, 3u);
  const Importance& down = out.tensors.at("blk.0.ffn_down_exps.weight");
  EXPECT_EQ(down.sums, (std::vector<float>{10, 11, 30, 31}));
  EXPECT_EQ(down.counts, (std::vector<float>{6, 8}));
  EXPECT_EQ(down.n_in, 2);
  EXPECT_EQ(out.tensors.at("blk.0.attn_q.weight").sums, (std::vector<float>{1, 2}));
  EXPECT_EQ(out.tensors.at("blk.2.ffn_down_exps.weight").n_mat(), 4u);
  map.layers[0].n_expert = 5;
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { slice_imatrix(imatrix, map); }),
                  "blk.0.ffn_down_exps.weight");
}

TEST(Slice, ProfilesFollowTheExperts) {
  KeepMap map;
  map.model_id.fill(3);
  map.layers = {{0, 4, {1, 3}}, {2, 4, {0, 1, 2}}};
  experts::Profile profile;
  profile.model_id = map.model_id;
  profile.n_tokens = 77;
  profile.windows = {1, 2};
  profile.layers = {{0, {1, 2, 3, 4}, {5, 6, 7, 8}},
                    {2, {9, 8, 7, 6}, {0, 0, 1, 0}},
                    {3, {1, 1, 1, 1}, {2, 2, 2, 2}}};  // a draft block
  Sha256 id{};
  id.fill(9);
  const experts::Profile out = slice_profile(profile, "p", map, id);
  EXPECT_EQ(out.model_id, id);
  EXPECT_EQ(out.keep_map_id, hex(keep_map_id(map)));
  EXPECT_EQ(out.n_tokens, 77u);
  EXPECT_EQ(out.windows, profile.windows);
  EXPECT_EQ(out.layers[0].decode, (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(out.layers[0].prompt, (std::vector<uint64_t>{6, 8}));
  EXPECT_EQ(out.layers[1].decode, (std::vector<uint64_t>{9, 8, 7}));
  EXPECT_EQ(out.layers[2].decode.size(), 4u);
  const auto message = [&](const experts::Profile& from) {
    return error_of(ErrorKind::Format, [&] { slice_profile(from, "p.json", map, id); });
  };
  experts::Profile other = profile;
  other.model_id.fill(4);
  EXPECT_CONTAINS(message(other), "another model");
  other = profile;
  other.layers[1].decode.push_back(1);
  EXPECT_CONTAINS(message(other), "layer 2 with 5");
  other = profile;
  other.layers.resize(1);
  EXPECT_CONTAINS(message(other), "1 where the keep-map has 2");
}

// Of the model before it was pruned, once and twice: by the ids that the file records.
TEST(SliceStats, FollowTheExpertsThroughThePrunings) {
  const TemporaryFolder folder;
  TinyOptions options;
  options.n_expert = 16;
  const gguf::Model source = gguf::Model::open(write_tiny(folder.path(), "qwen3moe", options));
  const gguf::Model once = gguf::Model::open(prune_to(
      source, map_for(source, {{1, 2, 5, 8, 9, 11, 14, 15}}), folder.path() + "/once.gguf"));
  const gguf::Model twice = gguf::Model::open(
      prune_to(once, map_for(once, {{0, 3, 4, 7}, {1, 2, 3, 6}}), folder.path() + "/twice.gguf"));
  ExpertStats stats;
  for (const MoeLayer& layer : moe_layers(source)) {
    LayerStats of{layer.layer, static_cast<int>(layer.n_used), {}};
    for (uint64_t e = 0; e < layer.n_expert; ++e) {
      ExpertSums sums;
      sums.n = 100 * static_cast<uint64_t>(layer.layer) + e;
      of.experts.push_back(sums);
    }
    stats.layers.push_back(of);
  }
  const auto ids = [](const LayerStats& layer) {
    std::vector<uint64_t> out;
    for (const ExpertSums& sums : layer.experts) {
      out.push_back(sums.n - 100 * static_cast<uint64_t>(layer.layer));
    }
    return out;
  };
  const auto first = slice_stats(stats, once, moe_layers(once));
  ASSERT_TRUE(first);
  EXPECT_EQ(ids(first->layers[1]), (std::vector<uint64_t>{1, 2, 5, 8, 9, 11, 14, 15}));
  const auto second = slice_stats(stats, twice, moe_layers(twice));
  ASSERT_TRUE(second);
  EXPECT_EQ(ids(second->layers[0]), (std::vector<uint64_t>{1, 8, 9, 15}));
  EXPECT_EQ(ids(second->layers[1]), (std::vector<uint64_t>{2, 5, 8, 14}));
  // Of no model that it was pruned from.
  EXPECT_FALSE(slice_stats(stats, source, moe_layers(source)));
  EXPECT_FALSE(slice_stats(*first, twice, moe_layers(twice)));
  stats.layers.pop_back();
  EXPECT_FALSE(slice_stats(stats, once, moe_layers(once)));
}

}  // namespace
}  // namespace penstock::surgery
