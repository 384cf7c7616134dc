#!/usr/bin/env python3
"""Speed of the encoders beside ggml's: weights per second of one thread, by processor time.

    bench/surgery/encode_speed.py --penstock build/release/penstock --bench build/release/bench-kernels \\
        --ggml .../libggml-base.so --ggml-version "llama.cpp b11434" [type ...] > bench/results/encode-speed.json

Rounds alternate between ours (`bench-kernels`, filter encode/TYPE/...) and ggml_quantize_chunk of the
library given, on the same kind of rows: 64 of 2,560 normal weights, plain and with the importance
0.5 + column mod 7. The ratio is taken within each round; what is written are all rounds and the medians.
For a quiet machine: a busy one disturbs the rates more than the ratios.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ggml

ROWS, COLUMNS = 64, 2560
# ggml's numbers of the types that both encode.
TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "Q2_0": 42}


class Ggml:
    def __init__(self, path: pathlib.Path) -> None:
        self.lib = ggml.library(path)
        draw = random.Random(1)
        self.values = array.array("f", (draw.gauss(0, 0.02) for _ in range(ROWS * COLUMNS)))
        self.importance = array.array("f", (0.5 + i % 7 for i in range(COLUMNS)))

    def rate(self, kind: int, weighted: bool, seconds: float) -> float:
        size = ROWS * self.lib.ggml_row_size(kind, COLUMNS)
        out = (ctypes.c_uint8 * size)()
        importance = self.importance.buffer_info()[0] if weighted else None
        encode = lambda: self.lib.ggml_quantize_chunk(kind, self.values.buffer_info()[0], out, 0, ROWS, COLUMNS, importance)
        if encode() != size:
            raise SystemExit(f"ggml_quantize_chunk wrote another size than {size} for type {kind}")
        done, began = 0, time.process_time()
        while time.process_time() - began < seconds:
            encode()
            done += ROWS * COLUMNS
        return done / (time.process_time() - began)


def ours(bench: pathlib.Path, name: str, seconds: float) -> float:
    """google-benchmark's rates are by processor time."""
    done = subprocess.run([bench, f"--benchmark_filter=^encode/{name}$", "--benchmark_format=json",
                           f"--benchmark_min_time={seconds}"], check=True, capture_output=True, text=True)
    # Its own limits of the machine come first, as text.
    found = json.loads(done.stdout[done.stdout.index("{"):])["benchmarks"]
    if len(found) != 1:
        raise SystemExit(f"{bench} has no benchmark encode/{name}")
    return found[0]["weights"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="default: " + " ".join(TYPES))
    parser.add_argument("--ggml", type=pathlib.Path, required=True, help="libggml-base.so of llama.cpp")
    parser.add_argument("--ggml-version", required=True, help="as it is to be recorded, llama.cpp b11434")
    parser.add_argument("--bench", type=pathlib.Path, required=True)
    parser.add_argument("--penstock", type=pathlib.Path, required=True, help="of the same build: its version is recorded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side, type and round")
    args = parser.parse_args()
    unknown = [name for name in args.types if name not in TYPES]
    if unknown:
        parser.error(f"types are {' '.join(TYPES)}, not {' '.join(unknown)}")
    ggml = Ggml(args.ggml)
    names = [(kind, weighted) for kind in args.types or TYPES for weighted in (False, True)]
    rounds: dict[tuple[str, bool], list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for kind, weighted in names:
            label = f"{kind}/{'importance' if weighted else 'plain'}"
            pair = ours(args.bench, label, args.seconds), ggml.rate(TYPES[kind], weighted, args.seconds)
            rounds[kind, weighted].append(pair)
            print(f"{label:20} ours {pair[0] * 1e-6:8.1f} M/s  ggml {pair[1] * 1e-6:8.1f} M/s", file=sys.stderr)
    said = subprocess.run([args.penstock, "--version"], capture_output=True, text=True, check=True).stdout
    rows = [{"type": kind, "importance": weighted,
             "ours_weights_per_second": statistics.median(a for a, _ in pairs),
             "ggml_weights_per_second": statistics.median(b for _, b in pairs),
             "ggml_over_ours": statistics.median(b / a for a, b in pairs),
             "rounds": pairs} for (kind, weighted), pairs in rounds.items()]
    print(json.dumps({"what": "encoders of one thread on 64 rows of 2,560 normal weights, by processor time",
                      "penstock": said.splitlines()[0], "ggml": args.ggml_version, "seconds": args.seconds,
                      "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
