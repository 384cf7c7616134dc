#!/usr/bin/env python3
"""Quality against speed on the sample model, in one memory: what cache-aware routing, two bits and half of the experts cost,
and what they gain.

    bench/quality/against_speed.py --work DIR [--penstock build/release/penstock]

DIR is one that bench/quality/run.py has used for its question `chat`: the texts and tasks are taken. Every configuration is judged (`eval kld`,
`eval tasks`, with records; cache-aware routing step by step with its own cache) and then timed in a campaign. All of it
goes to bench/results/campaigns/quality-against-speed, from which `penstock report` makes tables and plots.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import subprocess

from run import DOMAINS, MODEL, ROOT, files

NAME = "quality-against-speed"
TEXTS = files("short", (*DOMAINS, "chat"))
CALIBRATION = files("calibration", (*DOMAINS, "chat"))
# A quarter of the experts as shipped; those of two bits take 9/34 as much each, so that nearly all of them fit.
SLOTS, SLOTS_Q2 = 128, 480
ARMS = {
    "as shipped": (MODEL, ["--arena-slots", str(SLOTS)]),
    "lambda 0.05": (MODEL, ["--arena-slots", str(SLOTS), "--moce", "prior", "--moce-lambda", "0.05"]),
    "lambda 0.15": (MODEL, ["--arena-slots", str(SLOTS), "--moce", "prior", "--moce-lambda", "0.15"]),
    "bonus 0.85": (MODEL, ["--arena-slots", str(SLOTS), "--moce", "bonus", "--moce-bonus", "0.85"]),
    "half of the experts": ("half.gguf", ["--arena-slots", str(SLOTS)]),
    "Q2_0": ("q2.gguf", ["--arena-slots", str(SLOTS_Q2)]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--penstock", type=pathlib.Path, default=ROOT / "build/release/penstock")
    args = parser.parse_args()
    penstock = args.penstock.resolve()
    records = args.work / NAME
    shutil.rmtree(records, ignore_errors=True)

    def call(*words: str) -> None:
        print("penstock", *words, flush=True)
        subprocess.run(["penstock", "-q", *words], executable=penstock, cwd=args.work, check=True, stdout=subprocess.DEVNULL)

    call("calibrate", MODEL, "--text", *CALIBRATION, "--window", "256", "-o", "speed.stats")
    call("prune", MODEL, "--stats", "speed.stats", "--keep", "0.5", "--method", "reap-sum", "-o", "half.gguf", "--force")
    call("requantise", MODEL, "--experts", "Q2_0", "-o", "q2.gguf", "--force")
    call("eval", "perplexity", MODEL, "--text", *TEXTS, "--window", "256", "--base-out", "speed.base", "--no-record")
    toml = f"""name = "{NAME}"
description = "Quality against speed: the sample model in one memory (an arena of {SLOTS} experts as shipped), judged against itself."
notes = "A model of 32 million parameters: it ranks methods and predicts nothing about large ones. At its speed the disk hardly counts, so bytes per token say more than tokens per second."
model = "{MODEL}"
repeats = 3
tokens = 256

[[prompt]]
name = "manual"
file = "prompt.txt"
"""
    for name, (model, options) in ARMS.items():
        judged = [*options, "--record", NAME]
        if "--moce" in options:
            judged += ["--moce-residency", "epoch"]
        steps = ["--step-mode"] if "--moce" in options else []
        call("eval", "kld", model, "--base", "speed.base", "--text", *TEXTS, "--window", "256", *steps, *judged)
        call("eval", "tasks", model, "--tasks", "tasks.jsonl", "--max-tokens", "64", *judged)
        words = ", ".join(f'"{word}"' for word in options)
        toml += f'\n[[arm]]\nname = "{name}"\nmodel = "{model}"\noptions = [{words}]\n'
    (args.work / f"{NAME}.toml").write_text(toml)
    call("bench", f"{NAME}.toml", "-o", NAME)
    out = ROOT / "bench/results/campaigns" / NAME
    shutil.rmtree(out, ignore_errors=True)
    # What was printed names folders of this machine; everything that was measured stays.
    call("record", "trim", NAME, "--drop", "tokens,output", "--files", "-o", str(out))


if __name__ == "__main__":
    main()
