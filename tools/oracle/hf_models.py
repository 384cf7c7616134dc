"""Hugging Face's Qwen MoE classes and their GGUF form: metadata, names, layouts, both ways.

Four architectures: qwen4exp (Qwen4Exp), qwen3moe (Qwen3Moe), qwen35moe (Qwen3.5-MoE, text), qwen3next
(Qwen3-Next). A `Link` ties one Hugging Face parameter to the GGUF tensors that hold it, with the
transform in each direction, so that the exporter and the loader cannot disagree. What GGUF bakes in:
norms are multiply-ready (1 + w, but for the delta net's own norm), ssm_a = -exp(A_log), value heads
tiled over the key heads (not in qwen3next), gate and up of the experts apart, convolutions squeezed.
Arrays are C order, so a GGUF tensor [ne0, ne1] is an array of shape (ne1, ne0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import torch

import closed_form

Array = np.ndarray
# (GGUF type name, value): what a fixture and the writer need of one metadata entry
Meta = dict[str, tuple[str, Any]]


@dataclass(frozen=True)
class Link:
    """One Hugging Face parameter and the GGUF tensors that hold it."""

    hf: str
    gguf: tuple[str, ...]
    encode: Callable[[Array], tuple[Array, ...]]
    decode: Callable[[tuple[Array, ...]], Array]


def same(hf: str, gguf: str) -> Link:
    return Link(hf, (gguf,), lambda w: (w,), lambda g: g[0])


def plus_one(hf: str, gguf: str) -> Link:
    """A zero-centred norm weight."""
    return Link(hf, (gguf,), lambda w: (w + 1.0,), lambda g: g[0] - 1.0)


def vector(hf: str, gguf: str) -> Link:
    """A one-row matrix stored as a vector."""
    return Link(hf, (gguf,), lambda w: (w[0],), lambda g: g[0][None, :])


def conv(hf: str, gguf: str) -> Link:
    """[channels, 1, kernel] <-> [channels, kernel]."""
    return Link(hf, (gguf,), lambda w: (w[:, 0],), lambda g: g[0][:, None])


def halves(hf: str, first: str, second: str, axis: int, at: int) -> Link:
    """One parameter cut in two along `axis` after `at` entries."""

    def encode(w: Array) -> tuple[Array, ...]:
        a, b = np.split(w, [at], axis=axis)
        return a, b

    return Link(hf, (first, second), encode, lambda g: np.concatenate(g, axis=axis))


def tile(w: Array, key_heads: int, ratio: int, axis: int) -> Array:
    """Value heads from grouped (key head major) to tiled (key head minor) order along `axis`."""
    w = np.moveaxis(w, axis, 0)
    width = w.shape[0] // (key_heads * ratio)
    tiled = w.reshape(key_heads, ratio, width, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)
    return np.moveaxis(tiled, 0, axis)


def untile(w: Array, key_heads: int, ratio: int, axis: int) -> Array:
    return tile(w, ratio, key_heads, axis)


@dataclass(frozen=True)
class DeltaNet:
    """Sizes of a gated delta net."""

    key_heads: int
    value_heads: int
    head_dim: int
    kernel: int

    @property
    def ratio(self) -> int:
        return self.value_heads // self.key_heads

    @property
    def key_rows(self) -> int:
        return self.key_heads * self.head_dim

    @staticmethod
    def of(c: Any) -> "DeltaNet":
        if c.linear_key_head_dim != c.linear_value_head_dim:
            raise ValueError("GGUF has one state size for keys and values")
        return DeltaNet(c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_conv_kernel_dim)


def tiled_delta_net(prefix: str, block: str, d: DeltaNet) -> list[Link]:
    """qwen4exp and qwen35moe."""

    def rows(w: Array, inverse: bool = False) -> Array:
        return (untile if inverse else tile)(w, d.key_heads, d.ratio, 0)

    def qkv(w: Array, inverse: bool = False) -> Array:
        return np.concatenate([w[: 2 * d.key_rows], rows(w[2 * d.key_rows :], inverse)])

    def by_rows(hf: str, gguf: str) -> Link:
        return Link(prefix + hf, (block + gguf,), lambda w: (rows(w),), lambda g: rows(g[0], True))

    return [
        Link(f"{prefix}in_proj_qkv.weight", (f"{block}attn_qkv.weight",), lambda w: (qkv(w),), lambda g: qkv(g[0], True)),
        by_rows("in_proj_z.weight", "attn_gate.weight"),
        by_rows("in_proj_b.weight", "ssm_beta.weight"),
        by_rows("in_proj_a.weight", "ssm_alpha.weight"),
        by_rows("dt_bias", "ssm_dt.bias"),
        Link(
            f"{prefix}A_log",
            (f"{block}ssm_a",),
            lambda w: (-np.exp(rows(w)),),
            lambda g: rows(np.log(-g[0]), True),
        ),
        Link(
            f"{prefix}conv1d.weight",
            (f"{block}ssm_conv1d.weight",),
            lambda w: (qkv(w[:, 0]),),
            lambda g: qkv(g[0], True)[:, None],
        ),
        same(f"{prefix}norm.weight", f"{block}ssm_norm.weight"),
        Link(
            f"{prefix}out_proj.weight",
            (f"{block}ssm_out.weight",),
            lambda w: (tile(w, d.key_heads, d.ratio, 1),),
            lambda g: untile(g[0], d.key_heads, d.ratio, 1),
        ),
    ]


def grouped_delta_net(prefix: str, block: str, d: DeltaNet) -> list[Link]:
    """qwen3next: value heads keep their order; in_proj_qkvz runs per key head q, k, v, z."""
    value_run = d.ratio * d.head_dim

    def encode(w: Array) -> tuple[Array, ...]:
        runs = w.reshape(d.key_heads, 2 * d.head_dim + 2 * value_run, -1)
        q, k, v, z = np.split(runs, np.cumsum([d.head_dim, d.head_dim, value_run]), axis=1)
        flat = [part.reshape(-1, w.shape[1]) for part in (q, k, v, z)]
        return np.concatenate(flat[:3]), flat[3]

    def decode(g: tuple[Array, ...]) -> Array:
        qkv, z = g
        parts = [*np.split(qkv, [d.key_rows, 2 * d.key_rows]), z]
        return np.concatenate([p.reshape(d.key_heads, -1, qkv.shape[1]) for p in parts], axis=1).reshape(-1, qkv.shape[1])

    return [
        Link(f"{prefix}in_proj_qkvz.weight", (f"{block}attn_qkv.weight", f"{block}attn_gate.weight"), encode, decode),
        same(f"{prefix}in_proj_ba.weight", f"{block}ssm_ba.weight"),
        same(f"{prefix}dt_bias", f"{block}ssm_dt.bias"),
        Link(f"{prefix}A_log", (f"{block}ssm_a",), lambda w: (-np.exp(w),), lambda g: np.log(-g[0])),
        conv(f"{prefix}conv1d.weight", f"{block}ssm_conv1d.weight"),
        same(f"{prefix}norm.weight", f"{block}ssm_norm.weight"),
        same(f"{prefix}out_proj.weight", f"{block}ssm_out.weight"),
    ]


def attention(prefix: str, block: str, norm: Callable[[str, str], Link]) -> list[Link]:
    links = [same(f"{prefix}{hf}_proj.weight", f"{block}attn_{gg}.weight") for hf, gg in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))]
    return links + [norm(f"{prefix}{x}_norm.weight", f"{block}attn_{x}_norm.weight") for x in ("q", "k")]


def experts(prefix: str, block: str, width: int) -> list[Link]:
    return [
        same(f"{prefix}gate.weight", f"{block}ffn_gate_inp.weight"),
        halves(f"{prefix}experts.gate_up_proj", f"{block}ffn_gate_exps.weight", f"{block}ffn_up_exps.weight", 1, width),
        same(f"{prefix}experts.down_proj", f"{block}ffn_down_exps.weight"),
    ]


def shared_expert(prefix: str, block: str) -> list[Link]:
    links = [same(f"{prefix}shared_expert.{x}_proj.weight", f"{block}ffn_{x}_shexp.weight") for x in ("gate", "up", "down")]
    return [vector(f"{prefix}shared_expert_gate.weight", f"{block}ffn_gate_inp_shexp.weight"), *links]


def hyper_connection(prefix: str, gguf: str, inject: bool = True) -> list[Link]:
    links = [
        plus_one(f"{prefix}hc_norm.weight", f"{gguf}_norm.weight"),
        same(f"{prefix}input_mix_weight_down.weight", f"{gguf}_down.weight"),
        same(f"{prefix}input_mix_weight_up.weight", f"{gguf}_up.weight"),
    ]
    return links + ([same(f"{prefix}block_inject_weight.weight", f"{gguf}_inject.weight")] if inject else [])


def is_linear(c: Any, layer: int) -> bool:
    return bool(c.layer_types[layer] == "linear_attention")


def links_of(arch: str, c: Any) -> list[Link]:
    """Every parameter of the model but what a tied head repeats."""
    links = [same("model.embed_tokens.weight", "token_embd.weight")]
    if not c.tie_word_embeddings:
        links.append(same("lm_head.weight", "output.weight"))
    norm = same if arch == "qwen3moe" else plus_one
    if arch == "qwen4exp":
        links += hyper_connection("model.hyper_connection_mixer.", "output_hc", inject=False)
    else:
        links.append(norm("model.norm.weight", "output_norm.weight"))
    for layer in range(c.num_hidden_layers):
        hf, block = f"model.layers.{layer}.", f"blk.{layer}."
        if arch == "qwen4exp":
            links += hyper_connection(f"{hf}attn_hyper_connection.", f"{block}hc_attn")
            links += hyper_connection(f"{hf}mlp_hyper_connection.", f"{block}hc_ffn")
        else:
            second = "ffn_norm" if arch == "qwen3moe" else "post_attention_norm"
            links.append(norm(f"{hf}input_layernorm.weight", f"{block}attn_norm.weight"))
            links.append(norm(f"{hf}post_attention_layernorm.weight", f"{block}{second}.weight"))
        if arch != "qwen3moe" and is_linear(c, layer):
            make = grouped_delta_net if arch == "qwen3next" else tiled_delta_net
            links += make(f"{hf}linear_attn.", block, DeltaNet.of(c))
        else:
            links += attention(f"{hf}self_attn.", block, norm)
            if arch == "qwen4exp":
                index = f"{hf}self_attn.indexer."
                rows = c.indexer_n_heads * c.indexer_head_dim
                links.append(halves(f"{index}index_qk_proj.weight", f"{block}indexer.q_proj.weight", f"{block}indexer.k_proj.weight", 0, rows))
                links += [plus_one(f"{index}{x}_layernorm.weight", f"{block}indexer.{x}_norm.weight") for x in ("q", "k")]
        if arch == "qwen4exp" and layer + 1 in c.ple_layer_ids:
            ple = f"{hf}ple."
            links.append(same(f"{ple}ple_embedding.ngram_embedding.weight", "per_layer_token_embd.weight"))
            links += [same(f"{ple}{x}_proj.weight", f"{block}ple_{x}.weight") for x in ("key", "value")]
            links += [plus_one(f"{ple}norm_{x}.weight", f"{block}ple_norm_{x}.weight") for x in ("key", "query", "conv")]
            links.append(conv(f"{ple}conv1d.weight", f"{block}ple_conv1d.weight"))
        links += experts(f"{hf}mlp.", block, c.moe_intermediate_size)
        if arch != "qwen3moe":
            links += shared_expert(f"{hf}mlp.", block)
    return links


def metadata_of(arch: str, c: Any, model: torch.nn.Module) -> Meta:
    """The metadata of the GGUF file, without a tokenizer."""
    m: Meta = {"general.architecture": ("string", arch)}

    def put(key: str, kind: str, value: Any) -> None:
        m[f"{arch}.{key}"] = (kind, value)

    def u32(key: str, value: int) -> None:
        put(key, "u32", int(value))

    u32("block_count", c.num_hidden_layers)
    u32("context_length", c.max_position_embeddings)
    u32("embedding_length", c.hidden_size)
    u32("attention.head_count", c.num_attention_heads)
    u32("attention.head_count_kv", c.num_key_value_heads)
    u32("attention.key_length", c.head_dim)
    u32("attention.value_length", c.head_dim)
    put("attention.layer_norm_rms_epsilon", "f32", c.rms_norm_eps)
    rope = c.rope_parameters
    put("rope.freq_base", "f32", float(rope["rope_theta"]))
    if rope["rope_type"] == "yarn":
        put("rope.scaling.type", "string", "yarn")
        put("rope.scaling.factor", "f32", float(rope["factor"]))
        u32("rope.scaling.original_context_length", rope["original_max_position_embeddings"])
    u32("expert_count", c.num_experts)
    u32("expert_used_count", c.num_experts_per_tok)
    u32("expert_feed_forward_length", c.moe_intermediate_size)
    if arch in ("qwen3moe", "qwen3next"):
        u32("feed_forward_length", c.intermediate_size)  # unused by the architecture, as in released files
    if arch != "qwen3moe":
        d = DeltaNet.of(c)
        u32("rope.dimension_count", int(c.head_dim * rope["partial_rotary_factor"]))
        u32("expert_shared_feed_forward_length", c.shared_expert_intermediate_size)
        u32("full_attention_interval", c.layer_types.index(next(t for t in c.layer_types if t != "linear_attention")) + 1)
        u32("ssm.conv_kernel", d.kernel)
        u32("ssm.state_size", d.head_dim)
        u32("ssm.group_count", d.key_heads)
        u32("ssm.time_step_rank", d.value_heads)
        u32("ssm.inner_size", d.value_heads * d.head_dim)
    if arch in ("qwen4exp", "qwen35moe"):
        put("rope.dimension_sections", "i32[]", [*rope["mrope_section"], 0])
    if arch == "qwen4exp":
        u32("attention.indexer.head_count", c.indexer_n_heads)
        u32("attention.indexer.key_length", c.indexer_head_dim)
        u32("attention.indexer.top_k", c.indexer_budget)
        ratios = [0 if is_linear(c, i) else c.indexer_compress_ratio for i in range(c.num_hidden_layers)]
        put("attention.compress_ratios", "i32[]", ratios)
        u32("hyper_connection.count", c.hc_count)
        u32("hyper_connection.low_rank", c.hc_lowrank)
        if c.ple_layer_ids:
            layer = c.ple_layer_ids[0] - 1
            table = model.get_submodule(f"model.layers.{layer}.ple.ple_embedding")
            heads = (c.ngram_size - 1) * c.heads_per_ngram
            put("ple.layers", "i32[]", [layer])
            u32("ple.ngram_size", c.ngram_size)
            u32("ple.heads_per_ngram", c.heads_per_ngram)
            u32("ple.conv_kernel", c.ple_conv_kernel_size)
            u32("ple.eos_token_id", c.eos_token_id)
            u32("embedding_length_per_layer_input", c.ple_embed_dim // heads)
            for key, buffer in (
                ("layer_multipliers", table.layer_multipliers),
                ("head_vocab_sizes", table.ngram_heads_vocab_sizes),
                ("head_offsets", table.ngram_heads_offsets),
            ):
                put(f"ple.{key}", "u64[]", [int(v) for v in buffer])
    m["tokenizer.ggml.model"] = ("string", "none")
    u32("vocab_size", c.vocab_size)
    return m


def make_config(arch: str, sizes: dict[str, Any]) -> Any:
    import transformers

    classes = {
        "qwen4exp": "Qwen4ExpTextConfig",
        "qwen3moe": "Qwen3MoeConfig",
        "qwen35moe": "Qwen3_5MoeTextConfig",
        "qwen3next": "Qwen3NextConfig",
    }
    return getattr(transformers, classes[arch])(**sizes)


def make_model(arch: str, config: Any, dtype: torch.dtype) -> torch.nn.Module:
    """A model of the class with Hugging Face's initial weights, eager attention and eager experts."""
    import transformers

    classes = {
        "qwen4exp": "Qwen4ExpForCausalLM",
        "qwen3moe": "Qwen3MoeForCausalLM",
        "qwen35moe": "Qwen3_5MoeForCausalLM",
        "qwen3next": "Qwen3NextForCausalLM",
    }
    model = getattr(transformers, classes[arch])._from_config(config, attn_implementation="eager", experts_implementation="eager")
    return model.to(dtype).eval()


