#!/usr/bin/env python3
"""The error of the Q2_0 encoder beside that of ggml's, on the same weights.

Relative squared error, sum (x - y)^2 / sum x^2, plain and with every square weighted by importance, of

    gaussian   rows of Gaussian weights, one scale per row; importance log-normal per column
    sample     the routed experts of the sample model, decoded from the Q8_0 that it is published in
    requant    the same weights after a pass through IQ4_NL (by ggml), as in a model that is quantised twice

the latter two with the importance that `penstock calibrate` measures. Ours is written by `penstock
requantise` and read back as F32; ggml's by ggml_quantize_chunk and dequantize_row_q2_0 of the library given.

    bench/quality/encoder_error.py --ggml .../libggml-base.so --penstock build/release/penstock --work /tmp/enc
"""

from __future__ import annotations

import argparse
import ctypes
import json
import pathlib
import re
import subprocess
import sys

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import ggml

MODEL = ROOT / "models/sample-qwen4exp-q8_0.gguf"
TEXT = ROOT / "models/eval/manual.txt"
OUT = ROOT / "bench/results/encoder-error-q2_0.json"
Q2_0, IQ4_NL = 42, 20  # ggml's numbers
Banks = dict[str, np.ndarray]  # name: [expert][row][column]


class Ggml:
    def __init__(self, path: pathlib.Path) -> None:
        self.lib = ggml.library(path)
        self.decode = {Q2_0: self.lib.dequantize_row_q2_0, IQ4_NL: self.lib.dequantize_row_iq4_nl}
        for function in self.decode.values():
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
            function.restype = None

    def there_and_back(self, bank: np.ndarray, kind: int, importance: np.ndarray | None = None) -> np.ndarray:
        out = np.empty_like(bank)
        n_row, n_column = bank.shape[1:]
        for e, matrix in enumerate(bank):
            matrix = np.ascontiguousarray(matrix)
            packed = np.zeros(n_row * self.lib.ggml_row_size(kind, n_column), dtype=np.uint8)
            weights = None if importance is None else np.ascontiguousarray(importance[e])
            self.lib.ggml_quantize_chunk(kind, matrix.ctypes.data, packed.ctypes.data, 0, n_row, n_column,
                                         None if weights is None else weights.ctypes.data)
            self.decode[kind](packed.ctypes.data, out[e].ctypes.data, n_row * n_column)
        return out


