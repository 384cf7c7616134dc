"""Closed-form weights: the value of every element follows from the tensor's GGUF name and its index.

The rule is that of the tests' generator (C++: tests/models), so a fixture needs names and dims only:
v = splitmix64(fnv1a64(name) + i), u = (v >> 44) / 2^20, x = 2u - 1, then by name
    *ssm_a                -(0.25 + 4u)
    *ssm_dt.bias          x
    *norm*.weight         1 + 0.25x     (the component before `.weight` contains "norm")
    *conv1d.weight        0.5x
    token_embd.weight, per_layer_token_embd.weight   x
    *ffn_gate_inp.weight  0.5x
    else                  x * 2^-floor(floor(log2 ne0) / 2)
All values are exact in f32.
"""

from __future__ import annotations

import math
from typing import Sequence

import numpy as np

_MASK = (1 << 64) - 1


def fnv1a64(name: str) -> int:
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & _MASK
    return h


def splitmix64(v: np.ndarray) -> np.ndarray:
    """Elementwise on uint64, wrapping."""
    v = v + np.uint64(0x9E3779B97F4A7C15)
    v = (v ^ (v >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    v = (v ^ (v >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return v ^ (v >> np.uint64(31))


def tensor(name: str, dims: Sequence[int]) -> np.ndarray:
    """f64 values of tensor `name` with GGUF dims [ne0, ne1, ...], returned in C order (..., ne1, ne0)."""
    count = math.prod(dims)
    with np.errstate(over="ignore"):
        v = splitmix64(np.uint64(fnv1a64(name)) + np.arange(count, dtype=np.uint64))
    u = (v >> np.uint64(44)).astype(np.float64) / 2.0**20
    x = 2.0 * u - 1.0
    if name.endswith("ssm_a"):
        values = -(0.25 + 4.0 * u)
    elif name.endswith("ssm_dt.bias"):
        values = x
    elif name.endswith(".weight") and "norm" in name[: -len(".weight")].split(".")[-1]:
        values = 1.0 + 0.25 * x
    elif name.endswith("conv1d.weight"):
        values = 0.5 * x
    elif name in ("token_embd.weight", "per_layer_token_embd.weight"):
        values = x
    elif name.endswith("ffn_gate_inp.weight"):
        values = 0.5 * x
    else:
        values = x * 2.0 ** -(int(math.log2(dims[0])) // 2)
    return values.reshape(tuple(reversed(dims)))
