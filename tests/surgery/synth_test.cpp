#include "surgery/synth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/thread_pool.h"
#include "gguf/raw_gguf.h"
#include "surgery/inspect.h"
#include "surgery/synth_tokenizer.h"

namespace penstock::surgery {
namespace {

using gguf::TypeId;
using gguf::test::error_of;
using gguf::test::TempDir;

uint64_t parameters(const SynthPlan& plan) {
  uint64_t sum = 0;
  for (const SynthTensor& tensor : plan.tensors) {
    uint64_t n = 1;
    for (const uint64_t d : tensor.dims) n *= d;
    sum += n;
  }
  return sum;
}

const SynthTensor& tensor(const SynthPlan& plan, const std::string& name) {
  for (const SynthTensor& t : plan.tensors) {
    if (t.name == name) return t;
  }
  ADD_FAILURE() << name;
  return plan.tensors.front();
}

SynthOptions options_for(const std::string& preset) {
  SynthOptions options;
  options.preset = preset;
  return options;
}

TEST(SynthPlan, ReleasedSizes) {
  // Published parameter counts; Flash-Next's without its table is in spec/qwen4exp.md §11.
  SynthOptions options = options_for("qwen3.8-flash-next");
  options.ple_rows = 320001536;
  const SynthPlan flash = make_synth_plan(options);
  EXPECT_EQ(parameters(flash), 125743653760u + 51200245760u);
  EXPECT_EQ(flash.tensors.size(), 1224u);
  EXPECT_EQ(tensor(flash, "per_layer_token_embd.weight").dims,
            (std::vector<uint64_t>{160, 320001536}));
  const SynthPlan half = make_synth_plan(options_for("qwen3.8-flash-next-k256"));
  EXPECT_NEAR(static_cast<double>(parameters(half)) * 1e-9, 65.31 + 0.32, 0.01);
  EXPECT_NEAR(static_cast<double>(parameters(make_synth_plan(options_for("qwen3-30b-a3b")))) * 1e-9,
              30.53, 0.01);
  EXPECT_NEAR(
      static_cast<double>(parameters(make_synth_plan(options_for("qwen3.6-35b-a3b")))) * 1e-9,
      34.66, 0.01);
  EXPECT_NEAR(
      static_cast<double>(parameters(make_synth_plan(options_for("qwen3-next-80b-a3b")))) * 1e-9,
      79.67, 0.01);
}

TEST(SynthPlan, ReleasedNgramConstants) {
  SynthOptions options = options_for("qwen3.8-flash-next");
  options.ple_rows = 320001536;
  const SynthPlan plan = make_synth_plan(options);
  EXPECT_EQ(plan.ple_multipliers,
            (std::vector<uint64_t>{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(plan.ple_sizes.front(), 20000003u);
  EXPECT_EQ(plan.ple_sizes.back(), 20000171u);
  EXPECT_EQ(plan.ple_offsets.back(), 300001275u);
}

TEST(SynthPlan, ReleasedExpertBytes) {
  // The published 256-expert file holds 23.419 GiB of experts.
  const SynthPlan plan = make_synth_plan(options_for("qwen3.8-flash-next-k256"));
  uint64_t bytes = 0;
  for (const SynthTensor& t : plan.tensors) {
    if (gguf::is_expert_bank(t.name))
      bytes += gguf::row_bytes(t.type, t.dims[0]) * t.dims[1] * t.dims[2];
  }
  EXPECT_EQ(bytes, 25146163200u);
  const SynthPlan q2 = make_synth_plan(options_for("qwen3.8-flash-next-k256-q2_0"));
  EXPECT_EQ(tensor(q2, "blk.7.ffn_down_exps.weight").type, TypeId::Q2_0);
  EXPECT_EQ(tensor(q2, "blk.7.ffn_up_exps.weight").dims, (std::vector<uint64_t>{2560, 640, 256}));
  // Stock Q4_K_M: half of the layers have a larger down projection.
  const SynthPlan small = make_synth_plan(options_for("qwen3-30b-a3b"));
  int larger = 0;
  for (int l = 0; l < 48; ++l) {
    larger += tensor(small, fmt::format("blk.{}.ffn_down_exps.weight", l)).type == TypeId::Q6_K;
  }
  EXPECT_EQ(larger, 24);
}

TEST(SynthPlan, TypesThatDoNotFitFallBack) {
  EXPECT_EQ(fitting_type(TypeId::Q4_K, 2560), TypeId::Q4_K);
  EXPECT_EQ(fitting_type(TypeId::Q4_K, 640), TypeId::Q5_0);
  EXPECT_EQ(fitting_type(TypeId::Q5_K, 640), TypeId::Q5_1);
  EXPECT_EQ(fitting_type(TypeId::Q6_K, 640), TypeId::Q8_0);
  EXPECT_EQ(fitting_type(TypeId::Q2_K, 640), TypeId::Q4_0);
  EXPECT_EQ(fitting_type(TypeId::IQ3_XXS, 640), TypeId::IQ4_NL);
  EXPECT_EQ(fitting_type(TypeId::Q2_0, 640), TypeId::Q2_0);
  EXPECT_EQ(fitting_type(TypeId::Q2_0, 160), TypeId::Q4_0);
  EXPECT_EQ(fitting_type(TypeId::Q8_0, 33), TypeId::F16);
  SynthOptions options = options_for("qwen3.8-flash-next");
  options.layers = 4;
  options.expert_type = TypeId::IQ2_XXS;
  options.has_expert_type = true;
  const SynthPlan plan = make_synth_plan(options);
  EXPECT_EQ(tensor(plan, "blk.3.ffn_up_exps.weight").type, TypeId::IQ2_XXS);
  EXPECT_EQ(tensor(plan, "blk.3.ffn_down_exps.weight").type, TypeId::IQ4_NL);
}

TEST(SynthPlan, BandsCoverEveryRowAndColumn) {
  for (const std::string_view preset : synth_presets()) {
    SynthOptions options = options_for(std::string(preset));
    options.layers = 4;
    for (const SynthTensor& t : make_synth_plan(options).tensors) {
      if (t.values) continue;
      uint64_t row = 0;
      for (const Band& band : t.bands) {
        EXPECT_EQ(band.begin, row) << t.name;
        row = band.end;
        uint64_t column = 0;
        for (const Piece& piece : band.pieces) {
          EXPECT_EQ(piece.begin, column) << t.name;
          EXPECT_EQ(piece.begin % gguf::type_info(t.type).block_elems, 0u) << t.name;
          column = piece.end;
        }
        EXPECT_EQ(column, t.dims[0]) << t.name;
      }
      EXPECT_EQ(row, t.dims.size() > 1 ? t.dims[1] : 1) << t.name;
    }
  }
}

TEST(SynthPlan, LikeAList) {
  SynthOptions options = options_for("qwen3.8-flash-next");
  options.layers = 2;
  options.like = parse_tensor_list(
      "# allocation\n"
      "blk.0.ffn_gate_exps.weight  IQ2_XS  [2560, 640, 288]\n"
      "blk.1.ffn_down_exps.weight: q4_1, 640 x 2560 x 288\n"
      "output.weight Q5_K [2560, 248320] 437043200\n"
      "blk.99.attn_q.weight Q4_K [2560, 12288]\n",
      "list.txt");
  const SynthPlan plan = make_synth_plan(options);
  EXPECT_EQ(tensor(plan, "blk.0.ffn_gate_exps.weight").type, TypeId::IQ2_XS);
  EXPECT_EQ(tensor(plan, "blk.0.ffn_gate_exps.weight").dims[2], 288u);
  EXPECT_EQ(tensor(plan, "blk.1.ffn_down_exps.weight").type, TypeId::Q4_1);
  EXPECT_EQ(tensor(plan, "output.weight").type, TypeId::Q5_K);
  options.like = parse_tensor_list(
      "blk.1.ffn_up_exps.weight Q5_K\n"
      "blk.*.ffn_up_exps.weight Q4_K\n"
      "blk.*_exps.weight Q8_0\n",
      "list.txt");
  const SynthPlan patterns = make_synth_plan(options);
  EXPECT_EQ(tensor(patterns, "blk.0.ffn_up_exps.weight").type, TypeId::Q8_0);  // the last that fits
  EXPECT_EQ(tensor(patterns, "blk.1.ffn_up_exps.weight").type, TypeId::Q5_K);  // its own name
  EXPECT_EQ(tensor(patterns, "blk.1.ffn_down_exps.weight").type, TypeId::Q8_0);
  options.like =
      parse_tensor_list("blk.0.ffn_down_exps.weight Q4_K [640, 2560, 288]\n", "list.txt");
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { make_synth_plan(options); }), "no whole blocks");
  options.like = parse_tensor_list("blk.77.attn_q.weight Q4_K\n", "list.txt");
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { make_synth_plan(options); }),
                  "another model's list");
}

TEST(SynthPlan, BadOptionsAreNamed) {
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [] { make_synth_plan(options_for("llama")); }),
                  "there is no preset 'llama': qwen3.8-flash-next");
  SynthOptions options = options_for("qwen3-30b-a3b");
  options.experts = 4;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { make_synth_plan(options); }), "4 experts");
  options = options_for("qwen3.8-flash-next");
  options.layers = 1;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { make_synth_plan(options); }), "2 layers");
  options = options_for("qwen3-30b-a3b");
  options.scale = 0;
  EXPECT_CONTAINS(error_of(ErrorKind::Usage, [&] { make_synth_plan(options); }), "--scale");
}

