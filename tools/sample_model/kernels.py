"""Autograd functions over kernels.c: hyper-connections, routed experts and causal convolutions.

The C file is compiled on first use into the system's temporary directory. All tensors are contiguous f32.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pathlib
import subprocess
import tempfile

import torch
import torch.nn.functional as F
from torch import Tensor

SOURCE = pathlib.Path(__file__).with_name("kernels.c")


@functools.cache
def _library() -> ctypes.CDLL:
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = pathlib.Path(tempfile.gettempdir()) / f"sample-model-kernels-{digest}.so"
    if not path.exists():
        partial = path.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", SOURCE, "-o", partial, "-lm"],
                       check=True)
        os.replace(partial, path)
    return ctypes.CDLL(str(path))


def _call(name: str, *args: Tensor | int) -> None:
    values = []
    for arg in args:
        if isinstance(arg, Tensor):
            if not arg.is_contiguous() or arg.dtype != torch.float32:
                raise ValueError(f"{name}: expected contiguous f32 tensors")
            values.append(ctypes.c_void_p(arg.data_ptr()))
        else:
            values.append(ctypes.c_int64(arg))
    getattr(_library(), name)(*values)


class HyperRead(torch.autograd.Function):
    """r [N, C, E], norm [C*E], read [rank + inject, C*E], up [C*E, rank] -> x [N, E], write-back weights [N, inject]."""

    @staticmethod
    def forward(ctx, r: Tensor, norm: Tensor, read: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        n, c, e = r.shape
        rank = up.shape[1]
        normed, rstd = torch.empty_like(r), r.new_empty(n, c)
        _call("hc_norm", r, norm, normed, rstd, n, c, e)
        projected = normed.view(n, -1).mm(read.t()).div_(c)
        low = F.silu(projected[:, :rank])
        u = low.mm(up.t())
        x = r.new_empty(n, e)
        _call("hc_gate", u, normed, x, n, c, e)
        inject = torch.sigmoid(projected[:, rank:]).mul_(2)
        ctx.save_for_backward(r, norm, read, up, normed, rstd, projected, low, u, inject)
        return x, inject

    @staticmethod
    def backward(ctx, dx: Tensor, dinject: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        r, norm, read, up, normed, rstd, projected, low, u, inject = ctx.saved_tensors
        n, c, e = r.shape
        rank = up.shape[1]
        du, dn = torch.empty_like(u), torch.empty_like(r)
        _call("hc_gate_backward", dx.contiguous(), u, normed, du, dn, n, c, e)
        s = torch.sigmoid(projected[:, :rank])
        dlow = du.mm(up).mul_(s + low * (1 - s))
        dprojected = torch.cat([dlow, dinject * inject * (1 - inject / 2)], 1).div_(c)
        flat = dn.view(n, -1)
        flat.addmm_(dprojected, read)
        dread = dprojected.t().mm(normed.view(n, -1))
        dnorm = torch.zeros_like(norm)
        _call("hc_norm_backward", dn, r, norm, rstd, dnorm, n, c, e)
        return dn, dnorm, dread, du.t().mm(low)


class HyperWrite(torch.autograd.Function):
    """r [N, C, E] + inject [N, C] * y [N, E]."""

    @staticmethod
    def forward(ctx, r: Tensor, inject: Tensor, y: Tensor) -> Tensor:
        out, y = torch.empty_like(r), y.contiguous()
        _call("hc_write", r, inject, y, out, *r.shape)
        ctx.save_for_backward(inject, y)
        return out

    @staticmethod
    def backward(ctx, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inject, y = ctx.saved_tensors
        d = d.contiguous()
        dinject, dy = torch.empty_like(inject), torch.empty_like(y)
        _call("hc_write_backward", d, inject, y, dinject, dy, *d.shape)
        return d, dinject, dy


class ConvSilu(torch.autograd.Function):
    """silu of a depthwise causal convolution: x [B, T, D], weight [D, taps] -> [B, T, D]."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, dilation: int) -> Tensor:
        x, taps = x.contiguous(), weight.t().contiguous()
        pre, out = torch.empty_like(x), torch.empty_like(x)
        _call("conv_silu", x, taps, pre, out, *x.shape, taps.shape[0], dilation)
        ctx.save_for_backward(x, taps, pre)
        ctx.dilation = dilation
        return out

    @staticmethod
    def backward(ctx, d: Tensor) -> tuple[Tensor, Tensor, None]:
        x, taps, pre = ctx.saved_tensors
        dx, dtaps = torch.zeros_like(x), torch.zeros_like(taps)
        _call("conv_silu_backward", d.contiguous(), x, taps, pre, dx, dtaps, *x.shape, taps.shape[0], ctx.dilation)
        return dx, dtaps.t(), None


class Experts(torch.autograd.Function):
    """Routed experts as one matrix product per expert on rows sorted by expert; nothing is dropped or padded.

    Gradients of the two weight tensors are added to their preallocated ``grad`` instead of being returned.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor) -> Tensor:
        """x [N, E], weights and ids [N, K], gate_up [X, 2F, E], down [X, E, F] -> [N, E]."""
        n, used = ids.shape
        order = ids.flatten().argsort(stable=True)
        counts = torch.bincount(ids.flatten(), minlength=gate_up.shape[0]).tolist()
        rows = x.index_select(0, order // used)
        w = weights.flatten()[order]
        h, act = rows.new_empty(n * used, gate_up.shape[1]), rows.new_empty(n * used, down.shape[2])
        for part, weight, out in zip(rows.split(counts), gate_up.mT.unbind(), h.split(counts)):
            torch.mm(part, weight, out=out)
        _call("expert_act", h, w, act, *act.shape)
        for part, weight, out in zip(act.split(counts), down.mT.unbind(), rows.split(counts)):
            torch.mm(part, weight, out=out)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(n * used)
        ctx.save_for_backward(x, w, gate_up, down, h, act, order, inverse.view(n, used))
        ctx.counts = counts
        return F.embedding_bag(inverse.view(n, used), rows, mode="sum")

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w, gate_up, down, h, act, order, inverse = ctx.saved_tensors
        counts = ctx.counts
        token = order // inverse.shape[1]
        dy, rows = grad.index_select(0, token), x.index_select(0, token)
        d_act, d_h, d_w = torch.empty_like(act), torch.empty_like(h), torch.empty_like(w)
        dy_parts = dy.split(counts)
        for d, a, weight, d_weight, out in zip(dy_parts, act.split(counts), down.unbind(), down.grad.unbind(),
                                               d_act.split(counts)):
            torch.mm(d, weight, out=out)
            d_weight.addmm_(d.t(), a)
        _call("expert_act_backward", d_act, h, w, d_h, d_w, *act.shape)
        for d, a, weight, d_weight, out in zip(d_h.split(counts), rows.split(counts), gate_up.unbind(),
                                               gate_up.grad.unbind(), dy_parts):
            d_weight.addmm_(d.t(), a)
            torch.mm(d, weight, out=out)
        return F.embedding_bag(inverse, dy, mode="sum"), d_w[inverse], None, None, None
