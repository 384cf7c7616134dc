"""Writes GGUF files from numpy tensors that already have GGUF names and layouts.

A tensor with GGUF dims ``[ne0, ne1, ne2]`` is a numpy array of shape ``(ne2, ne1, ne0)``. Any architecture can be
written with `write`; `Qwen4ExpParams` and `Tokenizer` produce the metadata of a qwen4exp model and of a byte-level BPE
tokenizer.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gguf
import numpy as np

Kind = gguf.GGUFValueType
QuantType = gguf.GGMLQuantizationType
TypePolicy = Callable[[str, np.ndarray], QuantType]

TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED = 1, 3, 4


@dataclasses.dataclass(frozen=True)
class Value:
    """A metadata value with its GGUF type; ``items`` is the element type of an array."""

    value: Any
    kind: Kind
    items: Kind | None = None


def u32(value: int) -> Value:
    return Value(int(value), Kind.UINT32)


def f32(value: float) -> Value:
    return Value(float(value), Kind.FLOAT32)


def text(value: str) -> Value:
    return Value(value, Kind.STRING)


def boolean(value: bool) -> Value:
    return Value(bool(value), Kind.BOOL)


def array(values: Sequence[Any], items: Kind) -> Value:
    return Value(list(values), Kind.ARRAY, items)


Metadata = dict[str, Value]


def all_f32(name: str, data: np.ndarray) -> QuantType:
    return QuantType.F32


def dense_quant(matrix_type: QuantType = QuantType.Q8_0, plain_type: QuantType = QuantType.F32,
                overrides: Mapping[str, QuantType] | None = None) -> TypePolicy:
    """The usual policy: matrices in ``matrix_type``; vectors, convolutions, routers, write-back weights and the small
    ssm matrices in ``plain_type``. ``overrides`` maps a part of a matrix' name to its type (first match)."""
    keep = ("ssm_alpha", "ssm_beta", "ffn_gate_inp", "_inject", "conv1d")

    def policy(name: str, data: np.ndarray) -> QuantType:
        if data.ndim < 2:
            return plain_type
        for part, kind in (overrides or {}).items():
            if part in name:
                return kind
        return plain_type if any(part in name for part in keep) else matrix_type

    return policy


