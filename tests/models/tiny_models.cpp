#include "models/tiny_models.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "gguf/writer.h"
#include "ops/kernels.h"

namespace penstock::testing {
namespace {

uint64_t splitmix64(uint64_t v) {
  v += 0x9E3779B97F4A7C15u;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
  return v ^ (v >> 31);
}

uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

struct TensorSpec {
  std::string name;
  std::vector<uint64_t> dims;
};

struct Spec {
  std::vector<std::pair<std::string, MetadataValue>> keys;
  std::vector<TensorSpec> tensors;
  void key(std::string name, MetadataValue value) {
    keys.emplace_back(std::move(name), std::move(value));
  }
  void tensor(std::string name, std::vector<uint64_t> dims) {
    tensors.push_back({std::move(name), std::move(dims)});
  }
};

struct Shape {
  uint32_t n_layer, n_head, n_head_kv, head_dim, n_expert, n_used, n_ff, n_ff_shared;
  uint32_t k_heads, v_heads, state;  // of the delta net; 0: none
  float rope_base;
};

constexpr uint64_t kEmbd = 64;
constexpr uint64_t kVocab = 128;
constexpr uint64_t kStreams = 4;
constexpr uint64_t kRank = 16;

void common_keys(Spec& spec, const Shape& s, uint32_t n_blocks) {
  spec.key("block_count", n_blocks);
  spec.key("context_length", 4096u);
  spec.key("embedding_length", static_cast<uint32_t>(kEmbd));
  spec.key("attention.head_count", s.n_head);
  spec.key("attention.head_count_kv", s.n_head_kv);
  spec.key("attention.key_length", s.head_dim);
  spec.key("attention.value_length", s.head_dim);
  spec.key("attention.layer_norm_rms_epsilon", 1e-6f);
  spec.key("rope.freq_base", s.rope_base);
  spec.key("expert_count", s.n_expert);
  spec.key("expert_used_count", s.n_used);
  spec.key("expert_feed_forward_length", s.n_ff);
  if (s.k_heads == 0) return;
  spec.key("rope.dimension_count", 8u);
  spec.key("expert_shared_feed_forward_length", s.n_ff_shared);
  spec.key("full_attention_interval", 4u);
  spec.key("ssm.conv_kernel", 4u);
  spec.key("ssm.state_size", s.state);
  spec.key("ssm.group_count", s.k_heads);
  spec.key("ssm.time_step_rank", s.v_heads);
  spec.key("ssm.inner_size", s.v_heads * s.state);
}

void experts(Spec& spec, const std::string& b, const Shape& s, const TinyOptions& options) {
  spec.tensor(b + "ffn_gate_inp.weight", {kEmbd, s.n_expert});
  if (options.merged_gate_up) {
    spec.tensor(b + "ffn_gate_up_exps.weight", {kEmbd, 2 * s.n_ff, s.n_expert});
  } else {
    spec.tensor(b + "ffn_gate_exps.weight", {kEmbd, s.n_ff, s.n_expert});
    spec.tensor(b + "ffn_up_exps.weight", {kEmbd, s.n_ff, s.n_expert});
  }
  spec.tensor(b + "ffn_down_exps.weight", {s.n_ff, kEmbd, s.n_expert});
  if (s.n_ff_shared == 0) return;
  spec.tensor(b + "ffn_gate_inp_shexp.weight", {kEmbd});
  spec.tensor(b + "ffn_gate_shexp.weight", {kEmbd, s.n_ff_shared});
  spec.tensor(b + "ffn_up_shexp.weight", {kEmbd, s.n_ff_shared});
  spec.tensor(b + "ffn_down_shexp.weight", {s.n_ff_shared, kEmbd});
}

void attention(Spec& spec, const std::string& b, const Shape& s, bool gated) {
  const uint64_t q = s.n_head * s.head_dim;
  spec.tensor(b + "attn_q.weight", {kEmbd, gated ? 2 * q : q});
  spec.tensor(b + "attn_k.weight", {kEmbd, s.n_head_kv * s.head_dim});
  spec.tensor(b + "attn_v.weight", {kEmbd, s.n_head_kv * s.head_dim});
  spec.tensor(b + "attn_q_norm.weight", {s.head_dim});
  spec.tensor(b + "attn_k_norm.weight", {s.head_dim});
  spec.tensor(b + "attn_output.weight", {q, kEmbd});
}

void delta(Spec& spec, const std::string& b, const Shape& s, bool fused_gates, bool legacy) {
  const uint64_t inner = s.v_heads * s.state;
  const uint64_t channels = 2 * s.k_heads * s.state + inner;
  if (legacy) {
    spec.tensor(b + "ssm_in.weight", {kEmbd, channels + inner});
  } else {
    spec.tensor(b + "attn_qkv.weight", {kEmbd, channels});
    spec.tensor(b + "attn_gate.weight", {kEmbd, inner});
  }
  spec.tensor(b + "ssm_conv1d.weight", {4, channels});
  spec.tensor(b + "ssm_dt.bias", {s.v_heads});
  spec.tensor(b + "ssm_a", {s.v_heads});
  if (fused_gates) {
    spec.tensor(b + "ssm_ba.weight", {kEmbd, 2 * s.v_heads});
  } else {
    spec.tensor(b + "ssm_beta.weight", {kEmbd, s.v_heads});
    spec.tensor(b + "ssm_alpha.weight", {kEmbd, s.v_heads});
  }
  spec.tensor(b + "ssm_norm.weight", {s.state});
  spec.tensor(b + "ssm_out.weight", {inner, kEmbd});
}

std::string block(uint32_t l) {
  return fmt::format("blk.{}.", l);
}

Spec plain(const std::string& architecture, const TinyOptions& options) {
  const bool next = architecture == "qwen3next";
  const bool moe = architecture == "qwen3moe";
  Shape s = moe    ? Shape{4, 8, 2, 16, 8, 3, 32, 0, 0, 0, 0, 1e6f}
            : next ? Shape{4, 4, 1, 32, 10, 4, 32, 32, 2, 6, 16, 1e7f}
                   : Shape{8, 4, 2, 32, 8, 3, 32, 48, 2, 4, 16, 1e7f};
  if (options.n_expert) s.n_expert = static_cast<uint32_t>(*options.n_expert);
  Spec spec;
  common_keys(spec, s, s.n_layer + (options.draft ? 1 : 0));
  if (moe) spec.key("feed_forward_length", 192u);
  if (architecture == "qwen35moe") {
    spec.key("rope.dimension_sections", std::vector<int32_t>{2, 1, 1, 0});
  }
  if (options.draft) spec.key("nextn_predict_layers", 1u);
  spec.tensor("token_embd.weight", {kEmbd, kVocab});
  spec.tensor("output_norm.weight", {kEmbd});
  if (!options.tied) spec.tensor("output.weight", {kEmbd, kVocab});
  for (uint32_t l = 0; l < s.n_layer + (options.draft ? 1 : 0); ++l) {
    const std::string b = block(l);
    spec.tensor(b + "attn_norm.weight", {kEmbd});
    if (moe || l == s.n_layer || (l + 1) % 4 == 0) {
      attention(spec, b, s, !moe);
    } else {
      delta(spec, b, s, next, options.legacy_input);
    }
    spec.tensor(b + (moe ? "ffn_norm.weight" : "post_attention_norm.weight"), {kEmbd});
    experts(spec, b, s, options);
  }
  if (options.draft) {
    const std::string b = block(s.n_layer);
    spec.tensor(b + "nextn.eh_proj.weight", {2 * kEmbd, kEmbd});
    spec.tensor(b + "nextn.enorm.weight", {kEmbd});
    spec.tensor(b + "nextn.hnorm.weight", {kEmbd});
    spec.tensor(b + "nextn.shared_head_norm.weight", {kEmbd});
  }
  return spec;
}

void hyper(Spec& spec, const std::string& prefix, bool inject) {
  const uint64_t wide = kStreams * kEmbd;
  spec.tensor(prefix + "norm.weight", {wide});
  spec.tensor(prefix + "down.weight", {wide, kRank});
  spec.tensor(prefix + "up.weight", {kRank, wide});
  if (inject) spec.tensor(prefix + "inject.weight", {wide, kStreams});
}

Spec wide(const TinyOptions& options) {
  Shape s{8, 4, 2, 32, 8, 3, 32, 32, 2, 6, 16, 1e7f};
  if (options.n_expert) s.n_expert = static_cast<uint32_t>(*options.n_expert);
  const bool draft = options.draft || options.only_draft;
  Spec spec;
  common_keys(spec, s, draft ? 9 : 8);
  if (draft) spec.key("nextn_predict_layers", 1u);
  std::vector<int32_t> ratios{0, 0, 0, 4, 0, 0, 0, 4};
  if (draft) ratios.push_back(0);
  spec.key("attention.compress_ratios", ratios);
  spec.key("attention.indexer.head_count", 4u);
  spec.key("attention.indexer.key_length", 16u);
  spec.key("attention.indexer.top_k", 8u);
  spec.key("rope.dimension_sections", std::vector<int32_t>{2, 1, 1, 0});
  spec.key("hyper_connection.count", static_cast<uint32_t>(kStreams));
  spec.key("hyper_connection.low_rank", static_cast<uint32_t>(kRank));
  spec.key("ple.layers", std::vector<int32_t>{1});
  spec.key("ple.ngram_size", 3u);
  spec.key("ple.heads_per_ngram", 2u);
  spec.key("ple.conv_kernel", 4u);
  spec.key("ple.eos_token_id", 5u);
  spec.key("embedding_length_per_layer_input", 16u);
  spec.key("ple.layer_multipliers",
           std::vector<uint64_t>{40323955908725927u, 35454616657218691u, 55314113489879455u});
  spec.key("ple.head_vocab_sizes", std::vector<uint64_t>{101, 103, 107, 109});
  spec.key("ple.head_offsets", std::vector<uint64_t>{0, 101, 204, 311});
  const auto wide_block = [&](uint32_t l) {
    const std::string b = block(l);
    hyper(spec, b + "hc_attn_", true);
    hyper(spec, b + "hc_ffn_", true);
    if (l == 8 || (l + 1) % 4 == 0) {
      attention(spec, b, s, true);
      spec.tensor(b + "indexer.q_proj.weight", {kEmbd, 64});
      spec.tensor(b + "indexer.k_proj.weight", {kEmbd, 16});
      spec.tensor(b + "indexer.q_norm.weight", {16});
      spec.tensor(b + "indexer.k_norm.weight", {16});
    } else {
      delta(spec, b, s, false, false);
    }
    experts(spec, b, s, options);
  };
  if (!options.only_draft) {
    spec.tensor("token_embd.weight", {kEmbd, kVocab});
    if (!options.tied) spec.tensor("output.weight", {kEmbd, kVocab});
    hyper(spec, "output_hc_", false);
    spec.tensor("per_layer_token_embd.weight", {16, 424});
    for (uint32_t l = 0; l < 8; ++l) wide_block(l);
    spec.tensor("blk.1.ple_key.weight", {kEmbd, kStreams * kEmbd});
    spec.tensor("blk.1.ple_value.weight", {kEmbd, kEmbd});
    for (const char* norm : {"key", "query", "conv"}) {
      spec.tensor(fmt::format("blk.1.ple_norm_{}.weight", norm), {kStreams * kEmbd});
    }
    spec.tensor("blk.1.ple_conv1d.weight", {4, kStreams * kEmbd});
  }
  if (draft) {
    wide_block(8);
    spec.tensor("blk.8.nextn.eh_proj.weight", {2 * kEmbd, kEmbd});
    spec.tensor("blk.8.nextn.enorm.weight", {kEmbd});
    spec.tensor("blk.8.nextn.hnorm.weight", {kStreams * kEmbd});
    hyper(spec, "blk.8.nextn.hc_head_", false);
  }
  return spec;
}

std::vector<float> values(const std::string& name, const std::vector<uint64_t>& dims) {
  uint64_t n = 1;
  for (const uint64_t d : dims) n *= d;
  std::vector<float> v(n);
  for (uint64_t i = 0; i < n; ++i) v[i] = tiny_value(name, i, dims[0]);
  return v;
}

// Tensors that are other tensors' values rearranged.
std::vector<float> tensor_values(const TensorSpec& t) {
  const size_t dot = t.name.rfind('.');
  const std::string stem = t.name.substr(0, t.name.rfind('.', dot - 1) + 1);
  if (t.name.ends_with("ffn_gate_up_exps.weight")) {
    const uint64_t half = t.dims[0] * t.dims[1] / 2;
    const std::vector<uint64_t> dims{t.dims[0], t.dims[1] / 2, t.dims[2]};
    const std::vector<float> gate = values(stem + "ffn_gate_exps.weight", dims);
    const std::vector<float> up = values(stem + "ffn_up_exps.weight", dims);
    std::vector<float> v;
    for (uint64_t e = 0; e < t.dims[2]; ++e) {
      for (const std::vector<float>* from : {&gate, &up}) {
        const auto start = from->begin() + static_cast<std::ptrdiff_t>(e * half);
        v.insert(v.end(), start, start + static_cast<std::ptrdiff_t>(half));
      }
    }
    return v;
  }
  if (t.name.ends_with("ssm_in.weight")) {  // qwen3next: 2 key heads, 3 value heads each, of 16
    constexpr uint64_t kS = 16, kRows = 3 * kS;
    const std::vector<float> qkv = values(stem + "attn_qkv.weight", {kEmbd, 160});
    const std::vector<float> z = values(stem + "attn_gate.weight", {kEmbd, 96});
    std::vector<float> v;
    const auto rows = [&](const std::vector<float>& from, uint64_t first, uint64_t n) {
      const auto start = from.begin() + static_cast<std::ptrdiff_t>(first * kEmbd);
      v.insert(v.end(), start, start + static_cast<std::ptrdiff_t>(n * kEmbd));
    };
    for (uint64_t g = 0; g < 2; ++g) {
      rows(qkv, g * kS, kS);
      rows(qkv, 2 * kS + g * kS, kS);
      rows(qkv, 4 * kS + g * kRows, kRows);
      rows(z, g * kRows, kRows);
    }
    return v;
  }
  return values(t.name, t.dims);
}

// Q8_0: d = max|x| / 127 as f16, codes round(x / d).
std::vector<std::byte> encode_q8_0(const std::vector<float>& v) {
  std::vector<std::byte> out(v.size() / 32 * 34);
  for (size_t b = 0; b < v.size() / 32; ++b) {
    float most = 0.0f;
    for (size_t i = 0; i < 32; ++i) most = std::max(most, std::fabs(v[b * 32 + i]));
    float scale[8] = {most / 127.0f};
    uint16_t half[8];
    ops::kernels().to_half(scale, half, 8);
    ops::kernels().from_half(half, scale, 8);
    std::memcpy(&out[b * 34], half, 2);
    for (size_t i = 0; i < 32; ++i) {
      const float code = scale[0] > 0.0f ? std::nearbyint(v[b * 32 + i] / scale[0]) : 0.0f;
      out[b * 34 + 2 + i] =
          static_cast<std::byte>(static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f)));
    }
  }
  return out;
}

