"""qwen4exp in PyTorch, written for training on few CPU cores.

Parameters carry their GGUF names and layouts (a GGUF tensor ``[K, N]`` is a torch tensor ``[N, K]``), with three
exceptions that `to_gguf` and `from_gguf` translate: ``ssm_a_log`` (GGUF ``ssm_a = -exp(ssm_a_log)``), the fused
``ffn_gate_up_exps`` and ``hc_*_read`` (the rows of down, then of inject). Norm weights are multiply-ready.

Shapes: B sequences, T tokens, N = B*T, E hidden, C streams, X experts, K experts used, F expert width.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import ConvSilu, Experts, HyperRead, HyperWrite

EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class Config:
    """Hyper-parameters; the names follow the GGUF metadata."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    interval: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rope_dims: int = 32
    rope_base: float = 1e7
    indexer_heads: int = 4
    indexer_dim: int = 32
    indexer_budget: int = 128
    block: int = 4
    gdn_k_heads: int = 4
    gdn_v_heads: int = 8
    gdn_dim: int = 32
    conv: int = 4
    experts: int = 64
    experts_used: int = 8
    expert_width: int = 64
    shared_width: int = 64
    streams: int = 4
    hc_rank: int = 32
    ple_layer: int = 1
    ngram: int = 3
    ple_heads_per_ngram: int = 4
    ple_row: int = 32
    ple_base: int = 3000
    ple_pad: int = 128
    eos: int = 4063
    context: int = 4096
    recall_layers: tuple[int, ...] = (2, 5)
    sectioned_rope: tuple[int, int, int, int] = (6, 5, 5, 0)

    @property
    def ple_heads(self) -> int:
        return (self.ngram - 1) * self.ple_heads_per_ngram

    def is_attention(self, layer: int) -> bool:
        """True for QSA layers and for the MTP block (index ``layers``)."""
        return layer >= self.layers or (layer + 1) % self.interval == 0


def splitmix64(value: int) -> int:
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & mask
    return value ^ value >> 31


def _is_prime(value: int) -> bool:
    return value > 1 and all(value % d for d in range(2, math.isqrt(value) + 1))


