#!/usr/bin/env python3
"""Runs of `penstock` that differ in some flags, in turn, on one model.

    arms.py MODEL.gguf --penstock build/release/penstock --arm "arena=" --arm "mmap=--io mmap" [--warm] [--json OUT]

Every run is a process of its own with the same random prompt and greedy decoding. In every round all arms run, in
reversed order in every second one. Before each the page cache is dropped, or with --warm the file is read into it.
Prints medians and ranges; the raw figures go to --json.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any


def prepare(model: str, warm: bool) -> None:
    os.sync()
    if not warm:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
        return
    with open(model, "rb", buffering=0) as file:
        buffer = bytearray(16 << 20)
        while file.readinto(buffer):
            pass


def measure(args: argparse.Namespace, ids: Path, flags: str) -> dict[str, Any]:
    prepare(args.model, args.warm)
    command = [args.penstock, "run", "-m", args.model, "--ids", ids, "-n", args.decode, "--ignore-eos", "--temp", 0,
               "--pack", "none", "--profile", "none", "--json", "-q", *flags.split()]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    run = json.loads(done.stdout)
    timings, counters = run["timings"], run["counters"]
    tokens = max(1, counters["tokens"])
    uses = counters["uses_steady"]
    return {
        "load_s": sum(timings["load"].values()),
        "prompt_tokens_per_s": timings["prefill"]["tokens_per_second"],
        "first_token_ms": 1e3 * timings["first_token"]["seconds"],
        "decode_tokens_per_s": timings["decode"]["tokens_per_second"],
        "arena_hit_percent": 100 * uses["arena"] / uses["total"] if uses["total"] else None,
        "read_mb_per_token": (counters["reads_demand"]["bytes"] + counters["reads_spec"]["bytes"]) * 1e-6 / tokens,
        "stall_ms_per_token": counters["stall_ns"] * 1e-6 / tokens,
        "prompt_read_mb": counters["reads_prompt"]["bytes"] * 1e-6,
        "slots": run["plan"]["slots"], "experts": run["plan"]["experts"],
        "peak_footprint": run["plan"]["measured"]["peak_footprint"],
        "prompt_chunk": run["plan"]["prompt_chunk"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--arm", action="append", required=True, help="NAME=FLAGS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--decode", type=int, default=65)
    parser.add_argument("--most-id", type=int, default=3000)
    parser.add_argument("--warm", action="store_true", help="the file is in the page cache before each run")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    arms = dict(arm.split("=", 1) for arm in args.arm)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids"
        draw = random.Random(5)
        ids.write_text(" ".join(str(draw.randint(300, args.most_id)) for _ in range(args.prompt)))
        for number in range(args.rounds):
            for name in list(arms) if number % 2 == 0 else reversed(arms):
                results[name].append(measure(args, ids, arms[name]))
    for name, runs in results.items():
        def text(field: str, runs: list[dict[str, Any]] = runs) -> str:
            values = [run[field] for run in runs if run[field] is not None]
            if not values:
                return "-"
            return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        print(f"{name:14} load {text('load_s')} s, prompt {text('prompt_tokens_per_s')} t/s, decode "
              f"{text('decode_tokens_per_s')} t/s, hits {text('arena_hit_percent')} %, {text('read_mb_per_token')} MB and "
              f"{text('stall_ms_per_token')} ms of waiting per token", flush=True)
    if args.json:
        record = {"model": Path(args.model).name, "prompt": args.prompt, "decode": args.decode, "warm": args.warm,
                  "read_ahead_kb": [p.read_text().strip() for p in sorted(Path("/sys/block").glob("*/queue/read_ahead_kb"))],
                  "arms": arms, "runs": results}
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
