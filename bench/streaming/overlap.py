#!/usr/bin/env python3
"""How well reads of experts hide behind compute, on one model: shares of the overlap bound.

    overlap.py MODEL.gguf --penstock build/release/penstock [--peer build/release/bench/peers/penstock-peer]

Arms, all with the same random prompt and greedy decoding, taken in turn in every round:

    resident      every expert in memory
    quarter       a quarter of them (--fraction)
    alias         compute alone: as many slots, filled once, stand for all experts (--alias-experts)
    alias+reads   the same while `penstock iobench` reads the same file: compute short of memory bandwidth

and `penstock iobench` alone for the bandwidth W. With t_c the time per token of an alias arm and B the bytes read per
token of the quarter arm: overlap bound max(t_c, B/W), serial time t_c + B/W (a token cannot be faster than the
first; one slower than the second must be explained). Every run is a process of its own; the page cache is dropped
before each where that is allowed. --peer prints how often the experts in use recur beside what is published for real
models. Results as JSON with --json.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any


def drop_caches() -> bool:
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError:
        return False
    return True


def spread(values: list[float], scale: float = 1.0) -> str:
    return f"{statistics.median(values) * scale:.2f} ({min(values) * scale:.2f} to {max(values) * scale:.2f})"


class Bench:
    def __init__(self, args: argparse.Namespace, ids: Path) -> None:
        self.args, self.ids = args, ids
        self.dropped = True

    def run(self, *extra: str) -> dict[str, Any]:
        """One `penstock run`; its --json, trimmed."""
        a = self.args
        self.dropped &= drop_caches()
        command = [a.penstock, "run", "-m", a.model, "--ids", self.ids, "-n", a.decode + 1, "--ignore-eos", "--temp", 0,
                   "--threads", a.threads, "--ctx", a.ctx, "--pack", "none", "--json", *extra]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
        whole = json.loads(done.stdout)
        counters, plan = whole["counters"], whole["plan"]
        tokens = max(1, counters["tokens"] - 1)
        decode = whole["timings"]["decode"]
        uses = counters["uses_steady"]
        return {
            "command": [Path(part).name if isinstance(part, Path) else str(part) for part in command[1:]],
            "load": whole["timings"]["load"],
            "prompt_tokens_per_s": whole["timings"]["prefill"]["tokens_per_second"],
            "decode_tokens_per_s": decode["tokens_per_second"],
            "seconds_per_token": decode["seconds"] / max(1, decode["tokens"]),
            "hit_rate": uses["arena"] / max(1, uses["total"]),
            "decode_bytes_per_token": (counters["reads_demand"]["bytes"] + counters["reads_spec"]["bytes"]) / (tokens + 1),
            "stall_s_per_token": counters["stall_ns"] * 1e-9 / (tokens + 1),
            "own_bytes": sum(counters[f"reads_{reason}"]["bytes"] for reason in ("demand", "spec", "fill", "prompt", "ple")),
            "system_bytes": counters["dev_bytes"],
            "dense_bytes": plan["terms"]["dense"],
            "slots": plan["slots"],
            "experts": plan["experts"],
            "planned_peak": max(plan["peak_decode"], plan["peak_prefill"]) - plan["terms"]["slack"],
            "measured_peak": plan["measured"]["peak_footprint"],
            "tokens": whole["tokens"],
        }

    def iobench(self, seconds: float, busy: int = 0) -> list[str]:
        a = self.args
        return [str(part) for part in (a.penstock, "iobench", a.model, "--pack", "none", "--depths", a.depth, "--warm-up",
                                       1, "--seconds", seconds, "--busy", busy, "--json")]

    def bandwidth(self, busy: int) -> dict[str, Any]:
        drop_caches()
        out = subprocess.run(self.iobench(5, busy), capture_output=True, text=True, check=True).stdout
        report = json.loads(out)
        return {**report["rows"][0], "io": report["io"]}

    def alias_with_reads(self, *extra: str) -> dict[str, Any]:
        reader = subprocess.Popen(self.iobench(3600), stdout=subprocess.DEVNULL)
        try:
            return self.run(*extra)
        finally:
            reader.terminate()
            reader.wait()


def curve(args: argparse.Namespace, memory: str) -> str:
    """Reuse of experts in decode, from penstock-peer."""
    command = [args.peer, args.model, "--threads", str(args.threads), "--ctx", "1024", "--memory", memory]
    done = subprocess.run(command, input=f"reuse {args.reuse_tokens} 5\nquit\n", capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1].removeprefix("ok ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--peer", type=Path, help="the penstock-peer program: prints the reuse of experts")
    parser.add_argument("--fraction", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--decode", type=int, default=48)
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=8, help="experts in flight in iobench")
    parser.add_argument("--reuse-tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    inspected = json.loads(subprocess.run([args.penstock, "inspect", args.model, "--json"], capture_output=True, text=True,
                                          check=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "prompt.ids"
        rng = random.Random(7)
        ids.write_text(" ".join(str(rng.randrange(1000)) for _ in range(args.prompt)))
        bench = Bench(args, ids)
        first = bench.run("--memory", "auto")
        experts = first["experts"]
        quarter = ["--arena-slots", str(int(experts * args.fraction))]
        arms = {
            "resident": lambda: bench.run("--arena-slots", str(experts)),
            "quarter": lambda: bench.run(*quarter),
            "alias": lambda: bench.run(*quarter, "--alias-experts"),
            "alias+reads": lambda: bench.alias_with_reads(*quarter, "--alias-experts"),
        }
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
        widths: dict[str, list[dict[str, Any]]] = {"idle": [], "busy": []}
        for round_ in range(args.rounds):
            widths["idle"].append(bench.bandwidth(0))
            widths["busy"].append(bench.bandwidth(args.threads))
            for name in arms if round_ % 2 == 0 else reversed(arms):
                runs[name].append(arms[name]())
                row = runs[name][-1]
                print(f"  {name:12} decode {row['decode_tokens_per_s']:7.2f} tokens/s  hits {row['hit_rate']:6.1%}  "
                      f"{row['decode_bytes_per_token'] / 1e6:8.1f} MB and {row['stall_s_per_token'] * 1e3:7.1f} ms of "
                      f"waiting per token", flush=True)

    w = statistics.median(row["bytes_per_s"] for row in widths["idle"])
    t = statistics.median(row["seconds_per_token"] for row in runs["quarter"])
    resident = statistics.median(row["seconds_per_token"] for row in runs["resident"])
    read = statistics.median(row["decode_bytes_per_token"] for row in runs["quarter"])
    summary: dict[str, Any] = {"W": w, "B": read, "t": t, "t_resident": resident, "share_of_resident_speed": resident / t}
    print(f"\n{args.model.name}: {experts} experts, {int(experts * args.fraction)} slots; decode, ms per token: resident "
          f"{spread([r['seconds_per_token'] for r in runs['resident']], 1e3)}, quarter "
          f"{spread([r['seconds_per_token'] for r in runs['quarter']], 1e3)}: {resident / t:.1%} of the resident speed")
    print(f"W {w / 1e9:.2f} GB/s (memory busy: {statistics.median(r['bytes_per_s'] for r in widths['busy']) / 1e9:.2f}); B "
          f"{read / 1e6:.1f} MB; t_io {read / w * 1e3:.1f} ms")
    for name, label in (("alias", "t_c without reads"), ("alias+reads", "t_c with reads going on")):
        t_c = statistics.median(row["seconds_per_token"] for row in runs[name])
        bound, serial = max(t_c, read / w), t_c + read / w
        summary[name] = {"t_c": t_c, "overlap_bound": bound, "serial": serial, "share_of_overlap_bound": bound / t}
        print(f"{label}: {t_c * 1e3:.1f} ms; overlap bound {bound * 1e3:.1f} ms, serial {serial * 1e3:.1f} ms, measured "
              f"{t * 1e3:.1f} ms: {bound / t:.1%} of the overlap bound")
    quarter_runs = runs["quarter"]
    same = all(r["tokens"] == runs["resident"][0]["tokens"] for r in quarter_runs + runs["resident"])
    print(f"tokens of the quarter and of the resident runs are {'the same' if same else 'NOT THE SAME'}")
    for name in ("resident", "quarter"):
        row = runs[name][-1]
        ours = row["own_bytes"] + row["dense_bytes"]
        print(f"{name}: planned peak {row['planned_peak'] / 2**30:.3f} GiB, measured {row['measured_peak'] / 2**30:.3f}: "
              f"{row['measured_peak'] / row['planned_peak'] - 1:+.1%}; bytes counted {ours / 1e9:.3f} GB with the dense "
              f"weights, by the system {row['system_bytes'] / 1e9:.3f}: {row['system_bytes'] / ours - 1:+.1%}")
    if args.peer:
        summary["reuse"] = curve(args, f"{first['planned_peak'] // 2**20 + 1024}M")
        print(f"reuse of experts (slots per layer:measured/published hits of an LRU cache): {summary['reuse']}")
    if args.json:
        for rows in runs.values():
            for row in rows:
                row["tokens"] = len(row["tokens"])
        args.json.write_text(json.dumps({
            "model": args.model.name, "file_bytes": args.model.stat().st_size, "architecture": inspected.get("architecture"),
            "caches_dropped": bench.dropped, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "same_tokens": same, "bandwidth": widths, "runs": runs, "summary": summary}, indent=1) + "\n")


if __name__ == "__main__":
    main()
