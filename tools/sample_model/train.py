"""Trains the sample model on a few CPU cores until a given time of day.

Each worker process is single-threaded. A step has a fixed set of sequences; idle workers take the next one from a shared
counter, so that an unevenly loaded machine costs little. Parameters, gradients and optimizer state lie in shared
memory, and each worker updates its share of the parameters. The learning rate is a function of the fraction of the
time that has passed: it always decays to its end, however fast the machine was.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import time
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor

import data
import model as m
import optimizer as opt

# A step is some of these pairs of sequences; with long sequences the two of a pair take turns. "drill" becomes "tasks" late.
PAIRS = (("tasks", "drill"), ("scripture", "python"), ("tasks", "tasks"), ("manual", "tasks"),
         ("tasks", "python"), ("manual", "scripture"), ("tasks", "tasks"), ("drill", "tasks"),
         ("tasks", "tasks"), ("manual", "scripture"), ("tasks", "python"), ("tasks", "tasks"))
DRILL_UNTIL = 0.82  # fraction of the time
PAIRS_PER_STEP = 4  # the window of pairs moves on by so many every step
TOKENS = 512  # of a pair
LENGTHS = ((0.0, 256), (0.88, 512))  # (from this fraction of the time, tokens of a sequence)
MTP_EVERY = 4  # one pair in so many trains the MTP block
WARMUP_STEPS = 15
DECAY_FROM = 0.78  # fraction of the time after which the rate falls linearly
FINAL_RATE = 0.02
DENSE_UNTIL = 0.08  # fraction of the time with dense attention
INDEXER_WEIGHT = 0.1
SKEW_TARGET = 0.57  # share of the uses that the top quarter of the experts should take
KINDS = sorted({kind for pair in PAIRS for kind in pair})
STATS = ("mtp", "indexer", "answer_right", "answer_tokens", *KINDS, *(f"{kind}_count" for kind in KINDS))


@dataclasses.dataclass
class Shared:
    """Everything that the workers have in common."""

    parameters: dict[str, Tensor]
    gradients: list[dict[str, Tensor]]  # per worker
    units: list[opt.Unit]
    stats: Tensor  # [workers, len(STATS)]
    counts: Tensor  # [workers, blocks, X] expert uses of this step
    usage: Tensor  # [blocks, X] moving average of the shares
    balance: Tensor  # [blocks] weight of the balance loss
    control: Tensor  # [5] step (from 1), rate, sparse?, length, drill?; a step of 0 ends the run


def rate_at(fraction: float, step: int) -> float:
    decay = 1.0 if fraction < DECAY_FROM else 1 - (1 - FINAL_RATE) * (fraction - DECAY_FROM) / (1 - DECAY_FROM)
    return min(1.0, step / WARMUP_STEPS) * max(FINAL_RATE, decay)


def skew(usage: Tensor) -> Tensor:
    """Share of the uses that the top quarter of the experts takes: [blocks, X] -> [blocks]."""
    ordered = usage.sort(dim=-1, descending=True).values
    return ordered[:, :usage.shape[1] // 4].sum(-1) / usage.sum(-1)


def batch_loss(net: m.Qwen4Exp, batch: list[data.Sequence], shared: Shared, rank: int, with_mtp: bool,
               sparse: bool) -> Tensor:
    """Mean loss of a few sequences; fills in the worker's statistics."""
    tokens = torch.from_numpy(np.stack([sequence.tokens for sequence in batch]))
    weights = torch.from_numpy(np.stack([sequence.weights for sequence in batch]))
    rows = torch.from_numpy(m.ple_rows(net.config, tokens.numpy()))
    aux = m.Aux()
    wide = net.trunk(tokens[:, :-1], rows[:, :-1], sparse, aux)
    logits = net.head(wide)
    main = weighted_loss(logits, tokens[:, 1:], weights[:, 1:])
    indexer = torch.stack(aux.indexer_loss).mean()
    total = main.mean() + INDEXER_WEIGHT * indexer
    if with_mtp:
        draft = net.mtp_head(net.mtp(tokens[:, 1:-1], wide[:, :-1].detach(), aux))
        mtp = weighted_loss(draft, tokens[:, 2:], weights[:, 2:]).mean()
        total = total + mtp
        shared.stats[rank, STATS.index("mtp")] += mtp.detach()
    experts = net.config.experts
    for block, (probs, ids) in enumerate(zip(aux.router_probs, aux.router_ids)):
        total = total + shared.balance[block] * experts * (shared.usage[block] * probs.mean(0)).sum()
        shared.counts[rank, block] += torch.bincount(ids.flatten(), minlength=experts)
    answer = weights[:, 1:] == data.ANSWER_WEIGHT
    shared.stats[rank, STATS.index("indexer")] += indexer.detach() / PAIRS_PER_STEP
    shared.stats[rank, STATS.index("answer_right")] += (logits.argmax(-1) == tokens[:, 1:])[answer].sum()
    shared.stats[rank, STATS.index("answer_tokens")] += answer.sum()
    for sequence, loss in zip(batch, main.detach()):
        shared.stats[rank, STATS.index(sequence.kind)] += loss
        shared.stats[rank, STATS.index(f"{sequence.kind}_count")] += 1
    return total


