// Shapes and types of published models (spec/qwen4exp.md §0, spec/moe-architectures.md §2-4, §10,
// spec/gguf-quants.md §11).
#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "surgery/synth_plan.h"

namespace penstock::surgery {
namespace {

using gguf::TypeId;

constexpr std::string_view kPresets[] = {
    "qwen3.8-flash-next", "qwen3.8-flash-next-k256", "qwen3.8-flash-next-k256-q2_0",
    "qwen3-30b-a3b",      "qwen3.6-35b-a3b",         "qwen3-next-80b-a3b",
};

bool is_down(const char* kind) {
  return std::string_view(kind) == "down";
}

// The published IQ3_S mix of Qwen3.8-Flash-Next: gate and up of 17 layers IQ3_XXS, 20 IQ2_S, 10
// IQ3_S, 1 IQ4_XS; down IQ4_NL in 39 layers and Q2_0 in 9. Which layers have which is not
// published: they are spread evenly, so that the first few layers are a sample of the whole.
TypeId flash_next_type(int64_t layer, const char* kind) {
  const int64_t l = layer % 48;
  if (is_down(kind)) return l % 5 == 4 ? TypeId::Q2_0 : TypeId::IQ4_NL;
  if (l == 2) return TypeId::IQ4_XS;
  if (l == 40) return TypeId::IQ2_S;
  constexpr std::array<TypeId, 4> cycle = {TypeId::IQ3_XXS, TypeId::IQ2_S, TypeId::IQ2_S,
                                           TypeId::IQ3_XXS};
  if (l % 5 == 3 || l == 47) return TypeId::IQ3_S;
  return cycle[static_cast<size_t>(l) % cycle.size()];
}

// The stock Q4_K_M rule: some layers get more bits for sensitive matrices.
bool more_bits(int64_t layer, int64_t n_layer) {
  return layer < n_layer / 8 || layer >= 7 * n_layer / 8 || (layer - n_layer / 8) % 3 == 2;
}

void use_q4_k_m(SynthShape* shape) {
  const int64_t n = shape->n_layer;
  shape->dense = shape->embedding = TypeId::Q4_K;
  shape->head = TypeId::Q6_K;
  shape->expert_type = [n](int64_t layer, const char* kind) {
    return is_down(kind) && more_bits(layer, n) ? TypeId::Q6_K : TypeId::Q4_K;
  };
  shape->dense_type = [n](int64_t layer, const char* part) {
    const std::string_view name(part);
    const bool sensitive = name == "attn_v" || name == "attn_qkv" || name == "ffn_down_shexp";
    return sensitive && more_bits(layer, n) ? TypeId::Q6_K : TypeId::Q4_K;
  };
}

SynthShape flash_next() {
  SynthShape s;
  s.arch = "qwen4exp";
  s.name = "Qwen3.8 Flash Next";
  s.n_layer = 48;
  s.n_embd = 2560;
  s.n_vocab = 248320;
  s.n_context = 262144;
  s.n_head = 24;
  s.n_head_kv = 2;
  s.head_dim = 256;
  s.n_rot = 64;
  s.rope_base = 1e7f;
  s.n_expert = 512;
  s.n_used = 10;
  s.n_ff = s.n_ff_shared = 640;
  s.interval = 4;
  s.gdn_k_heads = 16;
  s.gdn_v_heads = 48;
  s.gdn_dim = 128;
  s.hyper = true;
  s.pre = "qwen35";
  s.fit = {0.3f, 0.55f, 17.0f};
  s.dense = TypeId::Q8_0;
  s.embedding = TypeId::Q4_K;
  s.head = TypeId::Q6_K;
  s.table = TypeId::IQ4_NL;
  s.expert_type = flash_next_type;
  return s;
}

SynthShape qwen3_30b() {
  SynthShape s;
  s.arch = "qwen3moe";
  s.name = "Qwen3 30B A3B";
  s.n_layer = 48;
  s.n_embd = 2048;
  s.n_vocab = 151936;
  s.n_context = 40960;
  s.n_head = 32;
  s.n_head_kv = 4;
  s.head_dim = s.n_rot = 128;
  s.rope_base = 1e6f;
  s.n_expert = 128;
  s.n_used = 8;
  s.n_ff = 768;
  s.pre = "qwen2";
  s.fit = {0.6f, 3.05f, 14.0f};
  use_q4_k_m(&s);
  return s;
}

SynthShape qwen35_family() {
  SynthShape s;
  s.n_embd = 2048;
  s.n_context = 262144;
  s.n_head = 16;
  s.n_head_kv = 2;
  s.head_dim = 256;
  s.n_rot = 64;
  s.rope_base = 1e7f;
  s.n_ff = s.n_ff_shared = 512;
  s.interval = 4;
  s.gdn_k_heads = 16;
  s.gdn_v_heads = 32;
  s.gdn_dim = 128;
  s.silu_gate = true;
  s.fit = {0.3f, 0.55f, 17.0f};  // no curve of these models is published: Flash-Next's
  return s;
}

SynthShape qwen36_35b() {
  SynthShape s = qwen35_family();
  s.arch = "qwen35moe";
  s.name = "Qwen3.6 35B A3B";
  s.n_layer = 40;
  s.n_vocab = 248320;
  s.n_expert = 256;
  s.n_used = 8;
  s.pre = "qwen35";
  use_q4_k_m(&s);
  return s;
}

SynthShape qwen3_next_80b() {
  SynthShape s = qwen35_family();
  s.arch = "qwen3next";
  s.name = "Qwen3 Next 80B A3B";
  s.n_layer = 48;
  s.n_vocab = 151936;
  s.n_expert = 512;
  s.n_used = 10;
  s.ssm_ba = true;
  s.pre = "qwen2";
  use_q4_k_m(&s);
  return s;
}

}  // namespace

std::vector<std::string_view> synth_presets() {
  return {std::begin(kPresets), std::end(kPresets)};
}

SynthShape synth_preset(const std::string& name) {
  if (name == kPresets[0]) return flash_next();
  if (name == kPresets[1] || name == kPresets[2]) {
    SynthShape s = flash_next();
    s.n_expert = 256;
    if (name == kPresets[2]) {
      s.expert_type = [](int64_t, const char*) { return TypeId::Q2_0; };
    }
    return s;
  }
  if (name == kPresets[3]) return qwen3_30b();
  if (name == kPresets[4]) return qwen36_35b();
  if (name == kPresets[5]) return qwen3_next_80b();
  fail(ErrorKind::Usage, "there is no preset '{}': {}", name, fmt::join(synth_presets(), ", "));
}

}  // namespace penstock::surgery
