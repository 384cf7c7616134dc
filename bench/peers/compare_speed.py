#!/usr/bin/env python3
"""Prompt and decode speed of Penstock and llama.cpp on the same GGUF files, everything resident.

    compare_speed.py --penstock penstock-peer --llama llama_peer MODEL.gguf... [--rounds 7]
        [--prompt 512] [--decode 64] [--threads 2] [--json OUT.json] [--markdown OUT.md]

Both programs stay loaded; the one that waits is stopped (SIGSTOP). Runs alternate: A B, B A, A B, ...
A run is a prompt from an empty state and a greedy decode after it. The first two runs of each are
not counted: they fault pages and fill the expert arena. Medians and spread of the others are printed, with
the memory bandwidth that the same threads read before and after, and the bytes that Penstock
read from disk while it was measured (0 means that everything was resident).

llama.cpp runs as it does by default: weights repacked, f16 cache, flash attention where it wants it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "oracle"))
from peer import LlamaPeer  # noqa: E402  (both programs speak the same protocol)


@dataclass
class Side:
    """One program and what it did, in tokens per second."""

    name: str
    program: LlamaPeer
    prompt: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    def stop(self) -> None:
        os.kill(self.program.pid, signal.SIGSTOP)

    def go(self) -> None:
        os.kill(self.program.pid, signal.SIGCONT)

    def run(self, n_prompt: int, n_decode: int, seed: int) -> tuple[float, float]:
        self.go()
        rates = n_prompt / self.program.prompt(n_prompt, seed), n_decode / self.program.decode(n_decode)
        self.stop()
        return rates


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def busy_cores(seconds: float = 1.0) -> float:
    """Cores that other processes keep busy just now, from /proc/stat."""

    def read() -> tuple[int, int]:
        fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(fields[:8]) - fields[3] - fields[4], sum(fields[:8])

    busy, total = read()
    time.sleep(seconds)
    busy2, total2 = read()
    return (busy2 - busy) / max(1, total2 - total) * (os.cpu_count() or 1)


def compare(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    n_ctx = args.prompt + args.decode + 16
    common = ["--threads", str(args.threads), "--batch", "512", "--ctx", str(n_ctx), "--kv", "f16"]
    llama = Side("llama.cpp", LlamaPeer(args.llama, model, *common, "--fa", args.llama_fa))
    llama.stop()
    extra = ["--memory", args.memory] if args.memory else []
    ours = Side("penstock", LlamaPeer(args.penstock, model, *common, *extra))
    try:
        bandwidth = [float(ours.program.ask("bandwidth"))]
        for seed in (2, 3):  # prompts that come again below
            for side in (ours, llama):
                side.run(args.prompt, 8, seed)
        ours.go()
        read_before = int(ours.program.ask("counters").split()[0])
        ours.stop()
        others = busy_cores()
        for round_ in range(args.rounds):
            for side in (ours, llama) if round_ % 2 == 0 else (llama, ours):
                prompt, decode = side.run(args.prompt, args.decode, seed=2 + round_)
                side.prompt.append(prompt)
                side.decode.append(decode)
                print(f"  {side.name:10} prompt {prompt:8.1f}  decode {decode:7.2f} tokens/s", flush=True)
        ours.go()
        read = int(ours.program.ask("counters").split()[0]) - read_before
        bandwidth.append(float(ours.program.ask("bandwidth")))
    finally:
        for side in (ours, llama):
            side.go()
            side.program.close()
    result = {
        "model": model.name,
        "file_bytes": model.stat().st_size,
        "prompt_tokens": args.prompt,
        "decode_tokens": args.decode,
        "threads": args.threads,
        "rounds": args.rounds,
        "penstock": {"prompt": ours.prompt, "decode": ours.decode, "isa": ours.program.system},
        "llama.cpp": {"prompt": llama.prompt, "decode": llama.decode, "system": llama.program.system, "version": args.llama_version},
        "prompt_ratio": statistics.median(ours.prompt) / statistics.median(llama.prompt),
        "decode_ratio": statistics.median(ours.decode) / statistics.median(llama.decode),
        "read_bandwidth_gb_s": bandwidth,
        "expert_bytes_read_while_measured": read,
        "cores_busy_with_other_work": round(others, 2),
        "cpu": cpu_model(),
    }
    print(
        f"{model.name}: prompt {spread(ours.prompt)} against {spread(llama.prompt)}: {result['prompt_ratio']:.2f}x; "
        f"decode {spread(ours.decode)} against {spread(llama.decode)}: {result['decode_ratio']:.2f}x; "
        f"memory {min(bandwidth):.1f} to {max(bandwidth):.1f} GB/s; {read} bytes read; {others:.2f} cores busy before",
        flush=True,
    )
    return result


def markdown(results: list[dict[str, Any]]) -> str:
    lines = ["| model | | prompt, tokens/s | decode, tokens/s |", "|---|---|---|---|"]
    for r in results:
        for name in ("penstock", "llama.cpp"):
            lines.append(f"| {r['model']} | {name} | {spread(r[name]['prompt'])} | {spread(r[name]['decode'])} |")
        lines.append(f"| | ratio of medians | {r['prompt_ratio']:.2f} | {r['decode_ratio']:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--penstock", type=Path, required=True, help="the penstock-peer program")
    parser.add_argument("--llama", type=Path, required=True, help="the llama_peer program")
    parser.add_argument("--llama-version", default="", help="recorded in the results")
    parser.add_argument("--llama-fa", default="auto", choices=["auto", "on", "off"])
    parser.add_argument("--memory", help="memory for Penstock, if what is free should not be taken")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    for model in args.models:
        print(model.name, flush=True)
        results.append(compare(model, args))
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")
    print(markdown(results))
    if args.markdown:
        args.markdown.write_text(markdown(results))


if __name__ == "__main__":
    main()
