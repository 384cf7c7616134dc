#!/usr/bin/env python3
"""Quality against speed on the sample model, in one memory: what cache-aware routing, two bits and half of the experts
cost, and what they gain.

    bench/quality/against_speed.py --work DIR [--penstock build/release/penstock]

DIR is one that bench/quality/run.py has used for its question `chat`: its texts and tasks are taken. Every
configuration is judged (`eval kld`, `eval tasks`, with records; cache-aware routing token by token with its own cache)
and then timed in a campaign. All of it goes to bench/results/campaigns/quality-against-speed, from which
`penstock report` makes tables and plots.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess

from run import DOMAINS, MODEL, ROOT, files

NAME = "quality-against-speed"
TEXTS = files("short", (*DOMAINS, "chat"))
CALIBRATION = files("calibration", (*DOMAINS, "chat"))
TOKENS = 192
# A quarter of the experts as shipped; those of two bits take 9/34 as much each.
SLOTS, SLOTS_Q2 = 128, 480
# Greedy text of so small a model falls into loops, whose experts are soon all in memory: the prompt is the first piece of
# test text after which no configuration does.
OFFSETS, PROMPT_CHARACTERS = range(0, 12000, 1500), 300


def arena(slots: int) -> list[str]:
    return ["--arena-slots", str(slots)]


def arms() -> dict[str, tuple[str, list[str]]]:
    out = {"exact": (MODEL, arena(SLOTS))}
    for bonus in ("0.25", "0.5", "0.85", "1.5"):
        out[f"bonus {bonus}"] = (MODEL, [*arena(SLOTS), "--moce", "bonus", "--moce-bonus", bonus])
    for weight in ("0.05", "0.09", "0.15", "0.3"):
        out[f"lambda {weight}"] = (MODEL, [*arena(SLOTS), "--moce", "prior", "--moce-lambda", weight])
    out["half of the experts"] = ("half.gguf", arena(SLOTS))
    out["Q2_0"] = ("q2.gguf", arena(SLOTS_Q2))
    return out


def loops(tokens: list[int]) -> bool:
    """A period of at most 8 in the last 32, as `eval tasks --continuations` counts."""
    return any(all(a == b for a, b in zip(tokens[-32:], tokens[-32 - period:])) for period in range(1, 9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--penstock", type=pathlib.Path, default=ROOT / "build/release/penstock")
    args = parser.parse_args()
    penstock = args.penstock.resolve()
    shutil.rmtree(args.work / NAME, ignore_errors=True)
    for name in ("speed.stats", "speed.base"):
        (args.work / name).unlink(missing_ok=True)

    def call(*words: str) -> str:
        print("penstock", *words, flush=True)
        done = subprocess.run(["penstock", "-q", *words], executable=penstock, cwd=args.work, check=True,
                              stdout=subprocess.PIPE, text=True)
        return done.stdout

    call("calibrate", MODEL, "--text", *CALIBRATION, "--window", "256", "-o", "speed.stats")
    call("prune", MODEL, "--stats", "speed.stats", "--keep", "0.5", "--method", "reap-sum", "-o", "half.gguf", "--force")
    call("requantise", MODEL, "--experts", "Q2_0", "-o", "q2.gguf", "--force")
    call("eval", "perplexity", MODEL, "--text", *TEXTS, "--window", "256", "--base-out", "speed.base", "--no-record")

    def falls_into_a_loop(prompt: str) -> bool:
        return any(loops(json.loads(call("run", "-m", model, "-p", prompt, "-n", str(TOKENS), "--temp", "0", "--ignore-eos",
                                         "--json", *options))["tokens"]) for model, options in arms().values())

    texts = [(args.work / f"test-{domain}.txt").read_text() for domain in DOMAINS]
    pieces = (text[at:at + PROMPT_CHARACTERS] for at in OFFSETS for text in texts)
    prompt = next((piece for piece in pieces if not falls_into_a_loop(piece)), None)
    if prompt is None:
        raise SystemExit("after every piece of text some configuration falls into a loop")
    toml = f"""name = "{NAME}"
description = "Quality against speed: the sample model in one memory (an arena of {SLOTS} of 512 experts as shipped)."
notes = "A model of 32 million parameters ranks methods and predicts nothing about large ones. It is judged token by token where routing is cache-aware; speeds are of one greedy text for each arm, after the first piece of text that led none into a loop."
model = "{MODEL}"
repeats = 5
tokens = {TOKENS}

[[prompt]]
name = "300 characters"
text = {json.dumps(prompt)}
"""
    for name, (model, options) in arms().items():
        judged = [*options, "--record", NAME]
        steps = []
        if "--moce" in options:
            judged += ["--moce-residency", "epoch"]
            steps = ["--step-mode"]
        call("eval", "kld", model, "--base", "speed.base", "--text", *TEXTS, "--window", "256", *steps, *judged)
        call("eval", "tasks", model, "--tasks", "tasks.jsonl", "--max-tokens", "64", *judged)
        toml += f'\n[[arm]]\nname = "{name}"\nmodel = "{model}"\noptions = {json.dumps(options)}\n'
    (args.work / f"{NAME}.toml").write_text(toml)
    call("bench", f"{NAME}.toml", "-o", NAME)
    out = ROOT / "bench/results/campaigns" / NAME
    shutil.rmtree(out, ignore_errors=True)
    # What was printed names folders of this machine; everything that was measured stays.
    call("record", "trim", NAME, "--drop", "tokens,output", "--files", "-o", str(out))


if __name__ == "__main__":
    main()