bool quantised(const TensorSpec& t, gguf::TypeId type) {
  const bool routers = t.name.find("ffn_gate_inp") != std::string::npos;
  return type == gguf::TypeId::Q8_0 && t.dims.size() > 1 && t.dims[0] % 32 == 0 && !routers;
}

}  // namespace

float tiny_value(std::string_view name, uint64_t i, uint64_t ne0) {
  const uint64_t v = splitmix64(fnv1a64(name) + i);
  const double u = static_cast<double>(v >> 44) / 1048576.0;
  const double x = 2.0 * u - 1.0;
  if (name.ends_with("ssm_a")) return static_cast<float>(-(0.25 + 4.0 * u));
  if (name.ends_with("ssm_dt.bias")) return static_cast<float>(x);
  const std::string_view stem = name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
  const std::string_view last = stem.substr(stem.rfind('.') + 1);
  if (name.ends_with(".weight") && last.find("norm") != std::string_view::npos) {
    return static_cast<float>(1.0 + 0.25 * x);
  }
  if (name.ends_with("conv1d.weight")) return static_cast<float>(0.5 * x);
  if (name == "token_embd.weight" || name == "per_layer_token_embd.weight") {
    return static_cast<float>(x);
  }
  if (name.ends_with("ffn_gate_inp.weight")) return static_cast<float>(0.5 * x);
  int log2 = 0;
  while ((ne0 >> (log2 + 1)) != 0) ++log2;
  return static_cast<float>(std::ldexp(x, -(log2 / 2)));
}

