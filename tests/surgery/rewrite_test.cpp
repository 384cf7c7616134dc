#include "surgery/rewrite.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "gguf/raw_gguf.h"
#include "gguf/writer.h"
#include "models/harness.h"
#include "quant/codec.h"
#include "surgery/rewritten.h"

namespace penstock::surgery {
namespace {

namespace fs = std::filesystem;
using gguf::TypeId;
using gguf::test::error_of;
using testing::TemporaryFolder;

// A model of 2 blocks with 5 experts of [256, 128] and [128, 256], in BF16.
struct SmallModel {
  TemporaryFolder folder;
  std::string path;

  explicit SmallModel(std::string bad_tensor = "", float bad_value = 0, uint64_t bad_at = 0) {
    path = folder.path() + "/small.gguf";
    gguf::Writer writer(path);
    writer.set_string("general.architecture", "small");
    writer.set_string("general.name", "Small");
    writer.set_u32("general.file_type", 32);
    writer.set_u32("small.block_count", 2);
    writer.set_u32("small.expert_used_count", 2);
    writer.set_u32("small.expert_count", 5);
    struct Declared {
      std::string name;
      std::vector<uint64_t> dims;
      TypeId type;
    };
    std::vector<Declared> tensors = {{"token_embd.weight", {256, 32}, TypeId::BF16},
                                     {"output.weight", {256, 32}, TypeId::BF16},
                                     {"output_norm.weight", {256}, TypeId::F32}};
    for (int b = 0; b < 2; ++b) {
      const std::string p = "blk." + std::to_string(b) + ".";
      tensors.push_back({p + "attn_q.weight", {256, 128}, TypeId::BF16});
      tensors.push_back({p + "attn_norm.weight", {256}, TypeId::F32});
      tensors.push_back({p + "small.weight", {256, 4}, TypeId::F32});
      tensors.push_back({p + "odd.weight", {40, 8}, TypeId::F16});
      tensors.push_back({p + "ffn_gate_inp.weight", {256, 5}, TypeId::F32});
      tensors.push_back({p + "ffn_gate_exps.weight", {256, 128, 5}, TypeId::BF16});
      tensors.push_back({p + "ffn_up_exps.weight", {256, 128, 5}, TypeId::BF16});
      tensors.push_back({p + "ffn_down_exps.weight", {128, 256, 5}, TypeId::BF16});
    }
    for (const Declared& t : tensors) writer.add_tensor(t.name, t.type, t.dims);
    writer.begin();
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 0.02f);
    for (const Declared& t : tensors) {
      uint64_t n = 1;
      for (const uint64_t d : t.dims) n *= d;
      std::vector<float> x(n);
      for (float& v : x) v = normal(random);
      if (t.name == bad_tensor) x[bad_at] = bad_value;
      std::vector<std::byte> bytes(gguf::row_bytes(t.type, n));
      quant::encode_row(t.type, x.data(), bytes.data(), static_cast<int64_t>(n), nullptr);
      writer.append(bytes);
    }
    writer.finish();
  }
  gguf::Model open() const { return gguf::Model::open(path); }
  std::string out(const std::string& name = "out.gguf") const { return folder.path() + "/" + name; }
};

std::vector<float> decoded(const gguf::Model& model, const std::string& name) {
  const gguf::Tensor& tensor = model.require(name);
  std::vector<float> x(tensor.n_elements());
  const auto row = static_cast<int64_t>(tensor.ne[0]);
  for (uint64_t r = 0; r < tensor.rows(); ++r) {
    quant::decode_row(tensor.type, model.data(tensor) + r * tensor.row_bytes,
                      x.data() + r * tensor.ne[0], row);
  }
  return x;
}

// Row by row with quant alone; `weights` per matrix and column, or empty.
std::string encoded(const gguf::Model& model, const std::string& name, TypeId type,
                    const std::vector<std::vector<float>>& weights = {}) {
  const gguf::Tensor& tensor = model.require(name);
  const std::vector<float> x = decoded(model, name);
  std::string out(gguf::row_bytes(type, x.size()), '\0');
  const uint64_t bytes = gguf::row_bytes(type, tensor.ne[0]);
  for (uint64_t r = 0; r < tensor.rows(); ++r) {
    const float* w = weights.empty() ? nullptr : weights[r / tensor.ne[1] % weights.size()].data();
    quant::encode_row(type, x.data() + r * tensor.ne[0], out.data() + r * bytes,
                      static_cast<int64_t>(tensor.ne[0]), w);
  }
  return out;
}

RewritePlan types_plan(const gguf::Model& model, const TypeRules& rules) {
  RewritePlan plan = copy_plan(model);
  apply_types(rules, &plan);
  return plan;
}

TEST(Rewrite, EncodesByClassAndCopiesTheRest) {
  const SmallModel small;
  const gguf::Model model = small.open();
  TypeRules rules;
  rules.experts = TypeId::Q2_0;
  rules.dense = TypeId::Q4_K;
  rules.head = TypeId::Q6_K;
  rules.patterns = {parse_pattern("blk.?.ffn_down_exps.weight=Q8_0"),
                    parse_pattern("blk.1.ffn_down_exps.weight=q4_0")};
  RewritePlan plan = copy_plan(model);
  const std::vector<Fallback> fallbacks = apply_types(rules, &plan);
  const auto check = [&](const std::string& file) {
    const gguf::Model out = gguf::Model::open(file);
    const std::vector<std::pair<std::string, TypeId>> expected = {
        {"blk.0.ffn_gate_exps.weight", TypeId::Q2_0}, {"blk.1.ffn_up_exps.weight", TypeId::Q2_0},
        {"blk.0.ffn_down_exps.weight", TypeId::Q8_0}, {"blk.1.ffn_down_exps.weight", TypeId::Q4_0},
        {"blk.0.attn_q.weight", TypeId::Q4_K},        {"output.weight", TypeId::Q6_K}};
    for (const auto& [name, type] : expected) {
      EXPECT_EQ(out.require(name).type, type) << name;
      EXPECT_EQ(bytes_of(out, name), encoded(model, name, type)) << name;
    }
    for (const char* name : {"token_embd.weight", "output_norm.weight", "blk.1.ffn_gate_inp.weight",
                             "blk.0.attn_norm.weight", "blk.0.small.weight", "blk.1.odd.weight"}) {
      EXPECT_EQ(out.require(name).type, model.require(name).type) << name;
      EXPECT_EQ(bytes_of(out, name), bytes_of(model, name)) << name;
    }
  };
  // Rows of 40 are no multiple of 32, so Q4_K becomes what the tensor is already.
  ASSERT_EQ(fallbacks.size(), 1u);
  EXPECT_EQ(fallbacks[0].row, 40u);
  EXPECT_EQ(fallbacks[0].got, TypeId::F16);
  EXPECT_EQ(fallbacks[0].n_tensors, 2u);
  for (const int threads : {1, 3}) {
    const std::string out = small.out(std::to_string(threads) + ".gguf");
    const RewriteResult result = carry_out(plan, out, threads);
    check(out);
    EXPECT_EQ(result.bytes, fs::file_size(out));
    EXPECT_EQ(result.encoded.size(), 9u);
    EXPECT_EQ(result.n_encoded, 6u * 5 * 256 * 128 + 2 * 256 * 128 + 256 * 32);
  }
}

TEST(Rewrite, ErrorsAreThoseOfTheTensors) {
  const SmallModel small;
  const gguf::Model model = small.open();
  TypeRules rules;
  rules.experts = TypeId::Q2_0;
  const RewritePlan plan = types_plan(model, rules);
  const RewriteResult result = carry_out(plan, small.out());
  const gguf::Model out = gguf::Model::open(small.out());
  ASSERT_EQ(result.encoded.size(), 6u);
  for (const EncodedTensor& tensor : result.encoded) {
    const std::string& name = tensor.tensor->source->name;
    const std::vector<float> x = decoded(model, name), y = decoded(out, name);
    double xx = 0, yy = 0, xy = 0, ee = 0, worst = 0;
    uint64_t worst_at = 0;
    for (size_t b = 0; b < x.size(); b += 64) {
      double bx = 0, be = 0;
      for (size_t i = b; i < b + 64; ++i) {
        const double e = double{x[i]} - y[i];
        bx += double{x[i]} * x[i];
        be += e * e;
        xy += double{x[i]} * y[i];
        yy += double{y[i]} * y[i];
      }
      xx += bx;
      ee += be;
      if (std::sqrt(be / bx) > worst * (1 + 1e-6)) {
        worst = std::sqrt(be / bx);
        worst_at = b;
      }
    }
    EXPECT_NEAR(tensor.errors.relative_rmse(), std::sqrt(ee / xx), 1e-6) << name;
    EXPECT_EQ(tensor.errors.weighted_relative_rmse(), tensor.errors.relative_rmse());
    EXPECT_FALSE(tensor.weighted);
    EXPECT_NEAR(tensor.errors.cosine(), xy / std::sqrt(xx) / std::sqrt(yy), 1e-6);
    EXPECT_NEAR(tensor.errors.worst, worst, 1e-5);
    EXPECT_EQ(tensor.errors.worst_at, worst_at) << name;
    EXPECT_NEAR(tensor.errors.relative_rmse(), 0.351, 0.006);  // Gaussian weights, signed scales
  }
}

TEST(Rewrite, ImportanceIsEachExpertsOwn) {
  const SmallModel small;
  const gguf::Model model = small.open();
  Imatrix imatrix;
  std::mt19937 random(9);
  std::gamma_distribution<float> gamma(0.5f);
  const std::string bank = "blk.0.ffn_up_exps.weight";
  Importance& importance = imatrix.tensors[bank];
  importance.n_in = 256;
  importance.counts = {4, 4, 8, 4, 4};
  for (int i = 0; i < 256 * 5; ++i) importance.sums.push_back(gamma(random));
  std::vector<std::vector<float>> weights;
  for (size_t e = 0; e < 5; ++e) {
    weights.emplace_back();
    for (size_t i = 0; i < 256; ++i) {
      weights[e].push_back(importance.sums[e * 256 + i] / importance.counts[e]);
    }
  }
  TypeRules rules;
  rules.experts = TypeId::Q2_0;
  const RewritePlan plan = types_plan(model, rules);
  EXPECT_EQ(without_importance(plan, imatrix, "i").size(), 5u);
  const RewriteResult result = carry_out(
      plan, small.out(), 2, [&](RewriteRequest* request) { request->imatrix = &imatrix; });
  const gguf::Model out = gguf::Model::open(small.out());
  EXPECT_EQ(bytes_of(out, bank), encoded(model, bank, TypeId::Q2_0, weights));
  EXPECT_NE(bytes_of(out, bank), encoded(model, bank, TypeId::Q2_0));
  EXPECT_EQ(bytes_of(out, "blk.1.ffn_up_exps.weight"),
            encoded(model, "blk.1.ffn_up_exps.weight", TypeId::Q2_0));
  const std::vector<float> x = decoded(model, bank), y = decoded(out, bank);
  double wxx = 0, wee = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double w = weights[i / (256 * 128)][i % 256];
    wxx += w * x[i] * x[i];
    wee += w * (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  }
  for (const EncodedTensor& tensor : result.encoded) {
    EXPECT_EQ(tensor.weighted, tensor.tensor->source->name == bank);
    if (tensor.tensor->source->name != bank) continue;
    EXPECT_NEAR(tensor.errors.weighted_relative_rmse(), std::sqrt(wee / wxx), 1e-6);
    EXPECT_LT(tensor.errors.weighted_relative_rmse(), tensor.errors.relative_rmse());
  }
  // Two of the experts alone: their own importance, not that of the places they take.
  RewritePlan both = copy_plan(model);
  const KeepMap map = map_for(model, {{2, 4}});
  apply_keep_map(map, moe_layers(model), "test", &both);
  apply_types(rules, &both);
  carry_out(both, small.out("both.gguf"), 2,
            [&](RewriteRequest* request) { request->imatrix = &imatrix; });
  const std::string all = bytes_of(out, bank);
  const size_t one = all.size() / 5;
  EXPECT_EQ(bytes_of(gguf::Model::open(small.out("both.gguf")), bank),
            all.substr(2 * one, one) + all.substr(4 * one, one));

  imatrix.tensors[bank].n_in = 128;
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [&] { without_importance(plan, imatrix, "i.gguf"); }),
                  bank);
}