TEST(TensorList, Forms) {
  const auto list = parse_tensor_list(
      "Metadata\n  qwen4exp.block_count  48\n"
      "  token_embd.weight                        Q4_K     [2560, 248320]     357580800\n"
      "tensor=\"blk.0.attn_q.weight\" shape=(2560, 12288) type=GGML_TYPE_Q8_0\n"
      "blk.0.ssm_a | f32 | 48\n"
      "blk.0.attn_k.weight IQ4_XS 2560 x 512\n"
      "blk.0.attn_k.weight IQ4_XS 2560 x 512\n",
      "x");
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0].name, "token_embd.weight");
  EXPECT_EQ(list[0].dims, (std::vector<uint64_t>{2560, 248320}));
  EXPECT_EQ(list[1].type, TypeId::Q8_0);
  EXPECT_EQ(list[1].dims, (std::vector<uint64_t>{2560, 12288}));
  EXPECT_EQ(list[2].type, TypeId::F32);
  EXPECT_EQ(list[2].dims, (std::vector<uint64_t>{48}));
  EXPECT_EQ(list[3].dims, (std::vector<uint64_t>{2560, 512}));
  EXPECT_CONTAINS(error_of(ErrorKind::Format, [] { parse_tensor_list("hello\n", "x.txt"); }),
                  "x.txt: no line holds");
  EXPECT_CONTAINS(
      error_of(ErrorKind::Format,
               [] { parse_tensor_list("blk.0.a.weight Q4_K\nblk.0.a.weight Q8_0\n", "x.txt"); }),
      "x.txt, line 2: tensor blk.0.a.weight is listed as Q4_K and as Q8_0");
}

