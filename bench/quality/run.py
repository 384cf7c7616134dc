#!/usr/bin/env python3
"""What pruning, few bits and cache-aware routing cost the sample model.

Splits the held-out text in halves (calibration, test), writes one recipe per question, lets `penstock
recipe` run it and keeps the result in bench/results/. A recipe that was interrupted goes on.

    bench/quality/run.py --work /tmp/quality [--penstock build/release/penstock] [question ...]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "models/sample-qwen4exp-q8_0.gguf"
DOMAINS = ("manual", "python", "scripture")
METHODS = ("reap", "reap-sum", "frequency", "random")
TYPES = {"shipped": "", "q2": 'experts = "Q2_0"', "q2i": 'experts = "Q2_0"\nimportance = true', "q4": 'experts = "Q4_0"'}


def split(work: pathlib.Path, n_tasks: int) -> None:
    for domain in DOMAINS:
        text = (ROOT / "models/eval" / f"{domain}.txt").read_text()
        half = text.index("\n", len(text) // 2) + 1
        (work / f"calibration-{domain}.txt").write_text(text[:half])
        (work / f"test-{domain}.txt").write_text(text[half:])
        # Token by token takes long: a quarter of the test text.
        (work / f"short-{domain}.txt").write_text(text[half:half + 4000])
    lines = (ROOT / "models/eval/tasks.jsonl").read_text().splitlines()
    (work / "tasks.jsonl").write_text("\n".join(lines[:: len(lines) // n_tasks][:n_tasks]) + "\n")
    (work / "prompt.txt").write_text((work / "test-manual.txt").read_text()[:400])


def header(work: pathlib.Path, calibration: tuple[str, ...], short: bool = False, speed: bool = False) -> str:
    text = lambda part, domains: json.dumps([str(work / f"{part}-{domain}.txt") for domain in domains])
    out = f"""[source]
model = "{ROOT / MODEL}"

[calibrate]
text = {text("calibration", calibration)}
window = 256

