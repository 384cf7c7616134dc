"""Checks `model.py` against golden logits: closed-form weights, 64 tokens (values are in this file)."""

from __future__ import annotations

import numpy as np
import torch

import model as m

CONFIG = m.Config(vocab=128, hidden=64, layers=8, interval=4, heads=4, kv_heads=2, head_dim=32, rope_dims=8,
                  indexer_heads=4, indexer_dim=16, indexer_budget=8, block=4, gdn_k_heads=2, gdn_v_heads=6, gdn_dim=16,
                  experts=8, experts_used=3, expert_width=32, shared_width=32, streams=4, hc_rank=16, ple_layer=1,
                  ngram=3, ple_heads_per_ngram=2, ple_row=16, ple_base=100, ple_pad=8, eos=5)
# Position -> logits [0:6], argmax.
LOGITS = {0: ([-0.203074, 0.179136, 0.159719, -0.620357, -0.039758, -0.102847], 61),
          10: ([-0.110059, -0.386751, 0.258440, -0.313427, 0.034685, 0.367547], 77),
          11: ([0.092157, 0.193532, -0.172290, 0.148807, 0.107674, -0.123547], 111),
          23: ([-0.184396, 0.055268, 0.177491, 0.068080, -0.251916, 0.080173], 90),
          63: ([0.003590, 0.412684, -0.145280, -0.258223, 0.560018, 0.086713], 4)}
MTP_LOGITS = ([0.202812, 0.017740, -0.407018, 0.100089, 0.128210, -0.536143], 76)


def closed_form(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The deterministic weights of a tensor; numpy shape = reversed GGUF dims."""
    start = 0xCBF29CE484222325
    for byte in name.encode():
        start = ((start ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        v = np.uint64(start) + np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        v = (v ^ v >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        v = (v ^ v >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        v = v ^ v >> np.uint64(31)
    u = (v >> np.uint64(44)).astype(np.float64) / 2**20
    x = 2 * u - 1
    if name.endswith("ssm_a"):
        x = -(0.25 + 4 * u)
    elif name.endswith("ssm_dt.bias"):
        pass
    elif "norm" in name.split(".")[-2]:
        x = 1 + 0.25 * x
    elif name.endswith("conv1d.weight") or name.endswith("ffn_gate_inp.weight"):
        x = 0.5 * x
    elif name not in ("token_embd.weight", "per_layer_token_embd.weight"):
        x = x * 2.0 ** -((shape[-1].bit_length() - 1) // 2)
    return x.astype(np.float32).reshape(shape)


def main() -> None:
    torch.set_num_threads(1)
    net = m.Qwen4Exp(CONFIG)
    net.from_gguf({name: closed_form(name, data.shape) for name, data in net.to_gguf().items()})
    tokens = np.array([[(37 * i + 11) % 128 for i in range(64)]])
    tokens[0, [9, 20]] = 5
    rows = torch.from_numpy(m.ple_rows(CONFIG, tokens))
    ids = torch.from_numpy(tokens)
    worst = 0.0
    with torch.no_grad():
        wide = net.trunk(ids, rows)
        logits = net.head(wide)[0]
        for position, (want, best) in LOGITS.items():
            worst = max(worst, float((logits[position, :6] - torch.tensor(want)).abs().max()))
            assert int(logits[position].argmax()) == best, position
        draft = net.mtp_head(net.mtp(ids[:, 1:24], wide[:, :23]))[0, 22]
        worst = max(worst, float((draft[:6] - torch.tensor(MTP_LOGITS[0])).abs().max()))
        assert int(draft.argmax()) == MTP_LOGITS[1]
    print(f"largest difference from the golden logits: {worst:.2e}")
    assert worst < 1e-5


if __name__ == "__main__":
    main()
