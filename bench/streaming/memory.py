#!/usr/bin/env python3
"""Memory planned against memory measured, for several settings of several models.

    memory.py MODEL.gguf... --penstock build/release/penstock [--json OUT]

Every setting is one process with a random prompt of --prompt tokens and --decode tokens after it. Planned is the peak
of the plan without its slack, measured the largest footprint (anonymous memory and swap, locked file pages).
"""
from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

# Share of the experts that have a slot, and other flags.
SETTINGS: list[tuple[float, list[str]]] = [
    (1.0, []),
    (0.5, []),
    (0.25, []),
    (0.25, ["--kv", "f32"]),
    (0.25, ["--lock", "off"]),
    (0.25, ["--prompt-chunk", "64"]),
    (0.25, ["--prompt-chunk", "256"]),
    (0.25, ["--precision", "exact"]),
    (0.25, ["--io", "pread"]),
    (0.12, ["--read-ahead", "off"]),
]


def run(args: argparse.Namespace, model: str, ids: Path, share: float, flags: list[str]) -> dict[str, Any]:
    facts = json.loads(subprocess.run([args.penstock, "plan", model, "--json"], capture_output=True, text=True).stdout)
    experts = facts["memory"]["experts"]
    slots = max(1, round(share * experts))
    command = [args.penstock, "run", "-m", model, "--ids", ids, "-n", args.decode, "--ignore-eos", "--temp", "0",
               "--arena-slots", slots, "--ctx", args.prompt + args.decode, "--pack", "none", "--profile", "none", "--json", "-q",
               *flags]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    plan = json.loads(done.stdout)["plan"]
    planned = max(plan["peak_decode"], plan["peak_prefill"]) - plan["terms"]["slack"]
    measured = plan["measured"]["peak_footprint"]
    scratch = plan["measured"]["prompt_scratch"]
    return {"model": Path(model).name, "slots": slots, "flags": flags, "prompt_chunk": plan["prompt_chunk"],
            "planned": planned, "measured": measured, "difference_percent": 100 * (measured - planned) / planned,
            "prompt_scratch": scratch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--decode", type=int, default=16)
    parser.add_argument("--most-id", type=int, default=3000, help="largest token id of the random prompt")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids"
        draw = random.Random(5)
        ids.write_text(" ".join(str(draw.randint(300, args.most_id)) for _ in range(args.prompt)))
        for model in args.models:
            for share, flags in SETTINGS:
                row = run(args, model, ids, share, flags)
                rows.append(row)
                print(f"{row['model']:40} {share:5.2f} {' '.join(flags):28} planned {row['planned'] / 2**20:9.1f} MiB, "
                      f"measured {row['measured'] / 2**20:9.1f} MiB, {row['difference_percent']:+.2f} %", flush=True)
    worst = max(rows, key=lambda row: abs(row["difference_percent"]))
    print(f"worst of {len(rows)}: {worst['difference_percent']:+.2f} %")
    if args.json:
        args.json.write_text(json.dumps({"prompt": args.prompt, "decode": args.decode, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