TEST(SynthTokenizer, ReleasedIdsAndConsistency) {
  const SynthVocabulary v = make_vocabulary("qwen35", 248320);
  ASSERT_EQ(v.tokens.size(), 248320u);
  ASSERT_EQ(v.types.size(), 248320u);
  EXPECT_EQ(v.tokens[0], "!");
  EXPECT_EQ(v.tokens[248046], "<|im_end|>");
  EXPECT_EQ(v.tokens[248068], "<think>");
  EXPECT_EQ(v.types[248046], 3);
  EXPECT_EQ(v.types[248068], 4);
  EXPECT_EQ(v.types[248319], 5);
  EXPECT_EQ(v.eos, 248046u);
  EXPECT_EQ(v.pad, 248044u);
  const std::set<std::string> tokens(v.tokens.begin(), v.tokens.end());
  EXPECT_EQ(tokens.size(), v.tokens.size());
  // Every ordinary token beyond the bytes has the merge that makes it.
  EXPECT_EQ(v.merges.size(), 248044u - 256);
  for (size_t i = 0; i < v.merges.size(); ++i) {
    const size_t blank = v.merges[i].find(' ');
    const std::string left = v.merges[i].substr(0, blank);
    const std::string right = v.merges[i].substr(blank + 1);
    ASSERT_EQ(left + right, v.tokens[256 + i]);
    ASSERT_TRUE(tokens.count(left) == 1 && tokens.count(right) == 1) << v.merges[i];
  }
  const SynthVocabulary qwen2 = make_vocabulary("qwen2", 151936);
  EXPECT_EQ(qwen2.tokens[151645], "<|im_end|>");
  EXPECT_EQ(qwen2.eos, 151645u);
  const SynthVocabulary small = make_vocabulary("qwen35", 2048);
  EXPECT_EQ(small.tokens[2047], "<|audio_6|>");
  EXPECT_EQ(small.tokens[small.eos], "<|im_end|>");
  EXPECT_THROW(make_vocabulary("qwen35", 200), Error);
}

