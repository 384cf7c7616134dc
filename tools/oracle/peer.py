"""The two programs compared here, as subprocesses: `llama_peer` (llama.cpp) and `penstock`."""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

import numpy as np


class PeerError(RuntimeError):
    """One of the programs refused a model or a command."""


def read_ids(path: Path) -> list[int]:
    return [int(field) for field in re.split(r"[\s,]+", path.read_text().strip("[] \n"))]


def random_ids(n: int, n_vocab: int, seed: int) -> list[int]:
    """Uniform ids with the repetitions that text has: every so often an earlier run comes again."""
    r = random.Random(seed)
    ids: list[int] = []
    while len(ids) < n:
        if len(ids) > 64 and r.random() < 0.1:
            at = r.randrange(len(ids) - 32)
            ids += ids[at : at + r.randrange(4, 32)]
        else:
            ids.append(r.randrange(n_vocab))
    return ids[:n]


class LlamaPeer:
    """A running `llama_peer` with one model. Use as a context manager."""

    def __init__(self, program: Path, model: Path, *options: str) -> None:
        self._process = subprocess.Popen(
            [str(program), str(model), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        words = self._answer().split(maxsplit=3)
        self.n_vocab = int(words[2])
        self.system = words[3].strip() if len(words) > 3 else ""

    def __enter__(self) -> "LlamaPeer":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.communicate("quit\n")

    def _answer(self) -> str:
        assert self._process.stdout and self._process.stderr
        line = self._process.stdout.readline()
        if not line.startswith("ok"):
            self._process.terminate()
            raise PeerError(f"llama.cpp: {line.strip()} {self._process.stderr.read()[-1500:]}")
        return line[3:]

    def ask(self, command: str) -> str:
        assert self._process.stdin
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def logits(self, ids: list[int], chunk: int) -> np.ndarray:
        """f32 [n, n_vocab], fed from an empty cache `chunk` tokens at a time."""
        with tempfile.TemporaryDirectory() as folder:
            ids_file, out = Path(folder) / "ids", Path(folder) / "logits"
            ids_file.write_text(" ".join(map(str, ids)))
            self.ask(f"logits {ids_file} {out} {chunk}")
            return np.fromfile(out, dtype=np.float32).reshape(len(ids), self.n_vocab)

    def prompt(self, n: int, seed: int = 1) -> float:
        """Seconds to process n tokens from an empty cache."""
        return float(self.ask(f"prompt {n} {seed}"))

    def decode(self, n: int) -> float:
        """Seconds to produce n greedy tokens after what is cached."""
        return float(self.ask(f"decode {n}"))


def penstock_logits(program: Path, model: Path, ids: list[int], precision: str, *options: str) -> np.ndarray:
    """f32 [n, n_vocab] of `penstock logits`."""
    with tempfile.TemporaryDirectory() as folder:
        ids_file, out = Path(folder) / "ids", Path(folder) / "logits"
        ids_file.write_text(" ".join(map(str, ids)))
        command = [str(program), "logits", str(model), "--ids", str(ids_file), "--all", "--out", str(out), "--precision", precision, "--kv", "f32", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-1500:]}")
        values = np.fromfile(out, dtype=np.float32)
        if values.size % len(ids):
            raise PeerError(f"{values.size} logits for {len(ids)} tokens")
        return values.reshape(len(ids), -1)