def ple_constants(config: Config, seed: int = 1234) -> tuple[list[int], list[int], list[int], int]:
    """(multipliers, head vocabulary sizes, head offsets, table rows)."""
    half = max(1, ((2**63 - 1) // config.vocab) // 2)
    multipliers = [2 * (splitmix64((seed + 0x9E3779B97F4A7C15 * (i + 1)) % 2**64) % half) + 1
                   for i in range(config.ngram)]
    sizes: list[int] = []
    candidate = config.ple_base
    while len(sizes) < config.ple_heads:
        if _is_prime(candidate):
            sizes.append(candidate)
        candidate += 1
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    rows = -(-sum(sizes) // config.ple_pad) * config.ple_pad
    return multipliers, sizes, offsets, rows


def ple_rows(config: Config, tokens: np.ndarray) -> np.ndarray:
    """Table rows of each position: tokens int [B, T] -> int64 [B, T, ple_heads]."""
    multipliers, sizes, offsets, _ = ple_constants(config)
    batch, length = tokens.shape
    context = [tokens.astype(np.uint64)]
    cut = np.zeros((batch, length), bool)
    for shift in range(1, config.ngram):
        past = np.full((batch, length), config.eos, np.uint64)
        past[:, shift:] = context[0][:, :-shift] if shift < length else past[:, :0]
        cut |= past == config.eos
        context.append(np.where(cut, np.uint64(config.eos), past))
    rows = []
    mix = context[0] * np.uint64(multipliers[0])
    for n in range(2, config.ngram + 1):
        mix = mix ^ (context[n - 1] * np.uint64(multipliers[n - 1]))
        for g in range(config.ple_heads_per_ngram):
            head = (n - 2) * config.ple_heads_per_ngram + g
            rows.append(mix % np.uint64(sizes[head]) + np.uint64(offsets[head]))
    return np.stack(rows, -1).astype(np.int64)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def gdn_prepare(u: Tensor, a: Tensor, b: Tensor, conv: Tensor, dt: Tensor, a_log: Tensor, k_heads: int,
                dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Convolution, normalisation and gates of a GDN layer: u [B, T, D] -> q, k, v [B, T, VH, dim], g, beta [B, T, VH]."""
    batch, length, _ = u.shape
    v_heads = dt.shape[0]
    y = ConvSilu.apply(u, conv, 1)
    q, k, v = y.split([k_heads * dim, k_heads * dim, v_heads * dim], -1)
    q, k = (t.reshape(batch, length, k_heads, dim) for t in (q, k))
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + EPS) * dim**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + EPS)
    repeat = (1, 1, v_heads // k_heads, 1)  # v head h uses k head h mod k_heads
    g = -torch.exp(a_log) * F.softplus(a + dt)
    return q.repeat(repeat), k.repeat(repeat), v.reshape(batch, length, v_heads, dim), g, torch.sigmoid(b)


def gdn_chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int) -> tuple[Tensor, ...]:
    """Within-chunk part of the delta rule; all results are [B, VH, chunks, ...]."""
    batch, length, heads, dim = q.shape
    shape = (batch, length // chunk, chunk, heads)
    q, k, v = (t.reshape(*shape, dim).permute(0, 3, 1, 2, 4) for t in (q, k, v))
    g, beta = (t.reshape(shape).permute(0, 3, 1, 2) for t in (g, beta))
    total = g.cumsum(-1)
    lower = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    decay = torch.exp((total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, -torch.inf))
    grow = torch.exp(total).unsqueeze(-1)
    kb = k * beta.unsqueeze(-1)
    system = ((kb @ k.mT) * decay).tril(-1)
    attend = (q @ k.mT) * decay
    right = torch.cat([v * beta.unsqueeze(-1), kb * grow], -1)
    tail = k * torch.exp(total[..., -1:] - total).unsqueeze(-1)
    return system, right, attend, q * grow, tail, torch.exp(total[..., -1])


def gated_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = 32) -> Tensor:
    """Chunked gated delta rule: inputs as from `gdn_prepare`, result [B, T, VH, dim]."""
    batch, length, heads, dim = q.shape
    pad = -length % chunk
    if pad:
        q, k, v = (F.pad(t, (0, 0, 0, 0, 0, pad)) for t in (q, k, v))
        g, beta = (F.pad(t, (0, 0, 0, pad)) for t in (g, beta))
    system, right, attend, q_grow, tail, end = gdn_chunks(q, k, v, g, beta, chunk)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    u, w = solved.split(dim, -1)
    state = q.new_zeros(batch, heads, dim, dim)
    outs = []
    for i in range(u.shape[2]):
        new = u[:, :, i] - w[:, :, i] @ state
        outs.append(q_grow[:, :, i] @ state + attend[:, :, i] @ new)
        state = state * end[:, :, i, None, None] + tail[:, :, i].mT @ new
    return torch.stack(outs, 2).permute(0, 2, 3, 1, 4).reshape(batch, -1, heads, dim)[:, :length]


def gdn_finish(o: Tensor, z: Tensor, norm: Tensor) -> Tensor:
    """Per-head norm and sigmoid gate: o [B, T, VH, dim], z [B, T, VH*dim] -> [B, T, VH*dim]."""
    return rms(o, norm).flatten(2) * torch.sigmoid(z)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """NEOX rotation of the first 2*half dims: x [B, T, H, D], cos and sin [T, half]."""
    half = cos.shape[-1]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


@dataclasses.dataclass
class Aux:
    """Side results of a forward pass."""

    router_probs: list[Tensor] = dataclasses.field(default_factory=list)  # per block [N, X]
    router_ids: list[Tensor] = dataclasses.field(default_factory=list)  # per block [N, K]
    indexer_loss: list[Tensor] = dataclasses.field(default_factory=list)


class Qwen4Exp(nn.Module):
    """The trunk and the MTP block (index ``layers``)."""

    def __init__(self, config: Config, seed: int = 0, mtp: bool = True) -> None:
        super().__init__()
        self.config = config
        self.blocks = config.layers + mtp
        self.generator = torch.Generator().manual_seed(seed)
        self._parameters_by_name: dict[str, nn.Parameter] = {}
        self._create()
        self.init_recall()
        half = config.rope_dims // 2
        inverse = config.rope_base ** (-torch.arange(half, dtype=torch.float32) * 2 / config.rope_dims)
        angles = torch.arange(config.context, dtype=torch.float32)[:, None] * inverse
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    # -- parameters -------------------------------------------------------------------------------------------------

    def _add(self, name: str, *shape: int, std: float | None = None, value: float | None = None) -> None:
        data = torch.randn(*shape, generator=self.generator) * std if value is None else torch.full(shape, value)
        parameter = nn.Parameter(data)
        self.register_parameter(name.replace(".", "/"), parameter)
        self._parameters_by_name[name] = parameter

    def _matrix(self, name: str, rows: int, cols: int, scale: float = 1.0) -> None:
        self._add(name, rows, cols, std=scale * cols**-0.5)

    def _mixer(self, prefix: str, inject: bool) -> None:
        c = self.config
        wide = c.hidden * c.streams
        self._add(f"{prefix}_norm.weight", wide, value=1.0)
        self._matrix(f"{prefix}_read", c.hc_rank + (c.streams if inject else 0), wide)
        self._matrix(f"{prefix}_up.weight", wide, c.hc_rank, 0.3)

    def _create(self) -> None:
        c = self.config
        self._add("token_embd.weight", c.vocab, c.hidden, std=0.5)
        self._add("output.weight", c.vocab, c.hidden, std=0.02)
        self._mixer("output_hc", inject=False)
        for i in range(self.blocks):
            b = f"blk.{i}."
            self._mixer(b + "hc_attn", inject=True)
            self._mixer(b + "hc_ffn", inject=True)
            self._attention(b) if c.is_attention(i) else self._delta(b)
            self._add(b + "ffn_gate_inp.weight", c.experts, c.hidden, std=0.5 * c.hidden**-0.5)
            self._add(b + "ffn_gate_up_exps", c.experts, 2 * c.expert_width, c.hidden, std=c.hidden**-0.5)
            self._add(b + "ffn_down_exps.weight", c.experts, c.hidden, c.expert_width, std=0.15 * c.expert_width**-0.5)
            self._add(b + "ffn_gate_inp_shexp.weight", c.hidden, std=0.02)
            self._matrix(b + "ffn_gate_shexp.weight", c.shared_width, c.hidden)
            self._matrix(b + "ffn_up_shexp.weight", c.shared_width, c.hidden)
            self._matrix(b + "ffn_down_shexp.weight", c.hidden, c.shared_width, 0.15)
        if self.blocks > c.layers:
            b = f"blk.{c.layers}.nextn."
            self._matrix(b + "eh_proj.weight", c.hidden, 2 * c.hidden)
            self._add(b + "enorm.weight", c.hidden, value=1.0)
            self._add(b + "hnorm.weight", c.hidden * c.streams, value=1.0)
            self._mixer(b + "hc_head", inject=False)
        b, wide, narrow = f"blk.{c.ple_layer}.ple_", c.hidden * c.streams, c.ple_heads * c.ple_row
        self._add("per_layer_token_embd.weight", ple_constants(c)[3], c.ple_row, std=0.5)
        self._matrix(b + "key.weight", wide, narrow)
        self._matrix(b + "value.weight", c.hidden, narrow)
        for name in ("key", "query", "conv"):
            self._add(f"{b}norm_{name}.weight", wide, value=1.0)
        self._add(b + "conv1d.weight", wide, c.conv, std=0.1)

    def _attention(self, b: str) -> None:
        c = self.config
        self._matrix(b + "attn_q.weight", 2 * c.heads * c.head_dim, c.hidden)
        self._matrix(b + "attn_k.weight", c.kv_heads * c.head_dim, c.hidden)
        self._matrix(b + "attn_v.weight", c.kv_heads * c.head_dim, c.hidden)
        self._matrix(b + "attn_output.weight", c.hidden, c.heads * c.head_dim, 0.15)
        self._add(b + "attn_q_norm.weight", c.head_dim, value=1.0)
        self._add(b + "attn_k_norm.weight", c.head_dim, value=1.0)
        self._matrix(b + "indexer.q_proj.weight", c.indexer_heads * c.indexer_dim, c.hidden)
        self._matrix(b + "indexer.k_proj.weight", c.indexer_dim, c.hidden)
        self._add(b + "indexer.q_norm.weight", c.indexer_dim, value=1.0)
        self._add(b + "indexer.k_norm.weight", c.indexer_dim, value=1.0)

    def _delta(self, b: str) -> None:
        c = self.config
        key, value = c.gdn_k_heads * c.gdn_dim, c.gdn_v_heads * c.gdn_dim
        self._matrix(b + "attn_qkv.weight", 2 * key + value, c.hidden)
        self._matrix(b + "attn_gate.weight", value, c.hidden)
        self._add(b + "ssm_conv1d.weight", 2 * key + value, c.conv, std=0.3)
        self._matrix(b + "ssm_alpha.weight", c.gdn_v_heads, c.hidden)
        self._matrix(b + "ssm_beta.weight", c.gdn_v_heads, c.hidden)
        self._add(b + "ssm_dt.bias", c.gdn_v_heads, value=0.0)
        self._add(b + "ssm_a_log", c.gdn_v_heads, value=0.0)
        with torch.no_grad():
            # Half-lives from about one token to about a thousand.
            step = torch.logspace(0, -3, c.gdn_v_heads)
            self[b + "ssm_dt.bias"].copy_(torch.log(torch.expm1(step)))
            self[b + "ssm_conv1d.weight"][:, -1] += 1.0
        self._add(b + "ssm_norm.weight", c.gdn_dim, value=1.0)
        self._matrix(b + "ssm_out.weight", c.hidden, value, 0.15)

    @torch.no_grad()
    def init_recall(self) -> None:
        """Starts two delta-net layers as associative memories, the circuit of in-context copying.

        One stores each token under the token before it, the other under the two before it. Recalled successors are
        written in a basis of their own, which the output matrix reads. So an untrained model already continues a
        repeated run of tokens (90 % of the tokens of a "drill"), which so short a training would hardly find.
        """
        c = self.config
        basis = self._orthogonal(c.hidden)
        self["output.weight"].copy_(0.25 * self["token_embd.weight"] @ basis.t())
        one, two = c.recall_layers
        self._init_memory(one, basis, query_taps=(0, 0), key_taps=(1, 1))
        self._init_memory(two, basis, query_taps=(0, 1), key_taps=(1, 2))

    def _orthogonal(self, size: int) -> Tensor:
        return torch.linalg.qr(torch.randn(size, size, generator=self.generator)).Q

    def _init_memory(self, layer: int, basis: Tensor, query_taps: tuple[int, int], key_taps: tuple[int, int]) -> None:
        """A GDN layer that stores each token under earlier ones; taps are the distances in tokens that the two halves
        of each head's dimensions look back. Projections are small, so that SiLU is nearly linear on them."""
        c = self.config
        b, key, values = f"blk.{layer}.", c.gdn_k_heads * c.gdn_dim, c.gdn_v_heads * c.gdn_dim
        scale = 0.6
        query = torch.randn(key, c.hidden, generator=self.generator) * (scale / c.hidden**0.5)
        value = self._orthogonal(c.hidden)[:values]
        self[b + "attn_qkv.weight"].copy_(torch.cat([query, query, scale * value]))
        conv = self[b + "ssm_conv1d.weight"].zero_()
        half = torch.arange(key) % c.gdn_dim // (c.gdn_dim // 2)
        conv[torch.arange(key), c.conv - 1 - torch.tensor(query_taps)[half]] = 1.0
        conv[key + torch.arange(key), c.conv - 1 - torch.tensor(key_taps)[half]] = 1.0
        conv[2 * key:, -1] = 1.0
        self[b + "ssm_alpha.weight"].zero_()
        self[b + "ssm_beta.weight"].zero_()
        self[b + "ssm_a_log"].zero_()
        self[b + "ssm_dt.bias"].fill_(math.log(math.expm1(0.005)))
        self[b + "ssm_out.weight"].copy_(basis @ value.t())

    def __getitem__(self, name: str) -> nn.Parameter:
        return self._parameters_by_name[name]

    def by_name(self) -> dict[str, nn.Parameter]:
        return self._parameters_by_name

    # -- forward ----------------------------------------------------------------------------------------------------

    def read(self, r: Tensor, prefix: str) -> tuple[Tensor, Tensor]:
        return HyperRead.apply(r, self[prefix + "_norm.weight"], self[prefix + "_read"], self[prefix + "_up.weight"])

    def delta(self, b: str, x: Tensor) -> Tensor:
        """GDN mixer: x [B, T, E] -> [B, T, E]."""
        c = self.config
        q, k, v, g, beta = gdn_prepare(
            F.linear(x, self[b + "attn_qkv.weight"]), F.linear(x, self[b + "ssm_alpha.weight"]),
            F.linear(x, self[b + "ssm_beta.weight"]), self[b + "ssm_conv1d.weight"], self[b + "ssm_dt.bias"],
            self[b + "ssm_a_log"], c.gdn_k_heads, c.gdn_dim)
        o = gated_delta(q, k, v, g, beta)
        o = gdn_finish(o, F.linear(x, self[b + "attn_gate.weight"]), self[b + "ssm_norm.weight"])
        return F.linear(o, self[b + "ssm_out.weight"])

    def attention(self, b: str, x: Tensor, sparse: bool, aux: Aux | None) -> Tensor:
        """Gated attention, dense or restricted to the indexer's blocks: x [B, T, E] -> [B, T, E]."""
        c = self.config
        batch, length, _ = x.shape
        cos, sin = self.cos[:length], self.sin[:length]
        q, gate = F.linear(x, self[b + "attn_q.weight"]).view(batch, length, c.heads, 2 * c.head_dim).chunk(2, -1)
        k = F.linear(x, self[b + "attn_k.weight"]).view(batch, length, c.kv_heads, c.head_dim)
        v = F.linear(x, self[b + "attn_v.weight"]).view(batch, length, c.kv_heads, c.head_dim)
        q = rope(rms(q, self[b + "attn_q_norm.weight"]), cos, sin)
        k = rope(rms(k, self[b + "attn_k_norm.weight"]), cos, sin)
        repeat = c.heads // c.kv_heads
        q, k, v = (t.transpose(1, 2) for t in
                   (q, k.repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)))
        position = torch.arange(length)
        causal = position[:, None] >= position
        scores = (q @ k.mT) * c.head_dim**-0.5
        visible = causal
        train_indexer = aux is not None and torch.is_grad_enabled() and length > c.indexer_budget
        if train_indexer or (sparse and length > c.indexer_budget + c.block - 1):
            index, complete = self.index_scores(b, x, cos, sin)
            if train_indexer:
                aux.indexer_loss.append(self.indexer_loss(index, complete, scores, causal))
            if sparse:
                visible = self.select(index.detach(), complete, causal).unsqueeze(1)
        probs = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        o = (probs @ v).transpose(1, 2) * torch.sigmoid(gate)
        return F.linear(o.flatten(2), self[b + "attn_output.weight"])

    def index_scores(self, b: str, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Block scores [B, T, blocks] of the indexer and the mask [T, blocks] of complete blocks.

        The indexer learns from its own loss only: x is detached.
        """
        c = self.config
        batch, length, _ = x.shape
        blocks = length // c.block
        x = x.detach()
        key = F.linear(x, self[b + "indexer.k_proj.weight"])[:, :blocks * c.block]
        key = key.view(batch, blocks, 1, c.block, c.indexer_dim).mean(3)
        key = rope(rms(key, self[b + "indexer.k_norm.weight"]), cos[::c.block][:blocks], sin[::c.block][:blocks])
        query = F.linear(x, self[b + "indexer.q_proj.weight"]).view(batch, length, c.indexer_heads, c.indexer_dim)
        query = rope(rms(query, self[b + "indexer.q_norm.weight"]), cos, sin)
        scores = F.relu(query.transpose(1, 2) @ key.permute(0, 2, 3, 1)).sum(1) * c.indexer_dim**-0.5
        complete = torch.arange(blocks) < ((torch.arange(length) + 1) // c.block)[:, None]
        return scores, complete

    def indexer_loss(self, index: Tensor, complete: Tensor, scores: Tensor, causal: Tensor) -> Tensor:
        """Cross-entropy of the block scores against the mass of dense attention on each complete block."""
        c = self.config
        batch, heads, length, _ = scores.shape
        with torch.no_grad():
            mass = scores.masked_fill(~causal, -torch.inf).softmax(-1).sum(1)
            mass = mass[:, :, :index.shape[-1] * c.block].unflatten(-1, (-1, c.block)).sum(-1) * complete
            target = mass / mass.sum(-1, keepdim=True).clamp_min(1e-9)
        first = c.indexer_budget
        log_probs = index.masked_fill(~complete, -1e4).log_softmax(-1)
        return -(target * log_probs)[:, first:].sum(-1).mean()

    def select(self, index: Tensor, complete: Tensor, causal: Tensor) -> Tensor:
        """Visible tokens [B, T, T]: the best complete blocks and the tail; ties go to the lower block."""
        c = self.config
        batch, length, blocks = index.shape
        index = index.masked_fill(~complete, -torch.inf)
        best = index.sort(dim=-1, descending=True, stable=True).indices[..., :c.indexer_budget // c.block]
        chosen = torch.zeros_like(index, dtype=torch.bool).scatter_(-1, best, True) & complete
        chosen = chosen.repeat_interleave(c.block, -1)
        position = torch.arange(length)
        tail = position >= ((position + 1) // c.block * c.block)[:, None]
        return (F.pad(chosen, (0, length - blocks * c.block)) | tail) & causal

    def ple(self, r: Tensor, rows: Tensor) -> Tensor:
        """Hashed n-gram embedding: r [B, T, C, E], rows [B, T, heads] -> r plus the block's output."""
        c = self.config
        b = f"blk.{c.ple_layer}.ple_"
        batch, length = rows.shape[:2]
        shape = (c.streams, c.hidden)
        e = F.embedding(rows, self["per_layer_token_embd.weight"]).flatten(2)
        key = rms(F.linear(e, self[b + "key.weight"]).unflatten(-1, shape), self[b + "norm_key.weight"].view(shape))
        query = rms(r, self[b + "norm_query.weight"].view(shape))
        s = (key * query).sum(-1) * c.hidden**-0.5
        gate = torch.sigmoid(s.sign() * s.abs().clamp_min(1e-6).sqrt())
        value = gate.unsqueeze(-1) * F.linear(e, self[b + "value.weight"]).unsqueeze(2)
        normed = rms(value, self[b + "norm_conv.weight"].view(shape)).flatten(2)
        conv = ConvSilu.apply(normed, self[b + "conv1d.weight"], c.ngram)
        return r + value + conv.unflatten(-1, shape)

    def experts(self, b: str, x: Tensor, aux: Aux | None) -> Tensor:
        """Routed and shared experts: x [N, E] -> [N, E]."""
        c = self.config
        probs = F.linear(x, self[b + "ffn_gate_inp.weight"]).softmax(-1)
        top, ids = probs.topk(c.experts_used, -1)
        if aux is not None:
            aux.router_probs.append(probs)
            aux.router_ids.append(ids)
        y = Experts.apply(x, top / top.sum(-1, keepdim=True), self[b + "ffn_gate_up_exps"],
                                  self[b + "ffn_down_exps.weight"], ids)
        shared = F.silu(F.linear(x, self[b + "ffn_gate_shexp.weight"])) * F.linear(x, self[b + "ffn_up_shexp.weight"])
        gate = torch.sigmoid(x @ self[b + "ffn_gate_inp_shexp.weight"]).unsqueeze(-1)
        return y + gate * F.linear(shared, self[b + "ffn_down_shexp.weight"])

    def block(self, i: int, r: Tensor, sparse: bool, aux: Aux | None) -> Tensor:
        """One block: r [B, T, C, E] -> r."""
        batch, length = r.shape[:2]
        b = f"blk.{i}."
        r = r.flatten(0, 1)
        x, inject = self.read(r, b + "hc_attn")
        x = x.unflatten(0, (batch, length))
        y = self.attention(b, x, sparse, aux) if self.config.is_attention(i) else self.delta(b, x)
        r = HyperWrite.apply(r, inject, y.flatten(0, 1))
        x, inject = self.read(r, b + "hc_ffn")
        r = HyperWrite.apply(r, inject, self.experts(b, x, aux))
        return r.unflatten(0, (batch, length))

    def trunk(self, tokens: Tensor, rows: Tensor, sparse: bool = True, aux: Aux | None = None) -> Tensor:
        """Wide residual after the last layer: tokens [B, T], rows [B, T, ple_heads] -> [B, T, C, E]."""
        c = self.config
        r = F.embedding(tokens, self["token_embd.weight"]).unsqueeze(2).repeat(1, 1, c.streams, 1)
        for i in range(c.layers):
            if i == c.ple_layer:
                r = self.ple(r, rows)
            r = self.block(i, r, sparse, aux)
        return r

    def head(self, r: Tensor, prefix: str = "output_hc", freeze: bool = False) -> Tensor:
        """Logits: r [..., C, E] -> [..., vocab]."""
        x, _ = self.read(r.flatten(0, -3), prefix)
        output = self["output.weight"]
        return F.linear(x, output.detach() if freeze else output).unflatten(0, r.shape[:-2])

    def mtp(self, tokens: Tensor, hidden: Tensor, aux: Aux | None = None) -> Tensor:
        """MTP block on pairs (x_{p+1}, h_p): tokens [B, T], hidden [B, T, C, E] -> wide result [B, T, C, E].

        Trunk values are used detached, so that the trunk does not depend on this block. Attention is dense.
        """
        c = self.config
        b = f"blk.{c.layers}."
        n = b + "nextn."
        e = rms(F.embedding(tokens, self["token_embd.weight"].detach()), self[n + "enorm.weight"])
        hidden = rms(hidden.flatten(2), self[n + "hnorm.weight"]).unflatten(-1, (c.streams, c.hidden))
        w_e, w_h = self[n + "eh_proj.weight"].split(c.hidden, 1)
        r = F.linear(e, w_e).unsqueeze(2) + F.linear(hidden, w_h)
        return self.block(c.layers, r, False, aux)

    def mtp_head(self, r: Tensor) -> Tensor:
        return self.head(r, f"blk.{self.config.layers}.nextn.hc_head", freeze=True)

    # -- GGUF -------------------------------------------------------------------------------------------------------

    def to_gguf(self) -> dict[str, np.ndarray]:
        """All tensors under their GGUF names, numpy shape = reversed GGUF dims."""
        tensors: dict[str, np.ndarray] = {}
        for name, parameter in self._parameters_by_name.items():
            data = parameter.detach().float().numpy()
            if name.endswith("ssm_a_log"):
                tensors[name.removesuffix("_log")] = -np.exp(data)
            elif name.endswith("ffn_gate_up_exps"):
                gate, up = np.split(data, 2, axis=1)
                tensors[name.replace("gate_up", "gate") + ".weight"] = gate
                tensors[name.replace("gate_up", "up") + ".weight"] = up
            elif name.endswith("_read"):
                prefix = name.removesuffix("_read")
                tensors[prefix + "_down.weight"] = data[:self.config.hc_rank]
                if len(data) > self.config.hc_rank:
                    tensors[prefix + "_inject.weight"] = data[self.config.hc_rank:]
            else:
                tensors[name] = data
        return tensors

    @torch.no_grad()
    def from_gguf(self, tensors: dict[str, np.ndarray]) -> None:
        """Loads what `to_gguf` writes."""
        for name, parameter in self._parameters_by_name.items():
            if name.endswith("ssm_a_log"):
                data = np.log(-tensors[name.removesuffix("_log")])
            elif name.endswith("ffn_gate_up_exps"):
                data = np.concatenate([tensors[name.replace("gate_up", part) + ".weight"] for part in ("gate", "up")], 1)
            elif name.endswith("_read"):
                prefix = name.removesuffix("_read")
                parts = [tensors.get(f"{prefix}_{part}.weight") for part in ("down", "inject")]
                data = np.concatenate([part for part in parts if part is not None])
            else:
                data = tensors[name]
            parameter.copy_(torch.tensor(data).view(parameter.shape))
