#!/usr/bin/env python3
"""Decode speed that `penstock plan` predicts against what `penstock run` then measures.

    predicted.py MODEL.gguf... --penstock build/release/penstock [--json OUT]

Per model and share of the experts: a calibration (`plan --calibrate-machine`, a machine file of its own), --runs runs
without read-ahead, which the prediction does not know, and a prediction at the hit rate that the runs printed. A
shared machine drifts, so a calibration is never older than the runs of one setting. Needs an idle machine. The page
cache is dropped before each run where that is allowed.
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


def drop_caches() -> None:
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError:
        pass


def call(*parts: Any) -> dict[str, Any]:
    done = subprocess.run([str(part) for part in parts], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, parts))}\n{done.stderr}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.5, 0.25, 0.12])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--decode", type=int, default=97)
    parser.add_argument("--most-id", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "machine.json"
        ids = Path(folder) / "ids"
        draw = random.Random(5)
        ids.write_text(" ".join(str(draw.randint(300, args.most_id)) for _ in range(args.prompt)))
        for model in args.models:
            common = ["--pack", "none", "--profile", "none", "--read-ahead", "off"]
            for share in args.shares:
                facts = call(args.penstock, "plan", model, *common, "--calibrate-machine", "--machine-file", machine, "--json")
                experts = facts["memory"]["experts"]
                slots = max(facts["memory"]["hard_floor"], round(share * experts))
                speeds, hits = [], []
                for _ in range(args.runs):
                    drop_caches()
                    run = call(args.penstock, "run", "-m", model, *common, "--ids", ids, "-n", args.decode, "--ignore-eos",
                               "--temp", 0, "--arena-slots", slots, "--json", "-q")
                    uses = run["counters"]["uses_steady"]
                    hits.append(100 * uses["arena"] / uses["total"])
                    speeds.append(run["timings"]["decode"]["tokens_per_second"])
                hit = statistics.median(hits)
                plan = call(args.penstock, "plan", model, *common, "--arena-slots", slots, "--machine-file", machine,
                            "--hit-rate", f"{hit:.3f}", "--json")
                predicted = next(row for row in plan["speed"]["decode"] if row["source"] == "--hit-rate")
                measured = statistics.median(speeds)
                error = 100 * (predicted["tokens_per_s"] - measured) / measured
                rows.append({"model": Path(model).name, "slots": slots, "experts": experts, "hit_percent": hit,
                             "measured": speeds, "predicted": predicted, "error_percent": error,
                             "figures": plan["speed"]["figures"]})
                print(f"{Path(model).name:36} {slots:5} slots, hits {hit:5.1f} %: predicted {predicted['tokens_per_s']:6.2f}, "
                      f"measured {measured:6.2f} ({min(speeds):.2f} to {max(speeds):.2f}), {error:+.1f} %", flush=True)
    errors = [abs(row["error_percent"]) for row in rows]
    print(f"{len(rows)} settings: median error {statistics.median(errors):.1f} %, worst {max(errors):.1f} %")
    if args.json:
        version = subprocess.run([args.penstock, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
        args.json.write_text(json.dumps({"program": version, "prompt": args.prompt, "decode": args.decode, "runs": rows}, indent=1)
                             + "\n")


if __name__ == "__main__":
    main()
