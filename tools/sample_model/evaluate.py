"""Measures an exported sample model (the dequantised GGUF, f32 arithmetic) and writes the numbers as JSON.

* bits per byte of each held-out text (windows of 512 tokens, each from an empty state);
* task accuracy: an answer counts as solved when the model's most likely token is right at every position of the expected
  answer and its end of turn, which is what greedy decoding needs to produce it exactly;
* routing: per layer, the share of expert uses taken by the most used quarter of the experts, over all of that data;
* MTP acceptance: how often the MTP block's most likely token is the trunk's most likely token one position later.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import pathlib

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import chat
import corpus
import model as m

WINDOW = 512


def load(trunk: pathlib.Path, side: pathlib.Path | None) -> m.Qwen4Exp:
    net = m.Qwen4Exp(m.Config(), mtp=side is not None)
    tensors = {}
    for path in filter(None, (trunk, side)):
        for tensor in gguf.GGUFReader(path).tensors:
            tensors[tensor.name] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    net.from_gguf(tensors)
    return net


class Meter:
    """Runs sequences and gathers routing and acceptance counts."""

    def __init__(self, net: m.Qwen4Exp) -> None:
        self.net = net
        self.uses = {group: torch.zeros(net.config.layers, net.config.experts) for group in (*corpus.DOMAINS, "tasks")}
        self.accepted: collections.Counter[str] = collections.Counter()
        self.drafted: collections.Counter[str] = collections.Counter()

    def run(self, group: str, tokens: list[int], first: int = 0) -> torch.Tensor:
        """Logits [T, vocab]; drafts count for predictions of positions >= ``first``."""
        ids = torch.tensor([tokens])
        aux = m.Aux()
        wide = self.net.trunk(ids, torch.from_numpy(m.ple_rows(self.net.config, ids.numpy())), True, aux)
        logits = self.net.head(wide)[0]
        for layer, chosen in enumerate(aux.router_ids):
            self.uses[group][layer] += torch.bincount(chosen.flatten(), minlength=self.net.config.experts)
        if self.net.blocks > self.net.config.layers and len(tokens) > 2:
            draft = self.net.mtp_head(self.net.mtp(ids[:, 1:], wide[:, :-1]))[0].argmax(-1)
            agree = (draft == logits[1:].argmax(-1))[max(0, first - 2):]
            self.accepted[group] += int(agree.sum())
            self.drafted[group] += len(agree)
        return logits


def bits_per_byte(meter: Meter, domain: str, text: str, tokenizer: Tokenizer) -> float:
    ids = tokenizer.encode(text).ids
    nll = 0.0
    for start in range(0, len(ids) - 1, WINDOW):
        part = ids[start:start + WINDOW + 1]
        logits = meter.run(domain, part[:-1])
        nll += float(F.cross_entropy(logits, torch.tensor(part[1:]), reduction="sum"))
    size = len(tokenizer.decode(ids[1:], skip_special_tokens=False).encode())
    return nll / math.log(2) / size


def answer_message(task: dict) -> dict:
    if task["check"] == "tool_call":
        return {"role": "assistant", "content": "", "tool_calls": [{"function": task["expected"]}]}
    return {"role": "assistant", "content": task["expected"]}


def solves(meter: Meter, task: dict, tokenizer: Tokenizer) -> bool:
    prompt = chat.render(task["messages"], task.get("tools"), generation=True)
    whole = chat.render([*task["messages"], answer_message(task)], task.get("tools"))
    first = len(tokenizer.encode(prompt).ids)
    ids = tokenizer.encode(prompt).ids + tokenizer.encode(whole[len(prompt):-1]).ids
    logits = meter.run("tasks", ids[:-1], first)
    return bool((logits[first - 1:].argmax(-1) == torch.tensor(ids[first:])).all())


def top_quarter(uses: torch.Tensor) -> list[float]:
    ordered = uses.sort(dim=-1, descending=True).values
    return [round(float(v), 3) for v in ordered[:, :uses.shape[1] // 4].sum(-1) / uses.sum(-1)]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trunk", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("eval_dir", type=pathlib.Path)
    parser.add_argument("--mtp", type=pathlib.Path)
    parser.add_argument("--limit", type=int, default=1_000_000, help="bytes of text per domain and number of tasks")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    meter = Meter(load(args.trunk, args.mtp))
    tasks = [json.loads(line) for line in (args.eval_dir / "tasks.jsonl").open()][:args.limit]
    by_kind: dict[str, list[bool]] = collections.defaultdict(list)
    for task in tasks:
        by_kind[task["kind"]].append(solves(meter, task, tokenizer))
    result = {
        "tasks": len(tasks),
        "task_accuracy": round(float(np.mean([ok for kind in by_kind.values() for ok in kind])), 4),
        "task_accuracy_by_kind": {kind: f"{sum(oks)}/{len(oks)}" for kind, oks in sorted(by_kind.items())},
        "bits_per_byte": {domain: round(bits_per_byte(meter, domain, (args.eval_dir / f"{domain}.txt").read_text()
                                                      [:args.limit], tokenizer), 4) for domain in corpus.DOMAINS},
        "top_quarter_share_per_layer": top_quarter(sum(meter.uses.values())),
        "top_quarter_share_per_layer_and_group": {group: top_quarter(uses) for group, uses in meter.uses.items()},
    }
    if args.mtp:
        result["mtp_acceptance"] = {group: round(meter.accepted[group] / count, 4)
                                    for group, count in meter.drafted.items()}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
