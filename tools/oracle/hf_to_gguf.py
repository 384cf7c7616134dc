#!/usr/bin/env python3
"""Exports a Hugging Face model of a supported class to GGUF (F32), without its tokenizer.

    hf_to_gguf.py --arch qwen4exp --random --out model.gguf      a small random model for comparisons
    hf_to_gguf.py --arch qwen3moe --checkpoint FOLDER --out ...   a checkpoint saved by transformers

Random models have Gaussian weights scaled by fan-in and a head scaled until logits spread as a
trained model's do; their widths are multiples of 256 so that every block type fits. Quantise with
`penstock requant` or llama.cpp's `llama-quantize`.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gguf_file
import hf_models

COMMON: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
}
DELTA_NET: dict[str, Any] = {
    "full_attention_interval": 4,
    "num_hidden_layers": 8,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 256,
}
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e7}
PARTIAL: dict[str, Any] = ROPE | {"partial_rotary_factor": 0.25}
SECTIONS: dict[str, Any] = PARTIAL | {"mrope_section": [3, 3, 2], "mrope_interleaved": True}
RANDOM: dict[str, dict[str, Any]] = {
    "qwen3moe": COMMON | {"num_hidden_layers": 6, "intermediate_size": 768, "norm_topk_prob": True, "rope_parameters": ROPE},
    "qwen35moe": COMMON | DELTA_NET | {"rope_parameters": SECTIONS},
    "qwen3next": COMMON | DELTA_NET | {"intermediate_size": 768, "norm_topk_prob": True, "rope_parameters": PARTIAL},
    "qwen4exp": COMMON
    | DELTA_NET
    | {
        "rope_parameters": SECTIONS,
        "norm_topk_prob": True,
        "output_gate_type": "sigmoid",
        "hc_count": 4,
        "hc_lowrank": 64,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 64,
        "indexer_budget": 512,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [2],
        "ple_embed_dim": 256,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 4,
        "ngram_vocab_size_base": 4000,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": 2,
        "seed": 1234,
        "eos_token_id": 5,
    },
}


# Blocks add less than the residual stream holds and routers are decided, as in trained models: with
# all gains 1 the network amplifies rounding until every comparison measures that alone.
GAINS = {
    "ffn_gate_inp": 3.0,
    **dict.fromkeys(["attn_output", "ssm_out", "ffn_down_exps", "ffn_down_shexp", "ple_value"], 0.4),
}


def random_tensor(name: str, dims: list[int], seed: int, logit_spread: float) -> np.ndarray:
    """Gaussian values by the tensor's role; the same name, dims and seed give the same values."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    shape = tuple(reversed(dims))
    x = rng.standard_normal(shape, dtype=np.float32)
    component = name.removesuffix(".weight").split(".")[-1]
    if name.endswith("ssm_a"):
        return -np.exp(rng.uniform(np.log(0.01), np.log(4.0), shape)).astype(np.float32)
    if name.endswith("ssm_dt.bias"):
        return x - np.float32(1.0)
    if "norm" in component:
        return np.float32(1.0) + np.float32(0.15) * x
    if component.endswith("conv1d"):
        return np.float32(0.4) * x
    if component in ("token_embd", "per_layer_token_embd"):
        return x
    gain = GAINS.get(component, 1.0) if component != "output" else logit_spread
    return x * np.float32(gain / np.sqrt(dims[0]))


def random_model(arch: str, seed: int, logit_spread: float) -> tuple[Any, torch.nn.Module]:
    config = hf_models.make_config(arch, dict(RANDOM[arch]))
    model = hf_models.make_model(arch, config, torch.float32)
    shapes = {name: list(reversed(values.shape)) for name, values in hf_models.export(arch, config, model).items()}
    hf_models.load(arch, config, model, {n: random_tensor(n, d, seed, logit_spread) for n, d in shapes.items()})
    return config, model


def checkpoint_model(folder: Path) -> tuple[Any, torch.nn.Module]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.config, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", required=True, choices=sorted(RANDOM))
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--random", action="store_true")
    source.add_argument("--checkpoint", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logit-spread", type=float, default=3.0, help="standard deviation of a random model's logits")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    config, model = random_model(args.arch, args.seed, args.logit_spread) if args.random else checkpoint_model(args.checkpoint)
    tensors = hf_models.export(args.arch, config, model)
    gguf_file.write(args.out, hf_models.metadata_of(args.arch, config, model), tensors)
    print(f"{args.out}: {len(tensors)} tensors, {sum(t.size for t in tensors.values()) / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()