[evaluate]
text = {text("short" if short else "test", DOMAINS)}
window = 256
tasks = "{work / "tasks.jsonl"}"
max_tokens = 64
arena = 0.25
"""
    if speed:
        out += f'\n[speed]\nprompt = "{work / "prompt.txt"}"\ntokens = 128\nruns = 3\n'
    return out


def arm(name: str, *lines: str) -> str:
    return "\n".join(["", "[[arm]]", f'name = "{name}"', *filter(None, lines)]) + "\n"


def matrix(work: pathlib.Path, steps: bool = False) -> str:
    """{unpruned, half by four methods} x four encodings, exact routing."""
    out = header(work, DOMAINS, steps, True)
    for method in ("none", *METHODS):
        prune = "" if method == "none" else f'keep = 0.5\nmethod = "{method}"'
        for name, types in TYPES.items():
            out += arm(f"{method}-{name}", prune, types, "bonus = 0.85" if steps else "")
    return out


def matrix_moce(work: pathlib.Path) -> str:
    """The same with cache-aware routing, bonus 0.85, a quarter of the experts in memory; shorter text."""
    return matrix(work, True)


def ranking(work: pathlib.Path) -> str:
    """Half of the experts by each method, nine random draws: what the ranking is worth."""
    out = header(work, DOMAINS)
    for method in ("reap", "reap-sum", "ean", "frequency", "mass"):
        out += arm(method, f'keep = 0.5\nmethod = "{method}"')
    for seed in range(1, 10):
        out += arm(f"random-{seed}", f'keep = 0.5\nmethod = "random"\nseed = {seed}')
    return out


def price(work: pathlib.Path) -> str:
    """What each step costs: half of the experts by REAP sum, then few bits, against the source and against the half."""
    out = header(work, DOMAINS, True)
    for name, types in TYPES.items():
        base = "" if name == "shipped" else 'base = "half-shipped"'
        out += arm(f"half-{name}", 'keep = 0.5\nmethod = "reap-sum"', types, base, "bonus = [0, 0.85]")
    return out


def specialised(domain: str):
    def recipe(work: pathlib.Path) -> str:
        """Half of the experts, chosen on one domain alone."""
        return header(work, (domain,)) + arm(f"reap-on-{domain}", "keep = 0.5")
    return recipe


def double(work: pathlib.Path) -> str:
    """Quantising what was quantised before; a mix that protects the down projections."""
    out = header(work, DOMAINS)
    q2 = 'experts = "Q2_0"'
    out += arm("f16", 'experts = "F16"')
    out += arm("once", 'from = "f16"', q2)
    out += arm("iq4_nl", 'from = "f16"', 'experts = "IQ4_NL"')
    out += arm("via-iq4_nl", 'from = "iq4_nl"', q2)
    out += arm("q4", 'from = "f16"', 'experts = "Q4_0"')
    out += arm("via-q4", 'from = "q4"', q2)
    out += arm("down-q4", 'from = "f16"', q2, 'keep_type = ["blk.*.ffn_down_exps.weight=Q4_0"]')
    return out


def double_iq3(work: pathlib.Path) -> str:
    """Through IQ3_S (gate, up) and IQ4_NL (down), written by llama.cpp: a file of ours in between has neither."""
    out = header(work, DOMAINS)
    q2 = 'experts = "Q2_0"'
    out += arm("once", f'model = "{work / "f16.gguf"}"', q2)
    out += arm("iq3_s-iq4_nl", f'model = "{work / "iq3.gguf"}"')
    out += arm("via-iq3_s-iq4_nl", f'model = "{work / "iq3.gguf"}"', q2)
    return out


def make_iq3(work: pathlib.Path, penstock: pathlib.Path, llama_quantize: pathlib.Path) -> None:
    """Experts of the sample model as F16, and from those as IQ3_S and IQ4_NL."""
    f16, iq3 = work / "f16.gguf", work / "iq3.gguf"
    subprocess.run([penstock, "requantise", ROOT / MODEL, "--experts", "F16", "--force", "-o", f16], check=True)
    types = {"ffn_gate_exps": "iq3_s", "ffn_up_exps": "iq3_s", "ffn_down_exps": "iq4_nl"}
    # Small matrices that llama.cpp would bring to eight bits too: only the experts are to change.
    types |= dict.fromkeys(("hc_attn_inject", "hc_ffn_inject", "ssm_alpha", "ssm_beta", "ple_conv1d"), "f32")
    rules = [word for part, name in types.items() for word in ("--tensor-type", f"{part}={name}")]
    subprocess.run([llama_quantize, "--allow-requantize", *rules, f16, iq3, "Q8_0"], check=True)


def routing(work: pathlib.Path) -> str:
    """The curve of cache-aware routing, each point with its own cache, closed loop; lambda 0 is exact."""
    return header(work, DOMAINS, True, True) + arm(
        "none", "bonus = [0.25, 0.5, 0.85, 1.5]", "lambda = [0, 0.05, 0.09, 0.15, 0.3]")


QUESTIONS = {"matrix": matrix, "matrix-moce": matrix_moce, "ranking": ranking, "double": double,
             "double-iq3": double_iq3, "routing": routing, "price": price,
             **{f"only-{domain}": specialised(domain) for domain in DOMAINS}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", choices=[[], *QUESTIONS])
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--penstock", type=pathlib.Path, default=ROOT / "build/release/penstock")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--llama-quantize", type=pathlib.Path, help="llama.cpp's, for double-iq3")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    work = args.work.resolve()
    split(work, args.tasks)
    for name in args.questions or QUESTIONS:
        if name == "double-iq3":
            if not args.llama_quantize:
                print("double-iq3 needs --llama-quantize: left out")
                continue
            make_iq3(work, args.penstock, args.llama_quantize)
        recipe = work / f"{name}.toml"
        recipe.write_text(QUESTIONS[name](work))
        subprocess.run([args.penstock, "recipe", recipe, "--work", work / name], check=True)
        result = json.loads((work / name / "result.json").read_text())
        result["question"] = " ".join((QUESTIONS[name].__doc__ or name).split())
        result["recipe"] = recipe.read_text().replace(str(work), "WORK").replace(str(ROOT) + "/", "")
        out = ROOT / "bench/results" / f"quality-{name}.json"
        out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"wrote {out.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