def write_banks(path: pathlib.Path, banks: Banks) -> None:
    writer = gguf.GGUFWriter(path, "weights")
    for name, bank in banks.items():
        writer.add_tensor(name, np.ascontiguousarray(bank, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_banks(path: pathlib.Path) -> Banks:
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            for t in gguf.GGUFReader(path).tensors if re.search(r"ffn_(gate|up|down)_exps\.weight$", t.name)}


def write_importance(path: pathlib.Path, importance: Banks) -> None:
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data = [{}]
    writer.add_string("general.type", "imatrix")
    for name, weights in importance.items():
        writer.add_tensor(name + ".in_sum2", weights)
        writer.add_tensor(name + ".counts", np.ones((len(weights), 1), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_importance(path: pathlib.Path, banks: Banks) -> Banks:
    """Mean squares per expert and column; an expert without tokens has the mean of all."""
    tensors = {t.name: np.array(t.data, dtype=np.float64) for t in gguf.GGUFReader(path).tensors}
    out = {}
    for name, bank in banks.items():
        sums = tensors[name + ".in_sum2"].reshape(bank.shape[0], -1)
        counts = tensors[name + ".counts"].reshape(-1, 1)
        mean = sums / np.maximum(counts, 1)
        mean[counts[:, 0] == 0] = sums.sum(axis=0) / counts.sum()
        out[name] = mean.astype(np.float32)
    return out


def error(x: Banks, y: Banks, importance: Banks | None) -> float:
    above = below = 0.0
    for name, bank in x.items():
        weights = 1.0 if importance is None else importance[name][:, None, :].astype(np.float64)
        exact = bank.astype(np.float64)
        above += float((weights * (exact - y[name]) ** 2).sum())
        below += float((weights * exact ** 2).sum())
    return above / below


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.work, self.penstock, self.ggml = args.work, args.penstock, Ggml(args.ggml)

    def run(self, *arguments: object) -> None:
        subprocess.run([str(self.penstock), *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    def ours(self, source: pathlib.Path, imatrix: pathlib.Path | None) -> Banks:
        encoded, decoded = self.work / "encoded.gguf", self.work / "decoded.gguf"
        extra = [] if imatrix is None else ["--imatrix", imatrix, "--require-imatrix"]
        self.run("requantise", source, "-o", encoded, "--force", "--experts", "Q2_0", *extra)
        self.run("requantise", encoded, "-o", decoded, "--force", "--experts", "F32")
        return read_banks(decoded)

    def compare(self, name: str, banks: Banks, imatrix: pathlib.Path) -> list[dict]:
        source = self.work / f"{name}.gguf"
        write_banks(source, banks)
        importance = read_importance(imatrix, banks)
        rows = []
        for weighted in (False, True):
            weights = importance if weighted else None
            theirs = {n: self.ggml.there_and_back(b, Q2_0, weights[n] if weights else None)
                      for n, b in banks.items()}
            mine = self.ours(source, imatrix if weighted else None)
            row = {"arm": name + ("-weighted" if weighted else ""), "importance": weighted, "n": sum(b.size for b in banks.values()),
                   "ours": error(banks, mine, weights), "ggml": error(banks, theirs, weights)}
            row["banks_where_ours_is_larger"] = [
                n for n in banks if error({n: banks[n]}, mine, weights) > error({n: banks[n]}, theirs, weights)]
            rows.append(row)
            print(json.dumps(row), flush=True)
        return rows


def gaussian(work: pathlib.Path) -> tuple[Banks, pathlib.Path]:
    random = np.random.default_rng(1)
    shape = (4, 256, 2560)
    bank = random.standard_normal(shape) * np.exp(0.5 * random.standard_normal((*shape[:2], 1)))
    weights = np.exp(random.standard_normal((shape[0], shape[2]))).astype(np.float32)
    name = "blk.0.ffn_up_exps.weight"
    write_importance(work / "gaussian.imatrix.gguf", {name: weights})
    return {name: (0.02 * bank).astype(np.float32)}, work / "gaussian.imatrix.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", type=pathlib.Path, required=True, help="libggml-base.so")
    parser.add_argument("--ggml-version", default="", help="of which release it is, for the result")
    parser.add_argument("--penstock", type=pathlib.Path, default=ROOT / "build/release/penstock")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--text-bytes", type=int, default=32768, help="of the text that importance is measured on")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(args)
    rows = bench.compare("gaussian", *gaussian(args.work))
    text, imatrix = args.work / "text.txt", args.work / "sample.imatrix.gguf"
    text.write_bytes(TEXT.read_bytes()[: args.text_bytes])
    bench.run("calibrate", MODEL, "--text", text, "--window", 256, "--restart", "-o", args.work / "sample.stats.gguf",
              "--imatrix-out", imatrix)
    sample = read_banks(MODEL)
    rows += bench.compare("sample", sample, imatrix)
    rows += bench.compare("requant", {n: bench.ggml.there_and_back(b, IQ4_NL) for n, b in sample.items()}, imatrix)
    version = subprocess.run([str(args.penstock), "--version"], check=True, capture_output=True, text=True).stdout
    result = {"what": "relative squared error of Q2_0 encoders on the same weights", "type": "Q2_0",
              "penstock": version.splitlines()[0], "ggml": args.ggml_version, "model": MODEL.name,
              "importance_text": TEXT.name, "text_bytes": args.text_bytes, "rows": rows}
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
