#!/usr/bin/env python3
"""Fixtures from Hugging Face's classes: random small configurations and the logits they must give.

    hf_oracle.py --out tests/golden/hf [--arch qwen4exp] [--gguf FOLDER]

For each architecture a few configurations are drawn (seeded), loaded with closed-form weights
(closed_form.py), and run on the CPU in float32 as the class stands and again with every float32 of
the class's code turned into float64. The float64 logits are the expectation; the float32 run says how
far rounding alone goes. A draw is refused where an expert or block selection is so close that
rounding could flip it. A fixture holds no weights:

    {"arch", "source", "tolerance", "notes",
     "metadata": {key: [type, value]}, "tensors": [[name, [ne0, ne1, ...]], ...], "tokens": [...],
     "expect": [{"pos", "first": [16 logits], "argmax", "max"}], "max_abs": largest |logit| of the run,
     "sum_abs": [sum of |logits| per position], "rounding": max |f32 - f64|, "margins": {...}}
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import torch

import hf_models

N_FIRST = 16
MIN_MARGIN = 3e-5  # of a selection: ten times what f32 rounding moves


@dataclass
class Margins:
    """Smallest distance between the last selected and the first rejected score over a run."""

    experts: float = float("inf")
    blocks: float = float("inf")
    sparse_queries: int = 0


@contextlib.contextmanager
def watch_topk(margins: Margins) -> Iterator[None]:
    """Records the margins of every top-k: 2-D scores are experts, 1-D scores are index blocks."""
    plain, method = torch.topk, torch.Tensor.topk

    def note(scores: torch.Tensor, k: int) -> None:
        if scores.shape[-1] <= k:
            return
        ordered = scores.detach().double().sort(dim=-1, descending=True).values
        gap = float((ordered[..., k - 1] - ordered[..., k]).min())
        if scores.dim() == 1:
            margins.blocks = min(margins.blocks, gap)
            margins.sparse_queries += 1
        else:
            margins.experts = min(margins.experts, gap)

    def topk(scores: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        note(scores, k)
        return plain(scores, k, *args, **kwargs)

    def topk_method(scores: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        note(scores, k)
        return method(scores, k, *args, **kwargs)

    torch.topk = topk  # type: ignore[assignment]
    torch.Tensor.topk = topk_method  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.topk, torch.Tensor.topk = plain, method  # type: ignore[method-assign, assignment]


class _DoubleTorch:
    """The torch module with float32 spelled float64."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


@contextlib.contextmanager
def double_precision(model: torch.nn.Module) -> Iterator[None]:
    """Turns the float32 islands of the class's own code (norms, softmax, delta rule) into float64."""
    module = sys.modules[type(model).__module__]
    saved, to_float = module.torch, torch.Tensor.float  # type: ignore[attr-defined]
    module.torch = _DoubleTorch()  # type: ignore[attr-defined]
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        module.torch = saved  # type: ignore[attr-defined]
        torch.Tensor.float = to_float  # type: ignore[method-assign]


