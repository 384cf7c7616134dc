#include "surgery/inspect.h"

#include <gtest/gtest.h>

#include "gguf/raw_gguf.h"

namespace penstock::surgery {
namespace {

using gguf::TypeId;
using gguf::test::RawGguf;

// Adds a tensor with zero data behind the last one.
void add(RawGguf* file, const std::string& name, std::vector<uint64_t> dims, TypeId type) {
  uint64_t bytes = gguf::row_bytes(type, dims[0]);
  for (size_t d = 1; d < dims.size(); ++d) bytes *= dims[d];
  file->tensors.push_back({name, std::move(dims), static_cast<uint32_t>(type), file->data.size()});
  file->data.resize((file->data.size() + bytes + 31) / 32 * 32, '\0');
}

// Three layers: two alike, the third with a larger down projection; then a draft block.
RawGguf small_moe() {
  RawGguf file;
  file.string("general.architecture", "qwen4exp");
  file.u32("qwen4exp.block_count", 4);
  file.u32("qwen4exp.nextn_predict_layers", 1);
  file.u32("qwen4exp.expert_used_count", 2);
  add(&file, "token_embd.weight", {64, 10}, TypeId::Q8_0);
  add(&file, "output.weight", {64, 10}, TypeId::Q8_0);
  add(&file, "per_layer_token_embd.weight", {32, 100}, TypeId::IQ4_NL);
  for (int layer = 0; layer < 4; ++layer) {
    const std::string blk = fmt::format("blk.{}.", layer);
    add(&file, blk + "ffn_gate_inp.weight", {64, 8}, TypeId::F32);
    add(&file, blk + "ffn_gate_exps.weight", {64, 32, 8}, TypeId::Q2_0);
    add(&file, blk + "ffn_up_exps.weight", {64, 32, 8}, TypeId::Q2_0);
    add(&file, blk + "ffn_down_exps.weight", {32, 64, 8},
        layer == 2 ? TypeId::Q8_0 : TypeId::IQ4_NL);
    add(&file, blk + "hc_attn_norm.weight", {256}, TypeId::F32);
    add(&file, blk + "ffn_up_shexp.weight", {64, 32}, TypeId::Q8_0);
    if (layer == 1) {
      add(&file, blk + "attn_q.weight", {64, 64}, TypeId::Q8_0);
      add(&file, blk + "attn_q_norm.weight", {16}, TypeId::F32);
      add(&file, blk + "indexer.q_proj.weight", {64, 16}, TypeId::BF16);
    } else {
      add(&file, blk + "attn_qkv.weight", {64, 96}, TypeId::Q8_0);
      add(&file, blk + "ssm_a", {4}, TypeId::F32);
    }
  }
  return file;
}

Inspection inspect_bytes(const std::string& bytes, quant::Isa isa = quant::Isa::Scalar) {
  gguf::OpenOptions open;
  open.allow_missing_experts = true;
  const gguf::Model model = gguf::test::open_bytes(bytes, open);
  return inspect(model, {.known_architectures = {"qwen4exp", "qwen3moe"}, .isa = isa});
}

std::string blockers(const Inspection& report) {
  std::string out;
  for (const Issue& issue : report.issues) {
    if (issue.blocks) out += issue.text + "\n";
  }
  return out;
}

TEST(Inspect, RolesAndTotals) {
  const std::string bytes = small_moe().build();
  const gguf::Model model = gguf::test::open_bytes(bytes);
  const Inspection report = inspect_bytes(bytes);
  EXPECT_TRUE(report.runs()) << blockers(report);
  EXPECT_EQ(report.architecture, "qwen4exp");
  EXPECT_EQ(report.n_layer, 4);
  EXPECT_EQ(report.n_draft, 1);
  const auto role = [&](const char* name) {
    return report.tensor_roles[static_cast<size_t>(model.find(name) - model.tensors().data())];
  };
  EXPECT_EQ(role("token_embd.weight"), Role::Embedding);
  EXPECT_EQ(role("output.weight"), Role::Head);
  EXPECT_EQ(role("per_layer_token_embd.weight"), Role::NgramTable);
  EXPECT_EQ(role("blk.0.ffn_gate_inp.weight"), Role::Router);
  EXPECT_EQ(role("blk.0.ffn_gate_exps.weight"), Role::ExpertGate);
  EXPECT_EQ(role("blk.2.ffn_down_exps.weight"), Role::ExpertDown);
  EXPECT_EQ(role("blk.0.ffn_up_shexp.weight"), Role::SharedExpert);
  EXPECT_EQ(role("blk.0.hc_attn_norm.weight"), Role::HyperConnection);
  EXPECT_EQ(role("blk.0.attn_qkv.weight"), Role::DeltaNet);
  EXPECT_EQ(role("blk.1.attn_q.weight"), Role::Attention);
  EXPECT_EQ(role("blk.1.attn_q_norm.weight"), Role::Norm);
  EXPECT_EQ(role("blk.1.indexer.q_proj.weight"), Role::Indexer);
  EXPECT_EQ(role("blk.3.ffn_up_exps.weight"), Role::DraftBlock);

  EXPECT_EQ(report.ngram_bytes, 100u * 18);
  EXPECT_EQ(report.dense_bytes + report.expert_bytes + report.ngram_bytes + report.draft_bytes,
            report.tensor_bytes);
  uint64_t by_type = 0;
  for (const TypeTotal& type : report.types) by_type += type.bytes;
  EXPECT_EQ(by_type, report.tensor_bytes);
  uint64_t by_role = 0;
  for (const RoleTotal& total : report.roles) by_role += total.bytes;
  EXPECT_EQ(by_role, report.tensor_bytes);
  const auto q2_0 = std::find_if(report.types.begin(), report.types.end(),
                                 [](const TypeTotal& t) { return t.type == TypeId::Q2_0; });
  ASSERT_NE(q2_0, report.types.end());
  EXPECT_EQ(q2_0->tensors, 8u);
  EXPECT_EQ(q2_0->bits_per_weight(), 2.25);
}

TEST(Inspect, ExpertClasses) {
  const Inspection report = inspect_bytes(small_moe().build());
  ASSERT_EQ(report.experts.size(), 2u);
  const ExpertClass& first = report.experts[0];
  EXPECT_EQ(first.layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(first.layer_text(), "0-1");
  EXPECT_EQ(first.n_expert, 8u);
  EXPECT_EQ(first.n_used, 2u);
  EXPECT_EQ(first.n_embd, 64u);
  EXPECT_EQ(first.n_ff, 32u);
  EXPECT_EQ(first.expert_bytes, 2u * 32 * 18 + 64u * 18);
  EXPECT_EQ(report.experts[1].layer_text(), "2");
  EXPECT_EQ(report.experts[1].expert_bytes, 2u * 32 * 18 + 64u * 34);
  EXPECT_EQ(report.expert_bytes_per_token,
            2 * (2 * first.expert_bytes + report.experts[1].expert_bytes));
  EXPECT_EQ(report.expert_bytes, first.total_bytes + report.experts[1].total_bytes);
  ExpertClass spread;
  spread.layers = {0, 2, 3, 4, 9};
  EXPECT_EQ(spread.layer_text(), "0, 2-4, 9");
}

TEST(Inspect, MergedGateAndUp) {
  RawGguf file;
  file.string("general.architecture", "qwen4exp");
  file.u32("qwen4exp.block_count", 1);
  file.array("qwen4exp.expert_used_count", 5, 1, gguf::test::pod<int32_t>(3));
  add(&file, "blk.0.ffn_gate_up_exps.weight", {64, 64, 8}, TypeId::Q2_0);
  add(&file, "blk.0.ffn_down_exps.weight", {32, 64, 8}, TypeId::IQ4_NL);
  const Inspection report = inspect_bytes(file.build());
  ASSERT_EQ(report.experts.size(), 1u);
  EXPECT_TRUE(report.experts[0].merged);
  EXPECT_EQ(report.experts[0].n_ff, 32u);
  EXPECT_EQ(report.experts[0].n_used, 3u);
  EXPECT_EQ(report.experts[0].expert_bytes, 64u * 18 + 64u * 18);
  EXPECT_TRUE(report.runs()) << blockers(report);
}

TEST(Inspect, WhatCannotRunIsNamed) {
  RawGguf file = small_moe();
  file.pairs[0].second = gguf::test::pod<uint32_t>(8) + gguf::test::text("gemma9");
  EXPECT_CONTAINS(blockers(inspect_bytes(file.build())), "architecture gemma9 is not known");

  file = small_moe();
  file.pairs.erase(file.pairs.begin());
  EXPECT_CONTAINS(blockers(inspect_bytes(file.build())), "general.architecture is missing");

  file = small_moe();
  add(&file, "blk.0.ffn_up_exps.scale", {8}, TypeId::F32);
  EXPECT_CONTAINS(blockers(inspect_bytes(file.build())),
                  "1 scale companions of NVFP4 weights (first blk.0.ffn_up_exps.scale)");

  file = small_moe();
  add(&file, "blk.0.attn_qkv.weight.scale", {8}, TypeId::F32);
  EXPECT_CONTAINS(blockers(inspect_bytes(file.build())), "scale companions");

  file = small_moe();
  file.u32("prism.hadamard.block", 1024);
  EXPECT_CONTAINS(blockers(inspect_bytes(file.build())), "key prism.hadamard.block");

  file = small_moe();
  add(&file, "blk.0.ffn_gate.7.weight", {64, 32}, TypeId::Q8_0);
  EXPECT_CONTAINS(blockers(inspect_bytes(file.build())), "tensors of single experts");

  file = small_moe();
  add(&file, "blk.0.attn_x.weight", {64, 32}, TypeId::I32);
  EXPECT_CONTAINS(blockers(inspect_bytes(file.build())), "type I32 (1 tensor, first blk.0.attn_x");
}

TEST(Inspect, ExpertLayoutsThatCannotRun) {
  const auto with_down = [](std::vector<uint64_t> dims) {
    RawGguf file;
    file.string("general.architecture", "qwen4exp");
    add(&file, "blk.0.ffn_gate_inp.weight", {64, 8}, TypeId::F32);
    add(&file, "blk.0.ffn_gate_exps.weight", {64, 32, 8}, TypeId::Q2_0);
    add(&file, "blk.0.ffn_up_exps.weight", {64, 32, 8}, TypeId::Q2_0);
    add(&file, "blk.0.ffn_down_exps.weight", std::move(dims), TypeId::Q8_0);
    return file;
  };
  EXPECT_TRUE(inspect_bytes(with_down({32, 64, 8}).build()).runs());
  EXPECT_CONTAINS(blockers(inspect_bytes(with_down({64, 64, 8}).build())),
                  "rows of 64 for an expert width of 32");
  EXPECT_CONTAINS(blockers(inspect_bytes(with_down({32, 64, 6}).build())),
                  "has 6 experts, but the router of layer 0 chooses among 8");
  RawGguf lonely;
  lonely.string("general.architecture", "qwen4exp");
  add(&lonely, "blk.0.ffn_down_exps.weight", {32, 64, 8}, TypeId::Q8_0);
  EXPECT_CONTAINS(blockers(inspect_bytes(lonely.build())), "but not its gate and up experts");
  RawGguf cut = with_down({32, 64, 8});
  cut.data.resize(cut.data.size() - 1000);
  EXPECT_CONTAINS(blockers(inspect_bytes(cut.build())), "before the data of 1 expert tensors");
}

TEST(Inspect, ScalarKernelsAreToldOnlyWhereOthersExist) {
  RawGguf file = small_moe();
  const auto slow = [&](quant::Isa isa) {
    std::string out;
    for (const Issue& issue : inspect_bytes(file.build(), isa).issues) {
      if (!issue.blocks) out += issue.text + "\n";
    }
    return out;
  };
  EXPECT_EQ(slow(quant::Isa::Scalar), "");
  // The report must agree with the kernel table, whatever that has today.
  for (const TypeId type : {TypeId::Q2_0, TypeId::IQ4_NL, TypeId::Q8_0}) {
    const bool told = slow(quant::Isa::Avx2).find(gguf::type_name(type)) != std::string::npos;
    EXPECT_EQ(told, !quant::has_native_kernel(type, quant::Isa::Avx2)) << gguf::type_name(type);
  }
}

TEST(Inspect, ValueText) {
  RawGguf file;
  file.string("s", "two\nlines \"x\"");
  file.string("long", std::string(200, 'x'));
  file.pair("f", 6, gguf::test::pod(1e-6f));
  file.pair("b", 7, "\x01");
  file.pair("u", 10, gguf::test::pod(~uint64_t{0}));
  file.i32("i", -4);
  std::string numbers;
  for (int i = 0; i < 100; ++i) numbers += gguf::test::pod(i);
  file.array("a", 5, 100, numbers);
  file.array("t", 8, 2, gguf::test::text("x") + gguf::test::text("y"));
  const std::string bytes = file.build();
  const gguf::Model model = gguf::test::open_bytes(bytes);
  const auto text = [&](const char* key) {
    return value_text(model.metadata(), *model.metadata().find(key));
  };
  EXPECT_EQ(text("s"), "\"two\\nlines \\\"x\\\"\"");
  EXPECT_EQ(text("long"), "\"" + std::string(100, 'x') + "...\" (200 bytes)");
  EXPECT_EQ(text("f"), "1e-06");
  EXPECT_EQ(text("b"), "true");
  EXPECT_EQ(text("u"), "18446744073709551615");
  EXPECT_EQ(text("i"), "-4");
  EXPECT_EQ(text("a"), "[0, 1, 2, 3, 4, 5, ... 100 in all]");
  EXPECT_EQ(text("t"), "[\"x\", \"y\"]");
}

}  // namespace
}  // namespace penstock::surgery