TEST(Rewrite, PruningAndRequantisingInOnePassIsOneAfterTheOther) {
  const SmallModel small;
  const gguf::Model model = small.open();
  TypeRules rules;
  rules.experts = TypeId::Q2_0;
  rules.dense = TypeId::Q8_0;
  const KeepMap map = map_for(model, {{0, 3, 4}, {1, 2, 3}});
  const gguf::Model pruned = gguf::Model::open(prune_to(model, map, small.out("pruned.gguf")));
  carry_out(types_plan(pruned, rules), small.out("after.gguf"));
  RewritePlan both = copy_plan(model);
  apply_keep_map(map, moe_layers(model), "test", &both);
  apply_types(rules, &both);
  carry_out(both, small.out("both.gguf"), 3);
  const gguf::Model after = gguf::Model::open(small.out("after.gguf"));
  const gguf::Model one = gguf::Model::open(small.out("both.gguf"));
  for (const gguf::Tensor& tensor : after.tensors()) {
    EXPECT_EQ(bytes_of(one, tensor.name), bytes_of(after, tensor.name)) << tensor.name;
  }
  EXPECT_EQ(one.require("blk.0.ffn_up_exps.weight").ne[2], 3u);
  EXPECT_EQ(one.require("blk.0.ffn_up_exps.weight").type, TypeId::Q2_0);
}