def run(model: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    """Logits f64 [n, vocab] of one whole-sequence forward pass."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy()


# ---- random configurations ---------------------------------------------------------------------


@dataclass
class Draw:
    """A configuration, its tokens and what it is meant to exercise."""

    arch: str
    sizes: dict[str, Any]
    tokens: list[int]
    notes: list[str] = field(default_factory=list)


def draw(arch: str, index: int, seed: int) -> Draw:
    r = random.Random(f"{arch}/{index}/{seed}")
    notes: list[str] = []
    vocab = r.choice([72, 96, 120, 160])
    heads_per_kv = r.choice([1, 2, 3, 4])
    kv_heads = r.choice([1, 2, 3]) if heads_per_kv < 4 else r.choice([1, 2])
    head_dim = r.choice([16, 24, 32, 48])
    n_experts = r.choice([4, 5, 8, 11, 16])
    used = min(r.choice([1, 2, 3, 4, 6]), n_experts)
    sizes: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": r.choice([32, 48, 64, 80]),
        "num_attention_heads": heads_per_kv * kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": r.choice([1e-6, 1e-5]),
        "max_position_embeddings": 1024,
        "tie_word_embeddings": index == 2,
        "attention_bias": False,
        "num_experts": n_experts,
        "num_experts_per_tok": used,
        "moe_intermediate_size": r.choice([16, 24, 32, 48]),
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": r.choice([1e4, 1e6, 1e7])}
    n_tokens = r.choice([24, 40, 57])
    if arch in ("qwen3moe", "qwen3next"):
        sizes["intermediate_size"] = 40  # written to the file, used by nothing
        sizes["norm_topk_prob"] = True
    if arch == "qwen3moe":
        sizes["num_hidden_layers"] = r.choice([2, 3, 4])
        if index == 6:
            rope |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
            notes.append("YaRN, factor 4 over 32 positions")
            n_tokens = 80
    else:
        interval = r.choice([2, 3, 4])
        rotary = r.choice([d for d in (4, 8, 12, 16) if d <= head_dim])
        rope["partial_rotary_factor"] = rotary / head_dim
        key_heads = r.choice([1, 2, 3, 4])
        ratio = r.choice([1, 2, 3])
        sizes |= {
            "full_attention_interval": interval,
            "num_hidden_layers": interval * (1 if interval == 4 else 2),
            "linear_conv_kernel_dim": r.choice([2, 3, 4]),
            "linear_key_head_dim": (state := r.choice([8, 16, 24])),
            "linear_value_head_dim": state,
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": key_heads * ratio,
            "shared_expert_intermediate_size": r.choice([16, 32, 40]),
        }
        notes.append(f"rotary {rotary} of {head_dim}, {key_heads} key heads, {key_heads * ratio} value heads, conv {sizes['linear_conv_kernel_dim']}")
        if index == 1:
            n_tokens = 131  # more than two of the class's 64-token chunks
    if arch in ("qwen4exp", "qwen35moe"):
        third = rotary // 2 // 3
        rope |= {"mrope_section": [rotary // 2 - 2 * third, third, third], "mrope_interleaved": True}
    eos = r.randrange(vocab)
    if arch == "qwen4exp":
        compress = r.choice([2, 3, 4, 8])
        budget = compress * r.choice([1, 2, 3, 5])
        sizes |= {
            "norm_topk_prob": True,
            "output_gate_type": "sigmoid",
            "hc_count": r.choice([2, 3, 4]) if index else 4,
            "hc_lowrank": r.choice([8, 12, 24]),
            "indexer_n_heads": r.choice([2, 3, 4, 6]),
            "indexer_kv_heads": 1,
            "indexer_head_dim": r.choice([d for d in (16, 24, 32) if d >= rotary]),
            "indexer_budget": budget,
            "indexer_compress_ratio": compress,
            "eos_token_id": eos,
        }
        notes.append(f"{sizes['hc_count']} streams, blocks of {compress}, budget {budget}: sparse from position {budget + compress - 1}")
        if index == 3:
            notes.append("no n-gram table")
        else:
            ngram, heads = r.choice([2, 3, 4]), r.choice([1, 2, 4])
            linear = [i + 1 for i in range(sizes["num_hidden_layers"]) if (i + 1) % sizes["full_attention_interval"]]
            sizes |= {
                "ple_layer_ids": [r.choice(linear)],
                "ple_embed_dim": (ngram - 1) * heads * r.choice([8, 16]),
                "ple_conv_kernel_size": r.choice([2, 3, 4]),
                "ngram_size": ngram,
                "heads_per_ngram": heads,
                "ngram_vocab_size_base": r.choice([60, 100, 150]),
                "make_ngram_vocab_size_divisible_by": 8,
                "split_ngram_parts": 2,
                "seed": 1234,
            }
            notes.append(f"{ngram}-grams, {heads} heads each, table at layer {sizes['ple_layer_ids'][0] - 1}")
    sizes["rope_parameters"] = rope
    tokens = [r.randrange(vocab) for _ in range(n_tokens)]
    if arch == "qwen4exp":
        for at in (7, 8, 15):  # ends of text, adjacent ones too, inside the n-gram windows
            tokens[at] = eos
    return Draw(arch, sizes, tokens, notes)


# ---- fixtures ------------------------------------------------------------------------------------


def positions_of(n: int, sparse_from: int | None) -> list[int]:
    """Six positions: the first two, the first sparse one (or a third), two inner ones, the last."""
    picks = {0, 1, n - 1, n // 2, (3 * n) // 4, min(sparse_from or n // 3, n - 1)}
    for extra in (n // 5, n - 2):
        if len(picks) < 6:
            picks.add(extra)
    return sorted(picks)


def number(x: float) -> float:
    return float(f"{x:.7g}")


@dataclass
class Result:
    fixture: dict[str, Any]
    model: torch.nn.Module
    config: Any
    rounding: float
    margins: Margins


def evaluate(d: Draw) -> Result:
    config = hf_models.make_config(d.arch, dict(d.sizes))
    single, shapes = hf_models.closed_form_model(d.arch, config, torch.float32)
    double, _ = hf_models.closed_form_model(d.arch, config, torch.float64)
    margins = Margins()
    as_is = run(single, d.tokens)
    with double_precision(double), watch_topk(margins):
        logits = run(double, d.tokens)
    rounding = float(np.abs(as_is - logits).max())
    sparse = d.sizes["indexer_budget"] + d.sizes["indexer_compress_ratio"] - 1 if d.arch == "qwen4exp" else None
    expect = [
        {
            "pos": p,
            "first": [number(v) for v in logits[p, :N_FIRST]],
            "argmax": int(logits[p].argmax()),
            "max": number(logits[p].max()),
        }
        for p in positions_of(len(d.tokens), sparse)
    ]
    import transformers

    fixture = {
        "arch": d.arch,
        "source": f"transformers {transformers.__version__}, {type(double).__name__}, torch {torch.__version__.split('+')[0]}",
        "tolerance": 3e-5,
        "notes": "; ".join(d.notes),
        "metadata": {k: list(v) for k, v in hf_models.metadata_of(d.arch, config, double).items()},
        "tensors": [[name, dims] for name, dims in shapes],
        "tokens": d.tokens,
        "expect": expect,
        "max_abs": number(float(np.abs(logits).max())),
        "sum_abs": [number(float(v)) for v in np.abs(logits).sum(axis=1)],
        "rounding": number(rounding),
        "margins": {"experts": number(margins.experts), "blocks": number(margins.blocks), "sparse_queries": margins.sparse_queries},
    }
    for key, value in fixture["margins"].items():
        if value == float("inf"):
            fixture["margins"][key] = None
    return Result(fixture, double, config, rounding, margins)


def acceptable(r: Result) -> bool:
    return min(r.margins.experts, r.margins.blocks) > MIN_MARGIN and r.rounding < 2e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the fixtures")
    parser.add_argument("--arch", action="append", choices=["qwen4exp", "qwen3moe", "qwen35moe", "qwen3next"])
    parser.add_argument("--count", type=int, default=7, help="configurations per architecture")
    parser.add_argument("--gguf", type=Path, help="also write the models as F32 GGUF files here")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    for arch in args.arch or ["qwen4exp", "qwen3moe", "qwen35moe", "qwen3next"]:
        for index in range(args.count):
            for seed in range(100):
                result = evaluate(draw(arch, index, seed))
                if acceptable(result):
                    break
            else:
                raise SystemExit(f"{arch} {index}: no draw without near ties")
            name = f"{arch}-{index}"
            (args.out / f"{name}.json").write_text(json.dumps(result.fixture, separators=(",", ":")) + "\n")
            if args.gguf:
                import gguf_file

                args.gguf.mkdir(parents=True, exist_ok=True)
                tensors = hf_models.export(arch, result.config, result.model)
                meta = hf_models.metadata_of(arch, result.config, result.model)
                gguf_file.write(args.gguf / f"{name}.gguf", meta, tensors)
                (args.gguf / f"{name}.ids").write_text(" ".join(map(str, result.fixture["tokens"])) + "\n")
            print(
                f"{name}: draw {seed}, rounding {result.rounding:.1e}, margins experts {result.margins.experts:.1e}, "
                f"blocks {result.margins.blocks:.1e} over {result.margins.sparse_queries} sparse queries; {result.fixture['notes']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
