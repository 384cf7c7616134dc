#include "surgery/synth_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "quant/codec.h"
#include "surgery/block_fill.h"

namespace penstock::surgery {
namespace {

using gguf::TypeId;

constexpr uint64_t kConstant = 256;  // elements of part C
constexpr uint64_t kContext = 512;   // elements of part S
// The residual's scale: standard deviation of each part after the first block.
constexpr float kUnit = 1.0f / 16;
constexpr float kLaterMixer = 0.02f;   // energy that a block after the first adds to part S
constexpr float kFeedForward = 0.02f;  // energy that a feed-forward block adds to part T
constexpr float kNgram = 0.1f;         // energy that the n-gram block adds to part T

// Gains of a matrix that reads the hidden vector: deviation of its output due to each part.
struct Reads {
  float constant = 0, context = 0, token = 0;
};

bool is_prime(uint64_t n) noexcept {
  if (n < 4) return n > 1;
  if (n % 2 == 0) return false;
  for (uint64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

class Planner {
 public:
  explicit Planner(const SynthOptions& options) : options_(options) {}
  SynthPlan make();

 private:
  void shape();
  void global_tensors();
  void layer(int64_t l);
  void norms(int64_t l);
  void hyper_connections(const std::string& prefix, bool inject);
  void attention(int64_t l);
  void indexer(int64_t l);
  void delta_net(int64_t l);
  void ngram_block(int64_t l);
  void feed_forward(int64_t l);
  void router(int64_t l);
  void experts(int64_t l);
  void ngram_constants();

  SynthTensor& add(const std::string& name, TypeId type, std::vector<uint64_t> dims);
  TypeId dense_type(int64_t l, const char* part) const;
  TypeId expert_type(int64_t l, const char* kind) const;
  void constant(const std::string& name, uint64_t n, float value);
  void gaussian(const std::string& name, std::vector<uint64_t> dims, float deviation);
  void vector(const std::string& name, std::vector<float> values);
  std::vector<Piece> reads(const Reads& gains, uint64_t key = 0, uint64_t period = 1) const;
  void reader(const std::string& name, TypeId type, std::vector<uint64_t> dims, const Reads& gains);
  void writer(const std::string& name, TypeId type, std::vector<uint64_t> dims, float input,
              float context, float token);
  void plain(const std::string& name, TypeId type, std::vector<uint64_t> dims, float deviation);
  std::vector<float> constant_response(const SynthTensor& tensor, const Piece& piece,
                                       uint64_t n) const;

  uint64_t tokens_part() const { return n_embd_ - kConstant - kContext; }
  uint64_t tensor_seed(const std::string& name) const;
  float context_energy(int64_t l) const { return 1 + kLaterMixer * static_cast<float>(l); }
  float token_energy(int64_t l) const {
    return 1 + kFeedForward * static_cast<float>(l) + (plan_.shape.hyper && l > 1 ? kNgram : 0);
  }
  // What the norms in front of layer l's feed-forward block and mixer multiply the residual by, in
  // units of kUnit. The first mixer comes before anything is in part S.
  float norm_factor(int64_t l) const;
  float mixer_factor(int64_t l) const {
    const auto n = static_cast<float>(n_embd_);
    return l == 0 ? std::sqrt(n / (n - static_cast<float>(kContext))) : norm_factor(l - 1);
  }
  std::string blk(int64_t l, const char* part) const { return fmt::format("blk.{}.{}", l, part); }

  const SynthOptions& options_;
  SynthPlan plan_;
  uint64_t n_embd_ = 0;
  std::vector<float> constant_;  // part C as the embedding stores it, in kUnit
  size_t n_listed_ = 0;          // tensors whose types options.like gives
};

uint64_t hash_text(std::string_view text) noexcept {
  uint64_t h = 0xcbf29ce484222325;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h;
}

uint64_t Planner::tensor_seed(const std::string& name) const {
  return Random::mix(options_.seed, hash_text(name));
}

float Planner::norm_factor(int64_t l) const {
  const auto n = static_cast<float>(n_embd_);
  const float energy = static_cast<float>(kConstant) +
                       static_cast<float>(kContext) * context_energy(l) +
                       static_cast<float>(tokens_part()) * token_energy(l);
  return std::sqrt(n / energy);
}

SynthTensor& Planner::add(const std::string& name, TypeId type, std::vector<uint64_t> dims) {
  SynthTensor tensor;
  tensor.name = name;
  tensor.dims = std::move(dims);
  const TypeId* listed = listed_type(options_.like, name);
  if (listed != nullptr) ++n_listed_;
  tensor.type = listed != nullptr ? *listed : fitting_type(type, tensor.dims[0]);
  if (tensor.dims[0] % gguf::type_info(tensor.type).block_elems != 0) {
    fail(ErrorKind::Usage, "tensor {} is listed as {}, but its rows of {} are no whole blocks",
         name, gguf::type_name(tensor.type), tensor.dims[0]);
  }
  plan_.tensors.push_back(std::move(tensor));
  return plan_.tensors.back();
}

TypeId Planner::dense_type(int64_t l, const char* part) const {
  if (options_.has_dense_type) return options_.dense_type;
  return plan_.shape.dense_type ? plan_.shape.dense_type(l, part) : plan_.shape.dense;
}

TypeId Planner::expert_type(int64_t l, const char* kind) const {
  return options_.has_expert_type ? options_.expert_type : plan_.shape.expert_type(l, kind);
}

void Planner::constant(const std::string& name, uint64_t n, float value) {
  add(name, TypeId::F32, {n}).values = [value](uint64_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), value);
  };
}

void Planner::gaussian(const std::string& name, std::vector<uint64_t> dims, float deviation) {
  plain(name, TypeId::F32, std::move(dims), deviation);
}

void Planner::vector(const std::string& name, std::vector<float> values) {
  SynthTensor& tensor = add(name, TypeId::F32, {values.size()});
  tensor.values = [values = std::move(values)](uint64_t, std::span<float> out) {
    std::copy(values.begin(), values.end(), out.begin());
  };
}

std::vector<Piece> Planner::reads(const Reads& gains, uint64_t key, uint64_t period) const {
  const auto per = [](float gain, uint64_t n) { return gain / std::sqrt(static_cast<float>(n)); };
  return {{0, kConstant, per(gains.constant, kConstant), key, period},
          {kConstant, kConstant + kContext, per(gains.context, kContext), 0, 1},
          {kConstant + kContext, n_embd_, per(gains.token, tokens_part()), 0, 1}};
}

void Planner::reader(const std::string& name, TypeId type, std::vector<uint64_t> dims,
                     const Reads& gains) {
  const uint64_t rows = dims[1];
  add(name, type, std::move(dims)).bands = {{0, rows, reads(gains)}};
}

// A matrix whose output is added to the residual: nothing into part C; deviations of what it adds
// to S and T, in kUnit, for inputs of deviation `input`.
void Planner::writer(const std::string& name, TypeId type, std::vector<uint64_t> dims, float input,
                     float context, float token) {
  const uint64_t width = dims[0];
  const float per = kUnit / (input * std::sqrt(static_cast<float>(width)));
  const auto whole = [&](float deviation) { return std::vector<Piece>{{0, width, deviation}}; };
  add(name, type, std::move(dims)).bands = {{0, kConstant, whole(0)},
                                            {kConstant, kConstant + kContext, whole(context * per)},
                                            {kConstant + kContext, n_embd_, whole(token * per)}};
}

void Planner::plain(const std::string& name, TypeId type, std::vector<uint64_t> dims,
                    float deviation) {
  const uint64_t width = dims[0];
  const uint64_t rows = dims.size() > 1 ? dims[1] : 1;
  add(name, type, std::move(dims)).bands = {{0, rows, {{0, width, deviation}}}};
}

// What the first n rows of the tensor give for part C alone (a piece with a key), as decoded.
std::vector<float> Planner::constant_response(const SynthTensor& tensor, const Piece& piece,
                                              uint64_t n) const {
  const BlockFill fill(tensor.type);
  std::vector<std::byte> blocks(gguf::row_bytes(tensor.type, kConstant));
  std::vector<float> row(kConstant);
  std::vector<float> out;
  for (uint64_t r = 0; r < n; ++r) {
    fill.fill(blocks.data(), kConstant, piece.deviation,
              Random::mix(Random::mix(options_.seed, piece.key), r % piece.period));
    quant::decode_row(tensor.type, blocks.data(), row.data(), static_cast<int64_t>(kConstant));
    float sum = 0;
    for (uint64_t i = 0; i < kConstant; ++i) sum += row[i] * constant_[i];
    out.push_back(sum);
  }
  return out;
}

void Planner::shape() {
  SynthShape& s = plan_.shape = synth_preset(options_.preset);
  for (const ListedTensor& tensor : options_.like) {
    if (options_.experts == 0 && tensor.name.ends_with(".ffn_gate_exps.weight") &&
        tensor.dims.size() == 3) {
      s.n_expert = tensor.dims[2];
    }
  }
  if (options_.layers > 0) s.n_layer = options_.layers;
  if (options_.experts > 0) s.n_expert = options_.experts;
  if (options_.fit != nullptr) s.fit = *options_.fit;
  if (!(options_.scale > 0 && options_.scale <= 1)) {
    fail(ErrorKind::Usage, "--scale {} is not in (0, 1]", options_.scale);
  }
  if (options_.scale < 1) {
    const auto shrink = [&](uint64_t n, uint64_t multiple, uint64_t least) {
      const auto scaled = static_cast<uint64_t>(static_cast<double>(n) * options_.scale);
      return std::max(least, scaled / multiple * multiple);
    };
    // The n-gram table's rows are a sixteenth, in blocks of 32.
    s.n_embd = shrink(s.n_embd, s.hyper ? 512 : 256, 1024);
    s.n_ff = shrink(s.n_ff, 64, 64);
    s.n_ff_shared = s.n_ff_shared == 0 ? 0 : shrink(s.n_ff_shared, 64, 64);
    s.n_vocab = shrink(s.n_vocab, 256, 2048);
  }
  if (s.n_expert < s.n_used) {
    fail(ErrorKind::Usage, "{} experts are fewer than the {} that each token uses", s.n_expert,
         s.n_used);
  }
  if (s.n_layer > 4096 || s.n_expert > 65536) {
    fail(ErrorKind::Usage, "{} layers of {} experts are beyond what any model has (4096, 65536)",
         s.n_layer, s.n_expert);
  }
  if (s.hyper && s.n_layer < 2) {
    fail(ErrorKind::Usage, "{} needs at least 2 layers: its n-gram block is in the second",
         options_.preset);
  }
  n_embd_ = s.n_embd;
}

void Planner::global_tensors() {
  const SynthShape& s = plan_.shape;
  const TypeId embedding = options_.has_dense_type ? options_.dense_type : s.embedding;
  SynthTensor& tokens = add("token_embd.weight", embedding, {n_embd_, s.n_vocab});
  const Piece same{0, kConstant, kUnit, hash_text("constant"), 1};
  tokens.bands = {{0,
                   s.n_vocab,
                   {same,
                    {kConstant, kConstant + kContext, 0, 0, 1},
                    {kConstant + kContext, n_embd_, kUnit, 0, 1}}}};
  const BlockFill fill(tokens.type);
  std::vector<std::byte> blocks(gguf::row_bytes(tokens.type, kConstant));
  fill.fill(blocks.data(), kConstant, same.deviation,
            Random::mix(Random::mix(options_.seed, same.key), 0));
  constant_.resize(kConstant);
  quant::decode_row(tokens.type, blocks.data(), constant_.data(), static_cast<int64_t>(kConstant));
  for (float& x : constant_) x /= kUnit;

  const TypeId head = options_.has_dense_type ? options_.dense_type : s.head;
  reader("output.weight", head, {n_embd_, s.n_vocab}, {0, 0.5f, 2.4f});
  if (s.hyper) {
    hyper_connections("output_hc", false);
    plain("per_layer_token_embd.weight", s.table,
          {n_embd_ / 16, (plan_.ple_offsets.back() + plan_.ple_sizes.back() + 127) / 128 * 128},
          0.02f);
  } else {
    constant("output_norm.weight", n_embd_, 1.0f);
  }
}

// Mixers near their neutral point: each stream's gate about one half, each injection about one. The
// norm's weight of 2 makes up for the half.
void Planner::hyper_connections(const std::string& prefix, bool inject) {
  const uint64_t wide = 4 * n_embd_;
  const uint64_t rank = n_embd_ / 8;
  const int64_t l = prefix.starts_with("blk.") ? 0 : -1;
  constant(prefix + "_norm.weight", wide, 2.0f);
  const float per = 1.0f / std::sqrt(static_cast<float>(wide));
  plain(prefix + "_down.weight", dense_type(l, "hc_down"), {wide, rank}, 0.6f * per);
  plain(prefix + "_up.weight", dense_type(l, "hc_up"), {rank, wide},
        2.0f / std::sqrt(static_cast<float>(rank)));
  if (inject) plain(prefix + "_inject.weight", TypeId::F32, {wide, 4}, 0.6f * per);
}

void Planner::norms(int64_t l) {
  const SynthShape& s = plan_.shape;
  if (s.hyper) {
    hyper_connections(blk(l, "hc_attn"), true);
    hyper_connections(blk(l, "hc_ffn"), true);
    return;
  }
  constant(blk(l, "attn_norm.weight"), n_embd_, 1.0f);
  constant(blk(l, s.arch == "qwen3moe" ? "ffn_norm.weight" : "post_attention_norm.weight"), n_embd_,
           1.0f);
}

// Queries and keys follow part C, so their scores depend on distance alone: a window over recent
// tokens, made by the norms' weights on a few rotary pairs. The values carry the tokens.
void Planner::attention(int64_t l) {
  const SynthShape& s = plan_.shape;
  const bool gated = s.interval != 0;  // per head: query rows, then gate rows
  const uint64_t q_width = s.n_head * s.head_dim;
  const uint64_t key = hash_text(fmt::format("window {}", l));
  const Reads window{1.0f, 0, 0.1f};
  SynthTensor& q = add(blk(l, "attn_q.weight"), dense_type(l, "attn_q"),
                       {n_embd_, gated ? 2 * q_width : q_width});
  for (uint64_t h = 0; h < s.n_head; ++h) {
    const uint64_t first = h * s.head_dim * (gated ? 2 : 1);
    q.bands.push_back(
        {first, first + s.head_dim, reads(window, key, s.head_dim * (gated ? 2 : 1))});
    if (gated) {
      q.bands.push_back({first + s.head_dim, first + 2 * s.head_dim, reads({0.2f, 0.2f, 0.2f})});
    }
  }
  const std::vector<float> q_constant =
      constant_response(q, q.bands.front().pieces.front(), s.head_dim);
  SynthTensor& k =
      add(blk(l, "attn_k.weight"), dense_type(l, "attn_k"), {n_embd_, s.n_head_kv * s.head_dim});
  k.bands = {{0, s.n_head_kv * s.head_dim, reads(window, key, s.head_dim)}};
  const std::vector<float> k_constant =
      constant_response(k, k.bands.front().pieces.front(), s.head_dim);
  reader(blk(l, "attn_v.weight"), dense_type(l, "attn_v"), {n_embd_, s.n_head_kv * s.head_dim},
         {0, 0, 1 / mixer_factor(l)});

  // A score of sum over pairs of a^2 cos(distance * angle): pairs whose angle suits the window.
  std::vector<float> amplitude(s.head_dim, 0.0f);
  const uint64_t half = s.n_rot / 2;
  double total = 0;
  for (uint64_t i = 0; i < half; ++i) {
    const double angle = std::pow(static_cast<double>(s.rope_base),
                                  -2.0 * static_cast<double>(i) / static_cast<double>(s.n_rot));
    const double turn = angle * static_cast<double>(s.fit.context_tokens);
    if (turn > 0.25 && turn < 4.0) amplitude[i] = amplitude[i + half] = 1.0f;
    total += amplitude[i] > 0 ? 2 : 0;
  }
  // Sharp enough that what lies a window away has lost most of its weight.
  constexpr double kSharpness = 4.0;
  const auto scale = static_cast<float>(
      std::sqrt(kSharpness * std::sqrt(static_cast<double>(s.head_dim)) / std::max(total, 1.0)));
  const auto norm_weights = [&](const std::vector<float>& response) {
    double square = 0;
    for (const float x : response) square += static_cast<double>(x) * static_cast<double>(x);
    const auto rms = static_cast<float>(std::sqrt(square / static_cast<double>(response.size())));
    std::vector<float> weights(s.head_dim);
    for (uint64_t i = 0; i < s.head_dim; ++i) {
      const float x = response[i] / rms;
      const float size = std::max(std::fabs(x), 0.4f);
      weights[i] = (x < 0 ? -1.0f : 1.0f) * scale * amplitude[i] / size;
    }
    return weights;
  };
  vector(blk(l, "attn_q_norm.weight"), norm_weights(q_constant));
  vector(blk(l, "attn_k_norm.weight"), norm_weights(k_constant));

  // The average of a window of tokens has about this deviation (0.72: measured for the kernel
  // above).
  const float average = 0.72f / std::sqrt(std::max(1.0f, s.fit.context_tokens));
  const bool only = s.interval == 0;
  const float context = only && l == 0 ? 1.0f : std::sqrt(kLaterMixer) * (only ? 1.0f : 0.5f);
  writer(blk(l, "attn_output.weight"), dense_type(l, "attn_output"), {q_width, n_embd_},
         average * (gated ? 0.5f : 1.0f), context, 0.0f);
  if (s.hyper) indexer(l);
}

void Planner::indexer(int64_t l) {
  reader(blk(l, "indexer.q_proj.weight"), TypeId::BF16, {n_embd_, 4 * 128}, {0.3f, 0.6f, 0.6f});
  reader(blk(l, "indexer.k_proj.weight"), TypeId::BF16, {n_embd_, 128}, {0.3f, 0.6f, 0.6f});
  constant(blk(l, "indexer.q_norm.weight"), 128, 1.0f);
  constant(blk(l, "indexer.k_norm.weight"), 128, 1.0f);
}

// With a constant key the delta rule's state is an exponential average of the values, whose length
// beta sets. The values pass a silu; heads come in pairs with negated values and negated output
// columns, which cancels the even part of that function, a constant that would drown the average.
void Planner::delta_net(int64_t l) {
  const SynthShape& s = plan_.shape;
  const uint64_t keys = s.gdn_k_heads * s.gdn_dim;
  const uint64_t values = s.gdn_v_heads * s.gdn_dim;
  const uint64_t key = hash_text(fmt::format("delta {}", l));
  SynthTensor& qkv =
      add(blk(l, "attn_qkv.weight"), dense_type(l, "attn_qkv"), {n_embd_, 2 * keys + values});
  qkv.bands = {{0, 2 * keys, reads({1.0f, 0, 0.1f}, key, keys)}};
  constexpr float kValue = 0.5f;
  std::vector<Piece> positive = reads({0, 0, kValue / mixer_factor(l)});
  positive[2].key = Random::mix(key, 1);
  positive[2].period = values / 2;
  std::vector<Piece> negative = positive;
  negative[2].deviation = -negative[2].deviation;
  // Rows are told apart by their number within the tensor: both halves must agree modulo the
  // period.
  qkv.bands.push_back({2 * keys, 2 * keys + values / 2, positive});
  qkv.bands.push_back({2 * keys + values / 2, 2 * keys + values, negative});

  const float z = (s.silu_gate ? 1.5f : 0.5f) / mixer_factor(l);
  SynthTensor& gate =
      add(blk(l, "attn_gate.weight"), dense_type(l, "attn_gate"), {n_embd_, values});
  gate.bands = {{0, values, reads({z, 0, 0}, Random::mix(key, 2), values / 2)}};

  add(blk(l, "ssm_conv1d.weight"), TypeId::F32, {4, 2 * keys + values}).values =
      [](uint64_t, std::span<float> taps) {
        std::fill(taps.begin(), taps.end(), 0.0f);
        taps.back() = 1.0f;
      };
  const float n_tokens = std::max(2.0f, s.fit.context_tokens);
  const float keep = std::exp(-1.0f / n_tokens);
  constexpr float kDecayBias = -5.0f;
  constexpr float kDecay = -0.5f;
  const float alpha = std::exp(kDecay * std::log1p(std::exp(kDecayBias)));
  const float beta = 1 - keep / alpha;
  const float logit = std::log(beta / (1 - beta));
  // A row that gives the value on part C whatever the token.
  const auto on_constant = [c = constant_, factor = mixer_factor(l)](float value,
                                                                     std::span<float> out) {
    float square = 0;
    for (const float x : c) square += x * x;
    std::fill(out.begin(), out.end(), 0.0f);
    for (size_t i = 0; i < c.size(); ++i) out[i] = value * c[i] / (square * factor);
  };
  if (s.ssm_ba) {
    const uint64_t r = s.gdn_v_heads / s.gdn_k_heads;
    add(blk(l, "ssm_ba.weight"), TypeId::F32, {n_embd_, 2 * s.gdn_v_heads}).values =
        [=](uint64_t row, std::span<float> out) {
          on_constant(row % (2 * r) < r ? logit : 0.0f, out);
        };
  } else {
    add(blk(l, "ssm_alpha.weight"), TypeId::F32, {n_embd_, s.gdn_v_heads}).values =
        [=](uint64_t, std::span<float> out) { on_constant(0.0f, out); };
    add(blk(l, "ssm_beta.weight"), TypeId::F32, {n_embd_, s.gdn_v_heads}).values =
        [=](uint64_t, std::span<float> out) { on_constant(logit, out); };
  }
  constant(blk(l, "ssm_dt.bias"), s.gdn_v_heads, kDecayBias);
  constant(blk(l, "ssm_a"), s.gdn_v_heads, kDecay);
  constant(blk(l, "ssm_norm.weight"), s.gdn_dim, 1.0f);

  // Share of the average in a head's normed output, by the constants above.
  const float average = 0.5f * kValue * std::sqrt((1 - keep) / 2);
  const float even = 0.25f * kValue * kValue;
  const float share = average / std::sqrt(average * average + even * even);
  const float gated = s.silu_gate ? 0.91f : 0.52f;
  const float context = l == 0 ? 1.0f : std::sqrt(kLaterMixer);
  SynthTensor& out = add(blk(l, "ssm_out.weight"), dense_type(l, "ssm_out"), {values, n_embd_});
  const float per =
      context * kUnit / (2 * share * gated * std::sqrt(static_cast<float>(values) / 2));
  const uint64_t half = values / 2;
  const uint64_t columns = Random::mix(key, 3);
  out.bands = {{0, kConstant, {{0, values, 0}}},
               {kConstant,
                kConstant + kContext,
                {{0, half, per, columns, n_embd_}, {half, values, -per, columns, n_embd_}}},
               {kConstant + kContext, n_embd_, {{0, values, 0}}}};
}

void Planner::ngram_block(int64_t l) {
  const uint64_t wide = 4 * n_embd_;
  plain(blk(l, "ple_key.weight"), dense_type(l, "ple_key"), {n_embd_, wide}, 1.0f);
  const uint64_t width = n_embd_;  // 16 heads of a row each
  const float per = 2 * kUnit * std::sqrt(kNgram) / (0.02f * std::sqrt(static_cast<float>(width)));
  add(blk(l, "ple_value.weight"), dense_type(l, "ple_value"), {width, n_embd_}).bands = {
      {0, kConstant + kContext, {{0, width, 0}}},
      {kConstant + kContext, n_embd_, {{0, width, per}}}};
  constant(blk(l, "ple_norm_key.weight"), wide, 1.0f);
  constant(blk(l, "ple_norm_query.weight"), wide, 1.0f);
  const uint64_t n = n_embd_;
  add(blk(l, "ple_norm_conv.weight"), TypeId::F32, {wide}).values = [n](uint64_t,
                                                                        std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = i % n < kConstant + kContext ? 0.0f : 1.0f;
  };
  gaussian(blk(l, "ple_conv1d.weight"), {4, wide}, 0.1f * kUnit);
}

void Planner::router(int64_t l) {
  const SynthShape& s = plan_.shape;
  const RouterFit fit = s.fit;
  const float factor = norm_factor(l);
  const float spread =
      1.5f / std::sqrt(fit.popularity * fit.popularity + fit.context * fit.context + 1);
  float square = 0;
  for (const float x : constant_) square += x * x;
  const float on_constant = spread * fit.popularity / (square * factor);
  const float on_context =
      spread * fit.context / (factor * std::sqrt(static_cast<float>(kContext) * context_energy(l)));
  const float on_token =
      spread / (factor * std::sqrt(static_cast<float>(tokens_part()) * token_energy(l)));
  const uint64_t seed = tensor_seed(blk(l, "ffn_gate_inp.weight"));
  add(blk(l, "ffn_gate_inp.weight"), TypeId::F32, {n_embd_, s.n_expert}).values =
      [=, c = constant_](uint64_t row, std::span<float> out) {
        Random random(Random::mix(seed, row));
        const float popularity = random.gaussian() * on_constant;
        for (size_t i = 0; i < kConstant; ++i) out[i] = popularity * c[i];
        for (size_t i = kConstant; i < kConstant + kContext; ++i) {
          out[i] = random.gaussian() * on_context;
        }
        for (size_t i = kConstant + kContext; i < out.size(); ++i) {
          out[i] = random.gaussian() * on_token;
        }
      };
}

void Planner::experts(int64_t l) {
  const SynthShape& s = plan_.shape;
  const Reads in{0.4f, 0.5f, 0.8f};
  reader(blk(l, "ffn_gate_exps.weight"), expert_type(l, "gate"), {n_embd_, s.n_ff, s.n_expert}, in);
  reader(blk(l, "ffn_up_exps.weight"), expert_type(l, "up"), {n_embd_, s.n_ff, s.n_expert}, in);
  // silu(gate) * up has a deviation of about 0.6; the weights of the used experts add to one.
  const float shrink = 1.5f / std::sqrt(static_cast<float>(s.n_used));
  const float share = s.n_ff_shared > 0 ? 0.7f : 1.0f;
  writer(blk(l, "ffn_down_exps.weight"), expert_type(l, "down"), {s.n_ff, n_embd_, s.n_expert},
         0.6f * shrink, 0, share * std::sqrt(kFeedForward));
  if (s.n_ff_shared == 0) return;
  plain(blk(l, "ffn_gate_inp_shexp.weight"), TypeId::F32, {n_embd_},
        0.5f / std::sqrt(static_cast<float>(n_embd_)));
  reader(blk(l, "ffn_gate_shexp.weight"), dense_type(l, "ffn_gate_shexp"), {n_embd_, s.n_ff_shared},
         in);
  reader(blk(l, "ffn_up_shexp.weight"), dense_type(l, "ffn_up_shexp"), {n_embd_, s.n_ff_shared},
         in);
  writer(blk(l, "ffn_down_shexp.weight"), dense_type(l, "ffn_down_shexp"), {s.n_ff_shared, n_embd_},
         0.3f, 0, share * std::sqrt(kFeedForward));
}

void Planner::layer(int64_t l) {
  const SynthShape& s = plan_.shape;
  const bool recurrent = s.interval != 0 && (static_cast<uint64_t>(l) + 1) % s.interval != 0;
  norms(l);
  if (recurrent) {
    delta_net(l);
  } else {
    attention(l);
  }
  if (s.hyper && l == 1) ngram_block(l);
  router(l);
  experts(l);
}

// spec/qwen4exp.md §4.1: primes for the table's heads, odd multipliers from splitmix64.
void Planner::ngram_constants() {
  constexpr int kHeads = 16;
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
  constexpr uint64_t kBase = 1234;
  if (options_.ple_rows < 16 * kHeads || options_.ple_rows > uint64_t{1} << 31) {
    fail(ErrorKind::Usage, "--ple-rows {} is not between 256 and 2^31", options_.ple_rows);
  }
  uint64_t size = options_.ple_rows / kHeads;
  if (size >= 10000) size = size / 1000 * 1000;
  uint64_t offset = 0;
  for (int h = 0; h < kHeads; ++h) {
    while (!is_prime(size)) ++size;
    plan_.ple_sizes.push_back(size);
    plan_.ple_offsets.push_back(offset);
    offset += size++;
  }
  const uint64_t half = std::max<uint64_t>(1, ((~uint64_t{0} >> 1) / plan_.shape.n_vocab) / 2);
  for (uint64_t i = 0; i < 3; ++i) {
    Random random(kBase + kGolden * (i + 1));
    plan_.ple_multipliers.push_back(2 * (random.next() % half) + 1);
  }
}

SynthPlan Planner::make() {
  shape();
  if (plan_.shape.hyper) ngram_constants();
  global_tensors();
  for (int64_t l = 0; l < plan_.shape.n_layer; ++l) layer(l);
  if (!options_.like.empty()) {
    if (n_listed_ == 0) {
      fail(ErrorKind::Usage, "no tensor of the list is one of {}'s: is it another model's list?",
           options_.preset);
    }
    log::info("types of {} of {} tensors as listed", n_listed_, plan_.tensors.size());
  }
  return std::move(plan_);
}

}  // namespace

gguf::TypeId fitting_type(TypeId type, uint64_t row) noexcept {
  const auto fits = [row](TypeId t) { return row % gguf::type_info(t).block_elems == 0; };
  if (fits(type)) return type;
  TypeId other = TypeId::Q8_0;
  switch (type) {
    case TypeId::Q4_K:
      other = TypeId::Q5_0;
      break;
    case TypeId::Q5_K:
      other = TypeId::Q5_1;
      break;
    case TypeId::Q2_K:
    case TypeId::Q3_K:
    case TypeId::TQ1_0:
    case TypeId::TQ2_0:
    case TypeId::Q1_0:
    case TypeId::Q2_0:
      other = TypeId::Q4_0;
      break;
    case TypeId::IQ1_S:
    case TypeId::IQ1_M:
    case TypeId::IQ2_XXS:
    case TypeId::IQ2_XS:
    case TypeId::IQ2_S:
    case TypeId::IQ3_XXS:
    case TypeId::IQ3_S:
    case TypeId::IQ4_XS:
      other = TypeId::IQ4_NL;
      break;
    default:
      break;
  }
  return fits(other) ? other : TypeId::F16;
}

SynthPlan make_synth_plan(const SynthOptions& options) {
  return Planner(options).make();
}

}  // namespace penstock::surgery