TEST(Synth, FilesAreWholeAndIndependentOfThreads) {
  const TempDir dir;
  SynthOptions options = options_for("qwen3.8-flash-next");
  options.layers = 4;
  options.experts = 12;
  options.scale = 0.1;
  options.ple_rows = 1600;
  ThreadPool one(1);
  ThreadPool three(3);
  uint64_t reported = 0;
  const SynthResult result = write_synthetic(options, dir.file("a.gguf"), 0, one,
                                             [&](uint64_t done, uint64_t) { reported = done; });
  write_synthetic(options, dir.file("b.gguf"), 0, three, {});
  EXPECT_EQ(result.files, (std::vector<std::string>{dir.file("a.gguf")}));
  EXPECT_GT(reported, 0u);
  const gguf::Model model = gguf::Model::open(dir.file("a.gguf"));
  EXPECT_EQ(model.file_bytes(), result.bytes);
  const gguf::Model same = gguf::Model::open(dir.file("b.gguf"));
  EXPECT_EQ(model.header_id(), same.header_id());
  for (const gguf::Tensor& t : model.tensors()) {
    ASSERT_NO_THROW(gguf::check_finite(model, t));
    ASSERT_EQ(std::memcmp(model.data(t), same.data(same.require(t.name)), t.bytes), 0) << t.name;
  }
  options.seed = 2;
  write_synthetic(options, dir.file("c.gguf"), 0, three, {});
  EXPECT_NE(gguf::Model::open(dir.file("c.gguf")).model_id(), model.model_id());
  const Inspection report =
      inspect(model, {.known_architectures = {"qwen4exp"}, .isa = quant::Isa::Scalar});
  EXPECT_TRUE(report.runs());
  EXPECT_EQ(report.experts.front().n_expert, 12u);
  EXPECT_EQ(model.metadata().get_u64("qwen4exp.block_count"), 4u);
}

TEST(Synth, Shards) {
  const TempDir dir;
  SynthOptions options = options_for("qwen3-30b-a3b");
  options.layers = 1;
  options.experts = 8;
  options.scale = 0.1;
  ThreadPool pool(2);
  const SynthResult result = write_synthetic(options, dir.file("m.gguf"), 10 << 20, pool, {});
  ASSERT_GT(result.files.size(), 1u);
  EXPECT_EQ(gguf::Model::open(result.files.back()).tensors().size(), result.n_tensors);
}

}  // namespace
}  // namespace penstock::surgery