TEST(Rewrite, PositiveScales) {
  const SmallModel small;
  const gguf::Model model = small.open();
  TypeRules rules;
  rules.experts = TypeId::Q2_0;
  const RewritePlan plan = types_plan(model, rules);
  const RewriteResult free = carry_out(plan, small.out("free.gguf"));
  const RewriteResult positive = carry_out(
      plan, small.out(), 2, [](RewriteRequest* request) { request->positive_scales = true; });
  const auto negative = [&](const std::string& file) {
    const std::string bytes = bytes_of(gguf::Model::open(file), "blk.0.ffn_up_exps.weight");
    uint64_t n = 0;
    for (size_t b = 0; b < bytes.size(); b += 18) n += (bytes[b + 1] & 0x80) != 0 ? 1 : 0;
    return n;
  };
  EXPECT_EQ(negative(small.out()), 0u);
  EXPECT_NEAR(static_cast<double>(negative(small.out("free.gguf"))), 5 * 128 * 4 / 2, 150);
  // Relative squared errors of the optimum, spec/gguf-quants.md §10.2: 0.142 and 0.123.
  EXPECT_NEAR(positive.encoded[0].errors.relative_rmse(), std::sqrt(0.142), 0.006);
  EXPECT_NEAR(free.encoded[0].errors.relative_rmse(), std::sqrt(0.123), 0.006);
}

