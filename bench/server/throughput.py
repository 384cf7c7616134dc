#!/usr/bin/env python3
"""What HTTP streaming costs in decode: tokens/s through `penstock serve` against `penstock run`.

    throughput.py [-m MODEL.gguf] [--penstock build/release/penstock] [--threads 1 2] [--blocks 12] [--out FILE.json]

Both get the same prompt, seed and length and must say the same text. Both are timed from outside, from the first piece of
the answer that arrives to the last: a pipe there, a bare socket here, read at most every 10 ms and not parsed before the end.
(The speeds that Penstock says itself leave out sampling and text; of the server it is recorded too.) A block is run, serve,
serve, run, two pairs, so that a drift of the machine's speed falls out; each has a server of its own, because where memory
lies makes a difference. A block waits for a quiet machine (--patience). Work of other programs is recorded; blocks in which it took more than --quiet of a core count as
disturbed and are left out if five others are there. The wish is a loss of at most 2 %.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from serving import Served, archive, arguments, busy_seconds, serve

PROMPT, SEED = "In the beginning", 1
WISH = 0.98
ENOUGH = 5  # blocks
PACE = 0.01  # seconds between two reads


Read = Callable[[], bytes]  # b"" at the end


class Arrival:
    """When an answer came, and what."""

    def __init__(self, read: Read) -> None:
        parts: list[bytes] = []
        self.first = self.last = 0.0
        while part := read():
            now = time.perf_counter()
            parts.append(part)
            if self.first or b"data: " in part or not part.startswith(b"HTTP/"):
                self.first, self.last = self.first or now, now
            time.sleep(PACE)
        self.text = b"".join(parts).decode()

    def speed(self, tokens: int) -> float:
        return (tokens - 1) / (self.last - self.first)


def own_seconds(served: Served) -> float:
    """CPU time of this program, of its children that have ended, and of the server."""
    uses = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses) + served.cpu_seconds()


def wait_for_quiet(args: argparse.Namespace) -> None:
    """Until a second has passed in which other programs did little, or --patience is over."""
    until = time.monotonic() + args.patience
    while time.monotonic() < until:
        wall, busy = time.perf_counter(), busy_seconds()
        time.sleep(1)
        if (busy_seconds() - busy) / (time.perf_counter() - wall) <= args.quiet:
            return


def run(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    command = [args.penstock, "-q", "run", "-m", args.model, "--threads", threads, "-p", PROMPT, "-n", args.tokens,
               "--seed", SEED, "--temp", 1, "--ignore-eos", "--no-summary"]
    with subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        arrival = Arrival(lambda: os.read(pipe, 65536))
    if process.returncode != 0:
        raise SystemExit(f"run ended with {process.returncode}")
    return {"tokens_per_s": arrival.speed(args.tokens), "text": arrival.text.rstrip("\n")}


def stream(args: argparse.Namespace, served: Served) -> dict[str, Any]:
    body = {"prompt": PROMPT, "seed": SEED, "temperature": 1, "max_tokens": args.tokens, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}}
    with served.send("POST", "/v1/completions", body) as connection:
        arrival = Arrival(lambda: connection.recv(65536))
    events = [json.loads(data) for data in re.findall(r"^data: ({.*})$", arrival.text, re.MULTILINE)]
    tokens = events[-1]["usage"]["completion_tokens"]
    text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
    return {"tokens_per_s": arrival.speed(tokens), "events": len(events), "text": text.rstrip("\n"),
            "engine_tokens_per_s": served.metric('penstock_tokens_per_second{phase="decode"}')}


def block(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    wait_for_quiet(args)
    halves: dict[str, list[dict[str, Any]]] = {"run": [], "serve": []}
    with serve(args, "--threads", str(threads)) as served:
        wall, busy, own = time.perf_counter(), busy_seconds(), own_seconds(served)
        for name in ("run", "serve", "serve", "run"):
            halves[name].append(run(args, threads) if name == "run" else stream(args, served))
        wall = time.perf_counter() - wall
        others = max(0.0, (busy_seconds() - busy - (own_seconds(served) - own)) / wall)
    if len({half.pop("text") for found in halves.values() for half in found}) != 1:
        raise SystemExit("the answers are not the same text")
    seconds = {name: sum(1 / half["tokens_per_s"] for half in found) for name, found in halves.items()}
    row = {**halves, "ratio": seconds["run"] / seconds["serve"], "others": round(others, 3)}
    speeds = {name: " and ".join(f"{half['tokens_per_s']:.0f}" for half in found) for name, found in halves.items()}
    print(f"  run {speeds['run']} tokens/s, serve {speeds['serve']}: ratio {row['ratio']:.3f}; {others:.2f} cores busy with "
          "other work", flush=True)
    return row


def compare(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    print(f"{threads} threads, {args.tokens} tokens", flush=True)
    blocks = [block(args, threads) for _ in range(args.blocks)]
    quiet = [row for row in blocks if row["others"] <= args.quiet]
    taken = quiet if len(quiet) >= ENOUGH else blocks
    ratios = sorted(row["ratio"] for row in taken)
    quarter = len(ratios) // 4
    result = {"threads": threads, "ratio": statistics.median(ratios), "ratio_min": ratios[0], "ratio_max": ratios[-1],
              "ratio_quartiles": [ratios[quarter], ratios[-1 - quarter]], "blocks_taken": len(taken),
              "blocks_undisturbed": len(quiet), "within_2_percent": statistics.median(ratios) >= WISH, "blocks": blocks}
    print(f"  median ratio of {len(taken)} blocks ({len(quiet)} of {len(blocks)} undisturbed): {result['ratio']:.3f}, half of "
          f"them {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}, all {ratios[0]:.3f} to {ratios[-1]:.3f}: "
          f"{'within' if result['within_2_percent'] else 'NOT within'} 2 %", flush=True)
    return result


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--quiet", type=float, default=0.05, help="cores that may be busy with other work")
    parser.add_argument("--patience", type=float, default=10, help="seconds to wait for a quiet machine before a block")
    args = parser.parse_args()
    archive(args, {"tokens": args.tokens, "quiet_below_cores": args.quiet,
                   "threads": [compare(args, threads) for threads in args.threads]})


if __name__ == "__main__":
    main()
