#!/usr/bin/env python3
"""Penstock against llama.cpp on the same GGUF files: top-1 agreement and KL divergence of every position.

    llama_compare.py --penstock build/release/penstock --llama llama_peer MODEL.gguf... [--tokens 2048]
        [--ids FILE] [--dequantised FOLDER] [--surgery TEXT] [--json OUT.json] [--markdown OUT.md]

KLD is D(llama.cpp || penstock) in nats per position, from f64 log-softmax of the f32 logits.
llama.cpp rounds activations to 8-bit blocks with fp16 scales for quantised weights; `exact` mode here
does not. With --dequantised, FOLDER/NAME.gguf is the same model with every tensor decoded to F32
(`llama-quantize --allow-requantize NAME.gguf FOLDER/NAME.gguf F32`): llama.cpp on it rounds nothing, so
its distance from `exact` is what the two implementations differ by when rounding is taken away.

With --surgery every model is followed by two that `penstock` makes of it, calibrated on TEXT: NAME-half.gguf, half of
its experts by REAP, and NAME-half-q2_0.gguf, the same with experts of Q2_0 in one pass. Both are compared like the
model itself, and each with itself decoded to F32 (by `penstock requantise --keep-type '*=F32'`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import peer


@dataclass
class Distance:
    """How far logits b are from logits a, over all positions."""

    positions: int
    top1: float
    kld_mean: float
    kld_median: float
    kld_p99: float
    kld_max: float
    max_abs: float


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def distance(a: np.ndarray, b: np.ndarray) -> Distance:
    kld = np.empty(len(a))
    step = max(1, 16_000_000 // a.shape[1])
    for at in range(0, len(a), step):
        p, q = log_softmax(a[at : at + step]), log_softmax(b[at : at + step])
        kld[at : at + step] = (np.exp(p) * (p - q)).sum(axis=-1)
    return Distance(
        positions=len(a),
        top1=float((a.argmax(axis=1) == b.argmax(axis=1)).mean()),
        kld_mean=float(kld.mean()),
        kld_median=float(np.median(kld)),
        kld_p99=float(np.quantile(kld, 0.99)),
        kld_max=float(kld.max()),
        max_abs=float(np.abs(a - b).max()),
    )


def operate(penstock: Path, model: Path, text: Path, folder: Path) -> list[Path]:
    """The model with half of its experts, as they are and as Q2_0; folder/decoded has both as F32."""

    def run(*command: object) -> None:
        subprocess.run([penstock, *map(str, command)], check=True, stdout=subprocess.DEVNULL)

    stats = folder / "stats.gguf"
    run("calibrate", model, "--text", text, "--window", 256, "-o", stats)
    (folder / "decoded").mkdir()
    made = []
    for name, types in (("half", []), ("half-q2_0", ["--experts", "Q2_0"])):
        made.append(folder / f"{model.stem}-{name}.gguf")
        run("prune", model, "--stats", stats, "--keep", 0.5, *types, "-o", made[-1])
        run("requantise", made[-1], "--keep-type", "*=F32", "-o", folder / "decoded" / made[-1].name)
    return made


def compare(args: argparse.Namespace, model: Path, decoded: Path | None) -> list[dict[str, object]]:
    """All pairs of one model; `decoded`: where it is as F32."""
    given = peer.read_ids(args.ids)[: args.tokens] if args.ids else None
    length = len(given) if given else args.tokens
    options = ["--threads", str(args.threads), "--batch", str(args.chunk), "--ctx", str(length + 8), "--all-logits"]
    with peer.LlamaPeer(args.llama, model, *options) as llama:
        ids = given or peer.random_ids(args.tokens, llama.n_vocab, args.seed)
        theirs = llama.logits(ids, args.chunk)
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    plain = None
    if decoded and (decoded / model.name).exists():
        with peer.LlamaPeer(args.llama, decoded / model.name, *options) as llama:
            plain = llama.logits(ids, args.chunk)
        pairs["llama.cpp on F32 | llama.cpp"] = plain, theirs
    if args.penstock:
        fast = peer.penstock_logits(args.penstock, model, ids, "fast", *args.penstock_option)
        exact = peer.penstock_logits(args.penstock, model, ids, "exact", *args.penstock_option)
        pairs["llama.cpp | penstock fast"] = theirs, fast
        pairs["llama.cpp | penstock exact"] = theirs, exact
        pairs["penstock exact | fast"] = exact, fast
        if plain is not None:
            pairs["llama.cpp on F32 | penstock exact"] = plain, exact
    rows: list[dict[str, object]] = []
    for name, (a, b) in pairs.items():
        d = distance(a, b)
        rows.append({"model": model.name, "pair": name, **asdict(d)})
        print(
            f"{model.name:32} {name:34} top-1 {100 * d.top1:6.2f} %  KLD mean {d.kld_mean:.2e} median {d.kld_median:.2e} "
            f"p99 {d.kld_p99:.2e} max {d.kld_max:.2e}  max |diff| {d.max_abs:.2e}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--penstock", type=Path, help="without it only llama.cpp is compared with itself on dequantised files")
    parser.add_argument("--penstock-option", action="append", default=[], help="passed to `penstock logits`")
    parser.add_argument("--llama", type=Path, required=True, help="the llama_peer program")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--ids", type=Path, help="token ids to feed instead of random ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=512, help="tokens per llama.cpp batch")
    parser.add_argument("--dequantised", type=Path)
    parser.add_argument("--surgery", type=Path, metavar="TEXT", help="also of the pruned and requantised model; TEXT calibrates")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    args.llama = args.llama.resolve()
    if args.surgery and not args.penstock:
        parser.error("--surgery needs --penstock, which makes the models")

    rows: list[dict[str, object]] = []
    for model in args.models:
        rows += compare(args, model, args.dequantised)
        if not args.surgery:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for made in operate(args.penstock, model, args.surgery, Path(folder)):
                rows += compare(args, made, Path(folder) / "decoded")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    if args.markdown:
        lines = ["| model | reference, compared | positions | top-1 % | mean KLD | median | p99 | largest | max abs |", "|---|---|---|---|---|---|---|---|---|"]
        for r in rows:
            lines.append(
                f"| {r['model']} | {str(r['pair']).replace(' | ', ', ')} | {r['positions']} | {100 * float(r['top1']):.2f} | {r['kld_mean']:.2e} | "  # type: ignore[arg-type]
                f"{r['kld_median']:.2e} | {r['kld_p99']:.2e} | {r['kld_max']:.2e} | {r['max_abs']:.2e} |"
            )
        args.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