TEST(Rewrite, ValuesThatAreNoNumbersNameTheirTensor) {
  TypeRules rules;
  rules.experts = TypeId::Q2_0;
  rules.dense = TypeId::F16;
  struct Case {
    std::string tensor;
    float value;
    uint64_t at;
    std::vector<std::string> words;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  for (const Case& c :
       {Case{"blk.1.ffn_up_exps.weight",
             nan,
             256 * 128 * 3 + 256 * 7 + 11,
             {"nan", "expert 3, row 7, column 11"}},
        {"blk.0.ffn_down_exps.weight",
         -infinite,
         128 * 256 * 5 - 1,
         {"-inf", "expert 4, row 255, column 127"}},
        {"blk.0.attn_q.weight", 1e6f, 300, {"beyond what F16", "row 1, column 44"}}}) {
    const SmallModel small(c.tensor, c.value, c.at);
    const gguf::Model model = small.open();
    const RewritePlan plan = types_plan(model, rules);
    const std::string message = error_of(ErrorKind::Numeric, [&] { carry_out(plan, small.out()); });
    EXPECT_CONTAINS(message, c.tensor);
    EXPECT_CONTAINS(message, small.path);
    for (const std::string& word : c.words) EXPECT_CONTAINS(message, word);
    // Nothing but the source is left.
    EXPECT_EQ(std::distance(fs::directory_iterator(small.folder.path()), fs::directory_iterator()),
              1);
  }
  // What is not encoded is copied as it is.
  const SmallModel small("blk.1.ffn_up_exps.weight", nan, 5);
  const gguf::Model model = small.open();
  carry_out(copy_plan(model), small.out());
  EXPECT_EQ(bytes_of(gguf::Model::open(small.out()), "blk.1.ffn_up_exps.weight"),
            bytes_of(model, "blk.1.ffn_up_exps.weight"));
}

TEST(Rewrite, LeavesNothingHalfDoneAndNothingOverwritten) {
  const SmallModel small;
  const gguf::Model model = small.open();
  const RewritePlan plan = copy_plan(model);
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { carry_out(plan, small.path); }),
                  "is the model itself");
  std::ofstream(small.out()) << "mine";
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { carry_out(plan, small.out()); }), "--force");
  carry_out(plan, small.out(), 1, [](RewriteRequest* request) { request->replace = true; });
  gguf::Model::open(small.out());
  EXPECT_CONTAINS(
      error_of(ErrorKind::Io, [&] { carry_out(plan, small.folder.path() + "/none/x.gguf"); }),
      "/none");
  const std::atomic<bool> cancel{true};
  error_of(ErrorKind::Cancelled, [&] {
    carry_out(plan, small.out("x.gguf"), 1,
              [&](RewriteRequest* request) { request->cancel = &cancel; });
  });
  // A process that is gone has left its temporary file; one that lives keeps its own.
  std::ofstream(small.out("y.gguf.999999999.partial")) << "x";
  std::ofstream(small.out("y.gguf.1.partial")) << "x";
  carry_out(plan, small.out("y.gguf"));
  EXPECT_FALSE(fs::exists(small.out("y.gguf.999999999.partial")));
  EXPECT_TRUE(fs::exists(small.out("y.gguf.1.partial")));
  EXPECT_FALSE(fs::exists(small.out("x.gguf")));
  for (const auto& entry : fs::directory_iterator(small.folder.path())) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name == "small.gguf" || name == "out.gguf" || name == "y.gguf" ||
                name == "y.gguf.1.partial")
        << name;
  }
}

