#!/usr/bin/env python3
"""One calibration and one evaluation spread over two processes, by `mpirun` and by GNU parallel.

    apt-get install --no-install-recommends openmpi-bin parallel
    bench/quality/shards.py --penstock build/release/penstock > bench/results/shards-sample.json

Both start `penstock ... --shard I/N`; `stats merge` and `eval merge` join the parts, and every file that
comes out is compared byte for byte with what one process wrote. Installs nothing; a starter that is
missing is an error that names its package. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = {"mpirun": "openmpi-bin", "parallel": "parallel"}
SHARDS = 2

# What a process is: I is its number. The scores are of the perplexity, the statistics with importance.
CALIBRATE = ("penstock calibrate {model} --text {text} --window 128 --importance --arena-slots 80 -t 1 "
             "--shard {index}/{shards} -o {out}")
EVALUATE = ("penstock eval perplexity {model} --text {text} --window 128 --arena-slots 80 -t 1 --no-record "
            "--shard {index}/{shards} --scores {out}")


def mpirun(command: str) -> list[str]:
    rank = command.replace("RANK", "$OMPI_COMM_WORLD_RANK")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "-n", str(SHARDS), "sh", "-c", rank]


def parallel(command: str) -> list[str]:
    return ["parallel", "-j", str(SHARDS), command.replace("RANK", "{}"), ":::", *map(str, range(SHARDS))]


STARTERS = {"mpirun": mpirun, "parallel": parallel}


class Runner:
    def __init__(self, work: pathlib.Path, penstock: pathlib.Path) -> None:
        self.work, self.penstock = work, penstock
        self.commands: list[str] = []
        # The commands are printed as they stand, with the program's bare name.
        (work / "bin").mkdir()
        (work / "bin/penstock").symlink_to(penstock)
        self.env = {**os.environ, "PATH": f"{work / 'bin'}:{os.environ['PATH']}"}

    def run(self, command: list[str]) -> str:
        self.commands.append(shlex.join(command))
        done = subprocess.run(command, cwd=self.work, env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def one(self, template: str, out: str) -> None:
        """Without shards."""
        command = template.replace(" --shard {index}/{shards}", "").format(model=MODEL, text=TEXT, out=out)
        self.run(command.split())

    def spread(self, starter: str, template: str, out: str) -> list[str]:
        command = template.format(model=MODEL, text=TEXT, index="RANK", shards=SHARDS, out=f"{out}-RANK")
        self.run(STARTERS[starter](command))
        return [f"{out}-{i}" for i in range(SHARDS)]

    def same(self, a: str, b: str) -> bool:
        return subprocess.run(["cmp", "-s", self.work / a, self.work / b], check=False).returncode == 0


MODEL, TEXT = "sample-qwen4exp-q8_0.gguf", "scripture.txt"


def version(starter: str) -> str:
    first = subprocess.run([starter, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return re.sub(r"\s+", " ", first)


def compare(runner: Runner) -> list[dict[str, object]]:
    runner.one(CALIBRATE, "stats-one")
    runner.run(["penstock", "stats", "merge", "stats-one", "-o", "stats-one-again", "--imatrix-out", "imatrix-one"])
    runner.one(EVALUATE, "scores-one")
    rows: list[dict[str, object]] = []
    for starter in STARTERS:
        parts = runner.spread(starter, CALIBRATE, f"stats-{starter}")
        runner.run(["penstock", "stats", "merge", *parts, "-o", f"stats-{starter}", "--imatrix-out",
                    f"imatrix-{starter}"])
        parts = runner.spread(starter, EVALUATE, f"scores-{starter}")
        text = runner.run(["penstock", "eval", "merge", *parts, "--no-record", "--scores", f"scores-{starter}"])
        for what in ("stats", "imatrix", "scores"):
            name = f"{what}-{starter}"
            rows.append({"starter": starter, "file": what, "shards": SHARDS,
                         "bytes": (runner.work / name).stat().st_size, "identical": runner.same(f"{what}-one", name)})
        rows[-1]["summary"] = text.splitlines()
    return rows


def table(rows: list[dict[str, object]]) -> str:
    lines = [f"{'started by':<12} {'file':<10} {'shards':>6} {'bytes':>10}  merged against one process"]
    for row in rows:
        lines.append(f"{row['starter']:<12} {row['file']:<10} {row['shards']:>6} {row['bytes']:>10}  "
                     f"{'identical' if row['identical'] else 'DIFFERENT'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", type=pathlib.Path, default=ROOT / "build/release/penstock")
    args = parser.parse_args()
    for starter, package in PACKAGES.items():
        if shutil.which(starter) is None:
            raise SystemExit(f"{starter} is not there: apt-get install --no-install-recommends {package}")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / MODEL).symlink_to(ROOT / "models" / MODEL)
        # Half of the text: enough positions for a summary.
        text = (ROOT / "models/eval" / TEXT).read_text()
        (work / TEXT).write_text(text[: len(text) // 2])
        runner = Runner(work, args.penstock.resolve())
        rows = compare(runner)
        said = subprocess.run([args.penstock, "--version"], capture_output=True, text=True, check=True).stdout
    result = {"what": "calibrate and eval perplexity in two shards, merged, compared byte for byte with one process",
              "penstock": said.splitlines()[0], "model": MODEL, "text": TEXT,
              "starters": {starter: version(starter) for starter in STARTERS},
              "commands": [re.sub(re.escape(folder) + "/?", "", command) for command in runner.commands],
              "rows": rows}
    print(table(rows), file=sys.stderr)
    print(json.dumps(result, indent=1))
    sys.exit(0 if all(row["identical"] for row in rows) else 1)


if __name__ == "__main__":
    main()
