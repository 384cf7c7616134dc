// Dense matrices held in another type: exactly the logits of the same model written to a file with
// these tensors in that type; what is planned is what is made.
#include "models/dense_convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "gguf/writer.h"
#include "models/harness.h"
#include "quant/codec.h"

namespace penstock::testing {
namespace {

using gguf::TypeId;
using models::ConvertRule;

std::shared_ptr<const gguf::Model> open_file(const std::string& path) {
  return std::make_shared<gguf::Model>(gguf::Model::open(path));
}

// Another file with the tensors that match in the rule's type.
void write_converted(const gguf::Model& from, const std::string& to, const ConvertRule& rule) {
  gguf::Writer writer(to);
  for (const gguf::Entry& entry : from.metadata().entries()) writer.set_copy(entry);
  const auto type_of = [&](const gguf::Tensor& t) {
    return models::glob_matches(rule.pattern, t.name) ? rule.type : t.type;
  };
  for (const gguf::Tensor& t : from.tensors()) {
    writer.add_tensor(t.name, type_of(t), std::span(t.ne).first(t.n_dims));
  }
  writer.begin();
  for (const gguf::Tensor& t : from.tensors()) {
    if (type_of(t) == t.type) {
      writer.append(from.bytes(t));
      continue;
    }
    std::vector<float> row(t.ne[0]);
    std::vector<std::byte> out(gguf::row_bytes(rule.type, t.ne[0]));
    for (uint64_t r = 0; r < t.rows(); ++r) {
      quant::decode_row(t.type, from.data(t) + r * t.row_bytes, row.data(),
                        static_cast<int64_t>(row.size()));
      quant::encode_row(rule.type, row.data(), out.data(), static_cast<int64_t>(row.size()),
                        nullptr);
      writer.append(out);
    }
  }
  writer.finish();
}

Harness harness(const std::shared_ptr<const gguf::Model>& file, HarnessOptions options,
                std::vector<ConvertRule> rules) {
  options.open.convert = std::move(rules);
  return Harness({.trunk = file, .draft = nullptr, .table = nullptr}, options);
}

std::string refusal(const gguf::Model& file, const std::vector<ConvertRule>& rules) {
  try {
    models::open({.trunk = open_file(file.path()), .draft = nullptr, .table = nullptr},
                 {.convert = rules});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Usage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
  }
}

TEST(DenseConvert, Globs) {
  EXPECT_TRUE(models::glob_matches("*", ""));
  EXPECT_TRUE(models::glob_matches("*", "output.weight"));
  EXPECT_TRUE(models::glob_matches("blk.*.attn_?.weight", "blk.12.attn_q.weight"));
  EXPECT_FALSE(models::glob_matches("blk.*.attn_?.weight", "blk.12.attn_qkv.weight"));
  EXPECT_TRUE(models::glob_matches("*attn*q*", "blk.0.attn_k_attn_q.weight"));
  EXPECT_TRUE(models::glob_matches("**.weight", "a.weight"));
  EXPECT_FALSE(models::glob_matches("output", "output.weight"));
  EXPECT_FALSE(models::glob_matches("?", ""));
  EXPECT_FALSE(models::glob_matches("", "a"));
}

TEST(DenseConvert, RulesAreParsed) {
  const ConvertRule rule = models::parse_convert_rule("blk.?.x=*=q8_0");
  EXPECT_EQ(rule.pattern, "blk.?.x=*");
  EXPECT_EQ(rule.type, TypeId::Q8_0);
  for (const char* bad : {"", "=Q8_0", "output.weight", "output.weight=", "*=Q9", "*=IQ1_S"}) {
    EXPECT_THROW(models::parse_convert_rule(bad), Error) << bad;
  }
}

TEST(DenseConvert, GivesTheBitsOfAFileInThatType) {
  TemporaryFolder folder;
  const std::vector<int32_t> tokens = tiny_tokens(24);
  for (const char* architecture : {"qwen3moe", "qwen35moe", "qwen3next", "qwen4exp"}) {
    const auto file = open_file(write_tiny(folder.path(), architecture));
    const auto plain = harness(file, {}, {}).forward(tokens);
    for (const auto& [pattern, type] :
         std::vector<std::pair<const char*, TypeId>>{{"output.weight", TypeId::BF16},
                                                     {"blk.*.ffn_gate_shexp.weight", TypeId::Q8_0},
                                                     {"blk.*.attn_output.weight", TypeId::Q4_0},
                                                     {"blk.*.attn_?.weight", TypeId::Q8_0}}) {
      const ConvertRule rule{pattern, type};
      const bool shared = rule.pattern.find("shexp") != std::string::npos;
      if (shared && std::string(architecture) == "qwen3moe") continue;  // it has none
      const std::string path = folder.path() + "/converted.gguf";
      write_converted(*file, path, rule);
      const auto other = open_file(path);
      for (const quant::Precision precision : {quant::Precision::Exact, quant::Precision::Fast}) {
        HarnessOptions options;
        options.open.precision = precision;
        options.threads = 2;
        const auto expected = harness(other, options, {}).forward(tokens);
        EXPECT_FALSE(same_bits(expected, plain)) << architecture << ' ' << pattern;
        for (const models::DenseMode mode : {models::DenseMode::Copy, models::DenseMode::Map}) {
          options.dense = mode;
          Harness converted = harness(file, options, {rule});
          EXPECT_TRUE(same_bits(converted.forward(tokens), expected))
              << architecture << ' ' << pattern;
          EXPECT_GT(converted.model().dense().tensors_converted(), 0u);
        }
      }
    }
  }
}

// More rows than one piece of a read holds.
TEST(DenseConvert, LargeTensorsAreConvertedInPieces) {
  constexpr uint64_t kVocab = 20000;
  TemporaryFolder folder;
  TinyOptions tiny;
  tiny.shapes = {{"token_embd.weight", {64, kVocab}}, {"output.weight", {64, kVocab}}};
  const auto file = open_file(write_tiny(folder.path(), "qwen3moe", tiny));
  ASSERT_GT(file->require("output.weight").bytes, uint64_t{4} << 20);
  const ConvertRule rule{"output.weight", TypeId::Q5_1};
  write_converted(*file, folder.path() + "/converted.gguf", rule);
  const auto other = open_file(folder.path() + "/converted.gguf");
  HarnessOptions options;
  options.threads = 3;
  Harness converted = harness(file, options, {rule});
  EXPECT_TRUE(same_bits(converted.forward(tiny_tokens(3)),
                        harness(other, options, {}).forward(tiny_tokens(3))));
}

TEST(DenseConvert, ThePlanHasTheConvertedSize) {
  TemporaryFolder folder;
  const auto file = open_file(write_tiny(folder.path(), "qwen35moe"));
  const models::StateOptions state{.n_ctx = 64, .kv = models::KvType::F16};
  const ConvertRule rule{"blk.*.attn_*.weight", TypeId::Q8_0};
  for (const models::DenseMode mode : {models::DenseMode::Copy, models::DenseMode::Map}) {
    HarnessOptions options;
    options.dense = mode;
    uint64_t plain = 0;
    for (const bool convert : {false, true}) {
      Harness h = harness(file, options, convert ? std::vector{rule} : std::vector<ConvertRule>{});
      const models::MemoryNeeds needs = h.model().needs(state, 16);
      const models::DenseReport report = h.model().dense();
      const uint64_t planned = mode == models::DenseMode::Map ? needs.dense_mapped : needs.dense;
      EXPECT_EQ(planned, report.bytes_pages);
      EXPECT_GE(report.bytes_pages, report.bytes_live);
      if (!convert) {
        plain = planned;
        EXPECT_EQ(report.bytes_converted(), 0u);
        continue;
      }
      ASSERT_EQ(report.converted.size(), 1u);
      const models::ConvertedTensors& c = report.converted[0];
      EXPECT_EQ(c.bytes_from * 34, c.bytes_to * 128);
      EXPECT_EQ(c.bytes_from, report.bytes_converted());
      EXPECT_LT(planned, plain);
    }
  }
}

TEST(DenseConvert, TheTypeATensorHasAlreadyChangesNothing) {
  TemporaryFolder folder;
  const auto file = open_file(write_tiny(folder.path(), "qwen3moe", {.matrices = TypeId::Q8_0}));
  Harness plain = harness(file, {}, {});
  Harness same = harness(file, {}, {{"blk.*.attn_*", TypeId::Q8_0}});
  const models::DenseReport report = same.model().dense();
  EXPECT_EQ(report.tensors_converted(), 0u);
  EXPECT_EQ(report.converted.at(0).unchanged, 16u);
  EXPECT_EQ(report.bytes_pages, plain.model().dense().bytes_pages);
  EXPECT_TRUE(same_bits(same.forward(tiny_tokens(9)), plain.forward(tiny_tokens(9))));
}

TEST(DenseConvert, TheLastRuleThatMatchesCounts) {
  TemporaryFolder folder;
  const auto file = open_file(write_tiny(folder.path(), "qwen3moe"));
  Harness h = harness(file, {},
                      {{"blk.*.attn_*", TypeId::Q4_0},
                       {"blk.0.attn_q.weight", TypeId::F32},
                       {"blk.1.attn_q.weight", TypeId::F16}});
  const models::DenseReport report = h.model().dense();
  EXPECT_EQ(report.converted.at(0).tensors, 14u);
  EXPECT_EQ(report.converted.at(1).tensors, 0u);
  EXPECT_EQ(report.converted.at(1).unchanged, 1u);
  EXPECT_EQ(report.converted.at(2).tensors, 1u);
}

TEST(DenseConvert, WhatCannotBeConvertedIsNamed) {
  TemporaryFolder folder;
  const auto file = open_file(write_tiny(folder.path(), "qwen4exp"));
  expect_words(refusal(*file, {{"nothing.*", TypeId::Q8_0}}), {"nothing.*=Q8_0", file->path()});
  expect_words(refusal(*file, {{"token_embd.weight", TypeId::Q8_0}}), {"token_embd.weight"});
  expect_words(refusal(*file, {{"*.ffn_gate_inp.weight", TypeId::Q8_0}}), {"routers"});
  expect_words(refusal(*file, {{"*_exps.weight", TypeId::Q8_0}}), {"experts"});
  expect_words(refusal(*file, {{"*_norm.weight", TypeId::F16}}), {"vectors"});
  // 16 elements in a row
  expect_words(refusal(*file, {{"*", TypeId::Q8_0}}), {"up.weight", "16", "32"});
  expect_words(refusal(*file, {{"blk.3.attn_output.weight", TypeId::Q4_K}}),
               {"blk.3.attn_output.weight", "128", "256"});
  const auto next = open_file(write_tiny(folder.path(), "qwen3next", {.legacy_input = true}));
  expect_words(refusal(*next, {{"blk.*.ssm_in.weight", TypeId::Q8_0}}), {"fused"});
  const auto tied = open_file(write_tiny(folder.path(), "qwen3moe", {.tied = true}));
  expect_words(refusal(*tied, {{"token_*", TypeId::Q8_0}}), {"token_embd.weight"});
}

TEST(DenseConvert, ValuesThatAreNotFiniteAreNamed) {
  gguf::Tensor tensor;
  tensor.name = "blk.0.attn_q.weight";
  tensor.ne = {32, 3, 1, 1};
  tensor.row_bytes = 128;
  std::vector<float> rows(96, 1.0f);
  rows[40] = std::numeric_limits<float>::infinity();
  std::vector<std::byte> out(3 * 34);
  try {
    models::convert_rows(tensor, TypeId::Q8_0, 10, 3, reinterpret_cast<std::byte*>(rows.data()),
                         out.data());
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Numeric);
    expect_words(error.what(), {"blk.0.attn_q.weight", "row 11"});
  }
}

// Keys and values that converted weights have left are not another model's to go on from.
TEST(DenseConvert, SavedStatesBelongToTheConvertedModel) {
  TemporaryFolder folder;
  const auto file = open_file(write_tiny(folder.path(), "qwen3moe"));
  const auto identity = [&](std::vector<ConvertRule> rules) {
    Harness h = harness(file, {}, std::move(rules));
    h.forward(tiny_tokens(2));
    std::vector<std::byte> head;
    h.state().save(models::State::Parts::All, [&](std::span<const std::byte> part) {
      if (head.empty()) head.assign(part.begin(), part.end());
    });
    return head;
  };
  const auto plain = identity({});
  EXPECT_EQ(plain, identity({{"blk.*.attn_q.weight", TypeId::F32}}));
  const auto converted = identity({{"blk.*.attn_q.weight", TypeId::F16}});
  EXPECT_NE(plain, converted);
  EXPECT_NE(converted, identity({{"blk.*.attn_q.weight", TypeId::BF16}}));
}

}  // namespace
}  // namespace penstock::testing