def write(path: str | pathlib.Path, architecture: str, metadata: Metadata, tensors: Mapping[str, np.ndarray],
          policy: TypePolicy = all_f32) -> None:
    """Writes a single-file GGUF v3; tensors keep the mapping's order."""
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in metadata.items():
        writer.add_key_value(key, value.value, value.kind, sub_type=value.items)
    for name, data in tensors.items():
        kind = policy(name, data)
        data = np.ascontiguousarray(data, dtype=np.float32)
        if kind == QuantType.F32:
            writer.add_tensor(name, data)
        else:
            packed = gguf.quants.quantize(data, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclasses.dataclass(frozen=True)
class Qwen4ExpParams:
    """Hyper-parameters of a qwen4exp file; ``blocks`` counts the MTP block as well."""

    blocks: int
    context: int
    hidden: int
    interval: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_sections: Sequence[int]
    rope_base: float
    indexer_heads: int
    indexer_dim: int
    indexer_top_k: int
    block_size: int
    gdn_k_heads: int
    gdn_v_heads: int
    gdn_dim: int
    conv_kernel: int
    experts: int
    experts_used: int
    expert_width: int
    shared_width: int
    streams: int
    hc_rank: int
    ple_layer: int | None
    ple_ngram: int
    ple_heads_per_ngram: int
    ple_conv_kernel: int
    ple_row: int
    ple_eos: int
    ple_multipliers: Sequence[int]
    ple_head_sizes: Sequence[int]
    ple_head_offsets: Sequence[int]
    mtp_blocks: int = 0
    rms_eps: float = 1e-6

    def metadata(self) -> Metadata:
        trunk = self.blocks - self.mtp_blocks
        ratios = [self.block_size if layer < trunk and (layer + 1) % self.interval == 0 else 0
                  for layer in range(self.blocks)]
        values: Metadata = {
            "block_count": u32(self.blocks),
            "context_length": u32(self.context),
            "embedding_length": u32(self.hidden),
            "full_attention_interval": u32(self.interval),
            "attention.head_count": u32(self.heads),
            "attention.head_count_kv": u32(self.kv_heads),
            "attention.key_length": u32(self.head_dim),
            "attention.value_length": u32(self.head_dim),
            "attention.layer_norm_rms_epsilon": f32(self.rms_eps),
            "attention.indexer.head_count": u32(self.indexer_heads),
            "attention.indexer.key_length": u32(self.indexer_dim),
            "attention.indexer.top_k": u32(self.indexer_top_k),
            "attention.compress_ratios": array(ratios, Kind.INT32),
            "rope.dimension_count": u32(self.rope_dims),
            "rope.dimension_sections": array(self.rope_sections, Kind.INT32),
            "rope.freq_base": f32(self.rope_base),
            "ssm.conv_kernel": u32(self.conv_kernel),
            "ssm.state_size": u32(self.gdn_dim),
            "ssm.group_count": u32(self.gdn_k_heads),
            "ssm.time_step_rank": u32(self.gdn_v_heads),
            "ssm.inner_size": u32(self.gdn_v_heads * self.gdn_dim),
            "expert_count": u32(self.experts),
            "expert_used_count": u32(self.experts_used),
            "expert_feed_forward_length": u32(self.expert_width),
            "expert_shared_feed_forward_length": u32(self.shared_width),
            "hyper_connection.count": u32(self.streams),
            "hyper_connection.low_rank": u32(self.hc_rank),
        }
        if self.mtp_blocks:
            values["nextn_predict_layers"] = u32(self.mtp_blocks)
        if self.ple_layer is not None:
            values |= {
                "ple.layers": array([self.ple_layer], Kind.INT32),
                "ple.ngram_size": u32(self.ple_ngram),
                "ple.heads_per_ngram": u32(self.ple_heads_per_ngram),
                "ple.conv_kernel": u32(self.ple_conv_kernel),
                "ple.eos_token_id": u32(self.ple_eos),
                "embedding_length_per_layer_input": u32(self.ple_row),
                "ple.layer_multipliers": array(self.ple_multipliers, Kind.UINT64),
                "ple.head_vocab_sizes": array(self.ple_head_sizes, Kind.UINT64),
                "ple.head_offsets": array(self.ple_head_offsets, Kind.UINT64),
            }
        return {f"qwen4exp.{key}": value for key, value in values.items()}


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A byte-level BPE tokenizer in GGUF form."""

    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    eos: int
    pad: int
    bos: int
    chat_template: str | None = None
    pre: str = "qwen35"

    @staticmethod
    def from_json(path: str | pathlib.Path, *, eos: str, pad: str, bos: str, chat_template: str | None = None,
                  pre: str = "qwen35") -> Tokenizer:
        """Reads a Hugging Face ``tokenizer.json`` (BPE); added tokens are control if special, else user-defined."""
        data = json.loads(pathlib.Path(path).read_text())
        by_id = {index: (token, TOKEN_NORMAL) for token, index in data["model"]["vocab"].items()}
        for added in data["added_tokens"]:
            by_id[added["id"]] = (added["content"], TOKEN_CONTROL if added["special"] else TOKEN_USER_DEFINED)
        if sorted(by_id) != list(range(len(by_id))):
            raise ValueError("token ids are not contiguous")
        tokens = [by_id[i][0] for i in range(len(by_id))]
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
        ids = {token: index for index, token in enumerate(tokens)}
        return Tokenizer(tokens, [by_id[i][1] for i in range(len(by_id))], merges, ids[eos], ids[pad], ids[bos],
                         chat_template, pre)

    def metadata(self) -> Metadata:
        values: Metadata = {
            "model": text("gpt2"),
            "pre": text(self.pre),
            "tokens": array(self.tokens, Kind.STRING),
            "token_type": array(self.types, Kind.INT32),
            "merges": array(self.merges, Kind.STRING),
            "eos_token_id": u32(self.eos),
            "padding_token_id": u32(self.pad),
            "bos_token_id": u32(self.bos),
            "add_bos_token": boolean(False),
        }
        metadata = {f"tokenizer.ggml.{key}": value for key, value in values.items()}
        if self.chat_template is not None:
            metadata["tokenizer.chat_template"] = text(self.chat_template)
        return metadata
