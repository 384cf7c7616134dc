#!/usr/bin/env python3
"""Decode speed that `penstock plan` predicts against what `penstock run` then measures.

    predicted.py MODEL.gguf... --penstock build/release/penstock [--json OUT]

Per model and share of the experts --runs runs without read-ahead, which the prediction does not know, each after a
calibration of its own (`plan --calibrate-machine`), since a shared machine drifts. Each calibration predicts at the hit
rate that the runs printed; the medians of both are compared. Needs an idle machine. The page cache is dropped before
each run where that is allowed.
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
        ids = Path(folder) / "ids"
        draw = random.Random(5)
        ids.write_text(" ".join(str(draw.randint(300, args.most_id)) for _ in range(args.prompt)))
        for model in args.models:
            common = ["--pack", "none", "--profile", "none", "--read-ahead", "off"]
            for share in args.shares:
                speeds, hits, machines = [], [], []
                for i in range(args.runs):
                    machines.append(Path(folder) / f"machine-{i}.json")
                    facts = call(args.penstock, "plan", model, *common, "--calibrate-machine", "--machine-file", machines[i],
                                 "--json")
                    experts = facts["memory"]["experts"]
                    slots = max(facts["memory"]["hard_floor"], round(share * experts))
                    drop_caches()
                    run = call(args.penstock, "run", "-m", model, *common, "--ids", ids, "-n", args.decode, "--ignore-eos",
                               "--temp", 0, "--arena-slots", slots, "--json", "-q")
                    uses = run["counters"]["uses_steady"]
                    hits.append(100 * uses["arena"] / uses["total"])
                    speeds.append(run["timings"]["decode"]["tokens_per_second"])
                hit = statistics.median(hits)
                predictions, figures = [], []
                for machine in machines:
                    plan = call(args.penstock, "plan", model, *common, "--arena-slots", slots, "--machine-file", machine,
                                "--hit-rate", f"{hit:.3f}", "--json")
                    figures.append(plan["speed"]["figures"])
                    predictions.append(next(row for row in plan["speed"]["decode"] if row["source"] == "--hit-rate"))
                    machine.unlink()
                predicted = statistics.median(row["tokens_per_s"] for row in predictions)
                measured = statistics.median(speeds)
                error = 100 * (predicted - measured) / measured
                rows.append({"model": Path(model).name, "slots": slots, "experts": experts, "hit_percent": hit,
                             "measured": speeds, "predictions": predictions, "measured_median": measured,
                             "predicted_median": predicted, "error_percent": error, "figures": figures})
                print(f"{Path(model).name:36} {slots:5} slots, hits {hit:5.1f} %: predicted {predicted:6.2f}, "
                      f"measured {measured:6.2f} ({min(speeds):.2f} to {max(speeds):.2f}), {error:+.1f} %", flush=True)
    errors = [abs(row["error_percent"]) for row in rows]
    print(f"{len(rows)} settings: median error {statistics.median(errors):.1f} %, worst {max(errors):.1f} %")
    if args.json:
        version = subprocess.run([args.penstock, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
        args.json.write_text(json.dumps({"program": version, "prompt": args.prompt, "decode": args.decode, "runs": rows}, indent=1)
                             + "\n")


if __name__ == "__main__":
    main()
