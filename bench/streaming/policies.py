#!/usr/bin/env python3
"""Misses per token of the eviction policies, hot caps and half-lives, in a conversation whose turns differ in kind.

    policies.py MODEL.gguf --penstock build/release/penstock --slots 96 128 192 256 [--json OUT]

One process per setting holds the conversation below through `penstock run -i`, with the same seed, without read-ahead
and profile. Law 2 makes the text the same for all of them and the counters exact: there is nothing to repeat.
"""
from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

TURNS = [
    "And the LORD said unto Moses, speak unto the children of Israel, saying",
    "int main(int argc, char **argv) { for (int i = 0; i < n; ++i)",
    "7 + 5 = 12; 3 + 8 = 11; 6 + 6 =",
    "Once upon a time there was a king who had three daughters, and",
    '{"name": "Anna", "age": 31, "city":',
    "And God said, Let there be light: and there was light. And",
]
POLICIES = ["lfu", "lru", "cycle"]


def run(args: argparse.Namespace, slots: int, evict: str, cap: int, half_life: int) -> dict[str, Any]:
    command = [args.penstock, "run", "-m", args.model, "-i", "-n", str(args.decode), "--ignore-eos", "--seed", "1",
               "--temp", "0.7", "--json", "-q", "--read-ahead", "off", "--profile", "none", "--pack", "none",
               "--arena-slots", str(slots), "--evict", evict, "--hot-cap", str(cap), "--half-life", str(half_life)]
    done = subprocess.run([str(part) for part in command], input="\n".join(TURNS) + "\n/exit\n", capture_output=True,
                          text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    counters = json.loads(done.stdout)["counters"]
    steady = counters["uses_steady"]
    return {"slots": slots, "evict": evict, "hot_cap_percent": cap, "half_life": half_life, "tokens": counters["tokens"],
            "uses": steady["total"], "misses": steady["miss_issued"], "evict_hot": counters["evict_hot"],
            "misses_per_token": steady["miss_issued"] / (counters["tokens"] - 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--slots", type=int, nargs="+", required=True)
    parser.add_argument("--caps", type=int, nargs="+", default=[0, 25, 50, 89])
    parser.add_argument("--half-life", type=int, default=8)
    parser.add_argument("--half-lives", type=int, nargs="*", default=[2, 4, 16, 32, 64], help="more, of lfu without hot cap")
    parser.add_argument("--decode", type=int, default=120, help="tokens per turn")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print(f"{'slots':>6} {'evict':>8} " + " ".join(f"hot {cap:>3} %" for cap in args.caps) + "   misses per token")
    for slots in args.slots:
        for evict in POLICIES:
            line = [run(args, slots, evict, cap, args.half_life) for cap in args.caps]
            rows += line
            print(f"{slots:>6} {evict:>8} " + " ".join(f"{row['misses_per_token']:>9.2f}" for row in line), flush=True)
    print(f"{'slots':>6} {'':>8} " + " ".join(f"half {life:>3}" for life in args.half_lives))
    for slots in args.slots:
        line = [run(args, slots, "lfu", 0, life) for life in args.half_lives]
        rows += line
        print(f"{slots:>6} {'lfu':>8} " + " ".join(f"{row['misses_per_token']:>8.2f}" for row in line), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"model": Path(args.model).name, "turns": TURNS, "tokens_per_turn": args.decode,
                                         "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