def weighted_loss(logits: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean cross-entropy of each sequence: logits [B, T, vocab] -> [B]."""
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)
    return (loss * weights).sum(-1) / weights.sum(-1)


def work(rank: int, workers: int, args: argparse.Namespace, config: m.Config, shared: Shared, counter: Any,
         barrier: Any) -> None:
    """A worker; worker 0 also keeps the books."""
    torch.set_num_threads(1)
    net = m.Qwen4Exp(config)
    gradients = shared.gradients[rank]
    for name, parameter in net.by_name().items():
        parameter.data = shared.parameters[name]
        parameter.grad = gradients[name]
    mine = opt.share_out(shared.units, shared.parameters, workers)[rank]
    source = data.Source(args.work)
    keeper = Keeper(args, config, shared) if rank == 0 else None
    while True:
        if keeper:
            keeper.begin_step()
            counter.value = 0
        barrier.wait()
        step, rate, sparse, length, drill = shared.control.tolist()
        if not step:
            return
        for gradient in gradients.values():
            gradient.zero_()
        shared.stats[rank].zero_()
        shared.counts[rank].zero_()
        while True:
            with counter.get_lock():
                index = counter.value
                counter.value += 1
            if index >= PAIRS_PER_STEP:
                break
            number = (int(step) - 1) * PAIRS_PER_STEP + index
            kinds = PAIRS[number % len(PAIRS)]
            if length == TOKENS:
                kinds = (kinds[int(step) % 2],)
            if not drill:
                kinds = ["tasks" if kind == "drill" else kind for kind in kinds]
            batch = [source.draw(kind, int(length), f"{args.seed}-{number}-{i}") for i, kind in enumerate(kinds)]
            with_mtp = (index + int(step)) % MTP_EVERY == 0
            (batch_loss(net, batch, shared, rank, with_mtp, bool(sparse)) / PAIRS_PER_STEP).backward()
        barrier.wait()
        for unit in mine:
            total = shared.gradients[0][unit.name]
            for other in shared.gradients[1:]:
                total += other[unit.name]
            opt.update(unit, shared.parameters[unit.name], total, rate, int(step))
        if keeper:
            keeper.end_step()
        barrier.wait()


class Keeper:
    """Schedule, log and checkpoints."""

    def __init__(self, args: argparse.Namespace, config: m.Config, shared: Shared) -> None:
        self.args, self.config, self.shared = args, config, shared
        self.step, self.started = args.first_step, args.started
        self.saved = self.logged = time.time()
        self.sums = torch.zeros(len(STATS))
        self.tokens = self.logged_tokens = args.first_tokens
        self.log = (args.out / "log.jsonl").open("a", buffering=1)

    def begin_step(self) -> None:
        now = time.time()
        fraction = (now - self.started) / (self.args.deadline - self.started)
        if fraction >= 1:
            self.save()
            self.shared.control.zero_()
            return
        self.step += 1
        self.fraction = fraction
        self.rate = self.args.rate * rate_at(fraction, self.step)
        length = [tokens for start, tokens in LENGTHS if fraction >= start][-1]
        self.tokens += PAIRS_PER_STEP * TOKENS
        self.shared.control.copy_(torch.tensor([self.step, self.rate, float(fraction >= DENSE_UNTIL), length,
                                                float(fraction < DRILL_UNTIL)], dtype=torch.float64))

    def end_step(self) -> None:
        shared = self.shared
        counts = shared.counts.sum(0)
        share = counts / counts.sum(-1, keepdim=True).clamp_min(1)
        shared.usage.lerp_(share, 0.05 if self.step > 20 else 0.5)
        shared.balance.mul_(torch.exp(0.2 * (skew(shared.usage) - SKEW_TARGET))).clamp_(1e-4, 0.05)
        self.sums += shared.stats.sum(0)
        if self.step % self.args.log_every == 0:
            self._write_log()
        if time.time() - self.saved > self.args.save_every:
            self.save()

    def _write_log(self) -> None:
        now = time.time()
        mean = dict(zip(STATS, (self.sums / self.args.log_every).tolist()))
        for kind in KINDS:
            mean[kind] /= max(1e-9, mean.pop(f"{kind}_count"))
        accuracy = mean.pop("answer_right") / max(1.0, mean.pop("answer_tokens"))
        row = {"step": self.step, "fraction": self.fraction, "rate": self.rate, **mean, "answer_accuracy": accuracy,
               "tokens": self.tokens,
               "tokens_per_second": (self.tokens - self.logged_tokens) / (now - self.logged),
               "skew": [round(s, 3) for s in skew(self.shared.usage).tolist()],
               "balance": [round(b, 5) for b in self.shared.balance.tolist()],
               "time": time.strftime("%H:%M:%S", time.gmtime(now))}
        self.log.write(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}) + "\n")
        self.logged, self.logged_tokens = now, self.tokens
        self.sums.zero_()

    def save(self) -> None:
        shared = self.shared
        partial = self.args.out / "checkpoint.partial"
        torch.save({"config": dataclasses.asdict(self.config), "step": self.step, "tokens": self.tokens,
                    "started": self.started,
                    "model": {name.replace(".", "/"): data for name, data in shared.parameters.items()},
                    "optimizer": {unit.name: unit.state for unit in shared.units},
                    "usage": shared.usage, "balance": shared.balance}, partial)
        os.replace(partial, self.args.out / "checkpoint.pt")
        self.saved = time.time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=pathlib.Path, help="directory of corpus.py, tokenizer.py and data.py")
    parser.add_argument("out", type=pathlib.Path, help="directory of checkpoints and log")
    parser.add_argument("--until", required=True, help="end of the run, UTC, YYYY-MM-DDTHH:MM")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.5, help="scales all learning rates")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--save-every", type=float, default=240, help="seconds")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--pid-file", type=pathlib.Path)
    args = parser.parse_args()
    args.deadline = time.mktime(time.strptime(args.until, "%Y-%m-%dT%H:%M")) - time.timezone
    args.out.mkdir(parents=True, exist_ok=True)
    args.first_step, args.first_tokens, args.started = 0, 0, time.time()

    config = m.Config()
    net = m.Qwen4Exp(config, seed=args.seed)
    parameters = {name: p.data.clone().share_memory_() for name, p in net.by_name().items()}
    blocks = net.blocks
    shared = Shared(
        parameters, [{name: torch.zeros_like(p).share_memory_() for name, p in parameters.items()}
                     for _ in range(args.workers)],
        opt.units(parameters), torch.zeros(args.workers, len(STATS)).share_memory_(),
        torch.zeros(args.workers, blocks, config.experts).share_memory_(),
        torch.full((blocks, config.experts), 1 / config.experts).share_memory_(),
        torch.full((blocks,), 0.003).share_memory_(), torch.zeros(5, dtype=torch.float64).share_memory_())
    if args.resume:
        state = torch.load(args.out / "checkpoint.pt", weights_only=True)
        args.first_step, args.first_tokens, args.started = state["step"], state["tokens"], state["started"]
        for name, parameter in parameters.items():
            parameter.copy_(state["model"][name.replace(".", "/")])
        for unit in shared.units:
            for mine, saved in zip(unit.state, state["optimizer"][unit.name]):
                mine.copy_(saved)
        shared.usage.copy_(state["usage"])
        shared.balance.copy_(state["balance"])
    context = mp.get_context("spawn")
    counter, barrier = context.Value("i", 0), context.Barrier(args.workers)
    workers = [context.Process(target=work, args=(rank, args.workers, args, config, shared, counter, barrier))
               for rank in range(args.workers)]
    for worker in workers:
        worker.start()
    if args.pid_file:
        args.pid_file.write_text(" ".join(str(w.pid) for w in workers) + "\n")
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
