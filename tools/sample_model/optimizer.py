"""Muon for matrices, Adam for the rest, with the parameters divided among worker processes."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

NS_STEPS = 4
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
MUON_MOMENTUM = 0.95
ADAM_BETAS = (0.9, 0.97)
WEIGHT_DECAY = 0.02


@dataclasses.dataclass
class Unit:
    """One parameter and how it is updated; ``lr`` is its peak rate."""

    name: str
    muon: bool
    lr: float
    state: list[Tensor]


def _rule(name: str, shape: torch.Size) -> tuple[bool, float]:
    """(Muon?, peak learning rate) of a parameter."""
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return False, 0.01
    if name == "output.weight":
        return False, 0.003
    if "ffn_gate_inp" in name or "indexer" in name or "ssm_alpha" in name or "ssm_beta" in name:
        return False, 0.002
    if len(shape) < 2 or "conv1d" in name:
        return False, 0.005
    return True, 0.02


def units(parameters: dict[str, Tensor]) -> list[Unit]:
    """Units with zeroed shared-memory state: [momentum] for Muon, [first, second] for Adam."""
    result = []
    for name, parameter in parameters.items():
        muon, lr = _rule(name, parameter.shape)
        state = [torch.zeros(parameter.shape).share_memory_() for _ in range(1 if muon else 2)]
        result.append(Unit(name, muon, lr, state))
    return result


def share_out(all_units: list[Unit], parameters: dict[str, Tensor], workers: int) -> list[list[Unit]]:
    """Divides the units so that each worker has about the same work."""
    loads = [0] * workers
    shares: list[list[Unit]] = [[] for _ in range(workers)]
    for unit in sorted(all_units, key=lambda u: -parameters[u.name].numel()):
        worker = loads.index(min(loads))
        loads[worker] += parameters[unit.name].numel()
        shares[worker].append(unit)
    return shares


def as_matrices(name: str, data: Tensor) -> Tensor:
    """A stack [count, rows, cols] of the matrices in a parameter; gate and up are separate ones."""
    if name.endswith("ffn_gate_up_exps"):
        return data.view(2 * data.shape[0], data.shape[1] // 2, data.shape[2])
    return data.view(-1, *data.shape[-2:])


def orthogonalise(x: Tensor) -> Tensor:
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrices, on the Gram matrix of the shorter side."""
    a, b, c = NS_COEFFICIENTS
    wide = x if x.shape[-2] <= x.shape[-1] else x.mT
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-12)
    gram = wide @ wide.mT
    identity = torch.eye(gram.shape[-1])
    product = identity
    for step in range(NS_STEPS):
        factor = a * identity + b * gram + c * (gram @ gram)
        product = factor @ product
        if step + 1 < NS_STEPS:
            gram = factor @ gram @ factor
    result = product @ wide
    return result if x.shape[-2] <= x.shape[-1] else result.mT


@torch.no_grad()
def update(unit: Unit, parameter: Tensor, grad: Tensor, scale: float, step: int) -> None:
    """One update with the rate ``unit.lr * scale``; ``step`` counts from 1. ``grad`` is overwritten."""
    lr = unit.lr * scale
    if unit.muon:
        momentum = unit.state[0]
        momentum.lerp_(grad, 1 - MUON_MOMENTUM)
        matrices = as_matrices(unit.name, grad.lerp_(momentum, MUON_MOMENTUM))
        rows, cols = matrices.shape[-2:]
        parameter.mul_(1 - lr * WEIGHT_DECAY)
        as_matrices(unit.name, parameter).add_(orthogonalise(matrices), alpha=-lr * max(1.0, rows / cols) ** 0.5)
    else:
        first, second = unit.state
        first.lerp_(grad, 1 - ADAM_BETAS[0])
        second.lerp_(grad.square_(), 1 - ADAM_BETAS[1])
        correction = (1 - ADAM_BETAS[1] ** step) ** 0.5 / (1 - ADAM_BETAS[0] ** step)
        parameter.addcdiv_(first, second.sqrt().add_(1e-10), value=-lr * correction)