// A disk that changes a byte: the first piece is among those that are read back.
TEST(Rewrite, ComparesWhatItReadsBack) {
  const SmallModel small;
  const gguf::Model model = small.open();
  const RewritePlan plan = copy_plan(model);
  carry_out(plan, small.out("good.gguf"));
  const gguf::Model good = gguf::Model::open(small.out("good.gguf"));
  const gguf::Tensor& first = good.tensors().front();
  const std::string message = error_of(ErrorKind::Io, [&] {
    carry_out(plan, small.out("bad.gguf"), 1, [&](RewriteRequest* request) {
      request->progress = [&](std::string_view, uint64_t done, uint64_t total) {
        if (done != total) return;
        for (const auto& entry : fs::directory_iterator(small.folder.path())) {
          if (!entry.path().filename().string().ends_with(".partial")) continue;
          std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
          file.seekp(static_cast<std::streamoff>(first.offset + 100));
          file.put('!');
        }
      };
    });
  });
  EXPECT_CONTAINS(message, first.name);
  EXPECT_CONTAINS(message, "bad.gguf");
}

TEST(TypeRules, WhatIsNeverChanged) {
  const auto kind = [](const std::string& name, uint32_t n_dims, TypeId type = TypeId::F32) {
    gguf::Tensor tensor;
    tensor.name = name;
    tensor.n_dims = n_dims;
    tensor.type = type;
    return tensor_class(tensor);
  };
  EXPECT_EQ(kind("blk.0.ffn_gate_up_exps.weight", 3), TensorClass::Experts);
  EXPECT_EQ(kind("blk.47.ffn_down_exps.weight", 3), TensorClass::Experts);
  EXPECT_EQ(kind("blk.0.ffn_down_exps.bias", 2), TensorClass::Kept);
  EXPECT_EQ(kind("blk.0.ffn_gate_inp.weight", 2), TensorClass::Kept);
  EXPECT_EQ(kind("blk.0.ffn_gate_inp_shexp.weight", 2), TensorClass::Kept);
  EXPECT_EQ(kind("blk.0.ssm_conv1d.weight", 2), TensorClass::Kept);
  EXPECT_EQ(kind("blk.0.hc_attn_norm.weight", 1), TensorClass::Kept);
  EXPECT_EQ(kind("blk.0.attn_q.weight", 2, TypeId::I32), TensorClass::Kept);
  EXPECT_EQ(kind("blk.0.ffn_up_shexp.weight", 2), TensorClass::Dense);
  EXPECT_EQ(kind("blk.0.ssm_out.weight", 2), TensorClass::Dense);
  EXPECT_EQ(kind("token_embd.weight", 2), TensorClass::Embedding);
  EXPECT_EQ(kind("output.weight", 2), TensorClass::Head);
  EXPECT_EQ(kind("per_layer_token_embd.weight", 2), TensorClass::Table);

  EXPECT_EQ(type_for_row(TypeId::Q4_K, 2560), TypeId::Q4_K);
  EXPECT_EQ(type_for_row(TypeId::Q4_K, 640), TypeId::Q5_0);
  EXPECT_EQ(type_for_row(TypeId::Q5_K, 640), TypeId::Q5_1);
  EXPECT_EQ(type_for_row(TypeId::Q6_K, 640), TypeId::Q8_0);
  EXPECT_EQ(type_for_row(TypeId::Q2_0, 640), TypeId::Q2_0);
  EXPECT_EQ(type_for_row(TypeId::Q2_0, 160), TypeId::Q4_0);
  EXPECT_EQ(type_for_row(TypeId::Q4_0, 40), TypeId::F16);

  error_of(ErrorKind::Usage, [] { parse_pattern("blk.0.x"); });
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [] { parse_pattern("a=Q7_X"); }), "no such type");
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [] { parse_pattern("a=IQ2_XS"); }), "Q2_0");
  const SmallModel small;
  const gguf::Model model = small.open();
  RewritePlan plan = copy_plan(model);
  TypeRules rules;
  rules.patterns = {parse_pattern("*norm*=Q8_0")};
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { apply_types(rules, &plan); }), "*norm*");
  rules.patterns = {parse_pattern("blk.1.small.weight=Q8_0")};  // small, but named
  apply_types(rules, &plan);
  EXPECT_EQ(type_changes(plan).size(), 1u);
}