std::vector<int32_t> tiny_tokens(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(i == 9 || i == 20 ? 5 : (37 * i + 11) % 128);
  return tokens;
}

std::string write_tiny(const std::string& folder, const std::string& architecture,
                       const TinyOptions& options, const std::string& name) {
  Spec spec = architecture == "qwen4exp" ? wide(options) : plain(architecture, options);
  const std::string path = folder + "/" + (name.empty() ? architecture + ".gguf" : name);
  gguf::Writer writer(path);
  writer.set_string("general.architecture", architecture);
  for (const auto& [key, value] : options.set) {
    std::erase_if(spec.keys, [&, k = key](const auto& pair) { return pair.first == k; });
    spec.keys.emplace_back(key, value);
  }
  for (const auto& [key, value] : spec.keys) {
    if (options.remove.contains(key)) continue;
    const std::string full = key.starts_with(".") ? key.substr(1) : architecture + "." + key;
    struct Set {
      gguf::Writer& writer;
      const std::string& key;
      void operator()(uint32_t v) const { writer.set_u32(key, v); }
      void operator()(float v) const { writer.set_f32(key, v); }
      void operator()(const std::string& v) const { writer.set_string(key, v); }
      void operator()(const std::vector<int32_t>& v) const { writer.set_i32_array(key, v); }
      void operator()(const std::vector<uint64_t>& v) const { writer.set_u64_array(key, v); }
      void operator()(const std::vector<std::string>& v) const { writer.set_string_array(key, v); }
    };
    std::visit(Set{writer, full}, value);
  }
  std::erase_if(spec.tensors, [&](const TensorSpec& t) { return options.remove.contains(t.name); });
  for (const auto& [tensor, dims] : options.extra) spec.tensor(tensor, dims);
  for (TensorSpec& t : spec.tensors) {
    if (const auto it = options.shapes.find(t.name); it != options.shapes.end()) {
      t.dims = it->second;
    }
    writer.add_tensor(
        t.name, quantised(t, options.matrices) ? gguf::TypeId::Q8_0 : gguf::TypeId::F32, t.dims);
  }
  writer.begin();
  for (const TensorSpec& t : spec.tensors) {
    std::vector<float> v = tensor_values(t);
    if (std::any_of(options.zero.begin(), options.zero.end(),
                    [&](const std::string& end) { return t.name.ends_with(end); })) {
      std::fill(v.begin(), v.end(), 0.0f);
    }
    if (quantised(t, options.matrices)) {
      writer.append(encode_q8_0(v));
    } else {
      writer.append(std::as_bytes(std::span(v)));
    }
  }
  writer.finish();
  return path;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "penstock-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    fail(ErrorKind::Io, "{}: no temporary folder", pattern);
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace penstock::testing