def export(arch: str, config: Any, model: torch.nn.Module) -> dict[str, Array]:
    """GGUF tensors (C order, f64) of a Hugging Face model; raises if a parameter has no place in the file."""
    state = {k: v for k, v in model.named_parameters()}
    out: dict[str, Array] = {}
    for link in links_of(arch, config):
        values = link.encode(state.pop(link.hf).detach().to(torch.float64).numpy())
        out.update(zip(link.gguf, values, strict=True))
    if state:
        raise ValueError(f"parameters without a GGUF tensor: {sorted(state)}")
    return out


def load(arch: str, config: Any, model: torch.nn.Module, tensors: dict[str, Array]) -> None:
    """The inverse of `export`, in place."""
    state = dict(model.named_parameters())
    with torch.no_grad():
        for link in links_of(arch, config):
            values = link.decode(tuple(tensors[name] for name in link.gguf))
            target = state.pop(link.hf)
            if tuple(target.shape) != values.shape:
                raise ValueError(f"{link.hf}: {tuple(target.shape)} in the class, {values.shape} from {link.gguf}")
            target.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    if state:
        raise ValueError(f"parameters not loaded: {sorted(state)}")


def closed_form_model(arch: str, config: Any, dtype: torch.dtype) -> tuple[torch.nn.Module, list[tuple[str, list[int]]]]:
    """A model with closed-form weights and the list of its GGUF tensors (name, [ne0, ne1, ...])."""
    model = make_model(arch, config, dtype)
    shapes = [(name, list(reversed(values.shape))) for name, values in export(arch, config, model).items()]
    load(arch, config, model, {name: closed_form.tensor(name, dims) for name, dims in shapes})
    return model, shapes