TEST(TypeRules, EveryStepIsRecorded) {
  const SmallModel small;
  const gguf::Model model = small.open();
  TypeRules rules;
  rules.experts = TypeId::Q8_0;
  RewritePlan plan = types_plan(model, rules);
  RequantiseNote note;
  note.tool = "penstock test";
  note.source_model_id = "abc";
  record_requantise(note, &plan);
  carry_out(plan, small.out("first.gguf"));
  const gguf::Model first = gguf::Model::open(small.out("first.gguf"));
  EXPECT_EQ(first.metadata().get_u64("general.file_type"), 7u);
  EXPECT_EQ(first.metadata().get_u64("general.quantization_version"), 2u);
  rules.experts = TypeId::Q2_0;
  plan = types_plan(first, rules);
  note.imatrix_name = "i.gguf";
  note.imatrix_sha256 = "123";
  note.imatrix_entries = 6;
  note.imatrix_datasets = {"a.txt", "b.txt"};
  record_requantise(note, &plan);
  carry_out(plan, small.out("second.gguf"));
  const gguf::Model second = gguf::Model::open(small.out("second.gguf"));
  const auto steps = second.metadata().get_string_array("penstock.requantise.steps");
  ASSERT_EQ(steps.size(), 2u);
  const auto one = nlohmann::json::parse(steps[0]), two = nlohmann::json::parse(steps[1]);
  EXPECT_EQ(one["changes"][0]["from"], "BF16");
  EXPECT_EQ(one["changes"][0]["to"], "Q8_0");
  EXPECT_EQ(one["changes"][0]["tensors"], 6);
  EXPECT_TRUE(one["imatrix_sha256"].is_null());
  EXPECT_EQ(two["changes"][0]["from"], "Q8_0");
  EXPECT_EQ(two["changes"][0]["from_bpw"], 8.5);
  EXPECT_EQ(two["changes"][0]["to_bpw"], 2.25);
  EXPECT_EQ(two["imatrix_sha256"], "123");
  EXPECT_EQ(second.metadata().get_u64("general.file_type"), 41u);
  EXPECT_EQ(second.metadata().get_string("quantize.imatrix.file"), "i.gguf");
  EXPECT_EQ(second.metadata().get_string("quantize.imatrix.dataset"), "a.txt, b.txt");
  EXPECT_EQ(second.metadata().get_u64("quantize.imatrix.entries_count"), 6u);
}

// Every pair of types that can be read and written.
TEST(Rewrite, AnyReadableTypeToAnyWritableOne) {
  TemporaryFolder folder;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(256 * 8);
  for (float& v : x) v = normal(random);
  std::vector<TypeId> writable;
  for (const gguf::TypeInfo& info : gguf::kTypes) {
    if (quant::can_encode(info.id)) writable.push_back(info.id);
  }
  EXPECT_EQ(writable.size(), 13u);
  for (const TypeId from : writable) {
    const std::string path = folder.path() + "/from.gguf";
    gguf::Writer writer(path);
    writer.set_string("general.architecture", "x");
    const std::vector<uint64_t> dims = {256, 8};
    writer.add_tensor("blk.0.w.weight", from, dims);
    writer.begin();
    std::vector<std::byte> bytes(gguf::row_bytes(from, x.size()));
    quant::encode_row(from, x.data(), bytes.data(), static_cast<int64_t>(x.size()), nullptr);
    writer.append(bytes);
    writer.finish();
    const gguf::Model model = gguf::Model::open(path);
    for (const TypeId to : writable) {
      TypeRules rules;
      rules.patterns = {{"*", to}};
      const std::string out = folder.path() + "/to.gguf";
      carry_out(types_plan(model, rules), out, 1,
                [](RewriteRequest* request) { request->replace = true; });
      EXPECT_EQ(
          bytes_of(gguf::Model::open(out), "blk.0.w.weight"),
          from == to ? bytes_of(model, "blk.0.w.weight") : encoded(model, "blk.0.w.weight", to))
          << gguf::type_name(from) << " " << gguf::type_name(to);
    }
  }
}

}  // namespace
}  // namespace penstock::surgery
