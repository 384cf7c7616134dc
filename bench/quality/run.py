#!/usr/bin/env python3
"""What pruning, few bits and cache-aware routing cost the sample model.

Splits the held-out text in halves (calibration, test), lets the model write a text in its chat format, writes one
recipe per question, lets `penstock recipe` run it and keeps its record in bench/results/quality/. A recipe that was
interrupted goes on.

    bench/quality/run.py --work /tmp/quality [--penstock build/release/penstock] [question ...]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "models/sample-qwen4exp-q8_0.gguf"
DOMAINS = ("manual", "python", "scripture")
METHODS = ("reap", "reap-sum", "frequency", "random")
TYPES = {"shipped": "", "q2": 'experts = "Q2_0"', "q2i": 'experts = "Q2_0"\nimportance = true', "q4": 'experts = "Q4_0"'}


def split(work: pathlib.Path, n_tasks: int) -> None:
    # Recipes name files as they lie in the work folder, so that a record says nothing of where that is.
    if not (work / "models").exists():
        (work / "models").symlink_to(ROOT / "models")
    for domain in DOMAINS:
        text = (ROOT / "models/eval" / f"{domain}.txt").read_text()
        half = text.index("\n", len(text) // 2) + 1
        (work / f"calibration-{domain}.txt").write_text(text[:half])
        (work / f"test-{domain}.txt").write_text(text[half:])
        # Token by token takes long: half of the test text, enough for a perplexity of its own.
        (work / f"short-{domain}.txt").write_text(text[half:(half + len(text)) // 2])
    lines = (ROOT / "models/eval/tasks.jsonl").read_text().splitlines()
    asked = lines[:: len(lines) // n_tasks][:n_tasks]
    (work / "tasks.jsonl").write_text("\n".join(asked) + "\n")
    (work / "chat.jsonl").write_text("\n".join(line for line in lines if line not in asked) + "\n")
    (work / "prompt.txt").write_text((work / "test-manual.txt").read_text()[:400])


CONVERSATIONS = {"test": 150, "calibration": 100}


def chat_text(work: pathlib.Path, penstock: pathlib.Path) -> None:
    """test-chat.ids and calibration-chat.ids: conversations as the unpruned model has them, questions that are not among
    the tasks, its template around them and its own answers. Each has a seed of its own, so the text can be made again."""
    if (work / "calibration-chat.ids").exists():
        return
    texts: list[list[int]] = []
    tasks = (json.loads(line) for line in (work / "chat.jsonl").read_text().splitlines())
    plain = [t["messages"] for t in tasks if "tools" not in t and t["messages"][-1]["role"] == "user"]
    for seed, messages in enumerate(plain[:sum(CONVERSATIONS.values())]):
        system = [m["content"] for m in messages if m["role"] == "system"]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([penstock, "-q", "run", "-m", ROOT / MODEL, "--chat", "-p", messages[-1]["content"],
                            *(["--system", system[0]] if system else []), "-n", "96", "--temp", "0.7", "--seed",
                            str(seed), "--memory", "2G", "--no-summary", "--record", folder], check=True,
                           stdout=subprocess.DEVNULL)
            record = json.loads(next(pathlib.Path(folder).glob("*.json")).read_text())
            turn = record["turns"][0]
            prompt = pathlib.Path(folder) / "files" / turn["prompt"]["file"]
            texts.append([int(word) for word in prompt.read_text().split()] + turn["tokens"])
    n_test = CONVERSATIONS["test"]
    for name, part in (("test", texts[:n_test]), ("short", texts[:n_test // 2]), ("calibration", texts[n_test:])):
        (work / f"{name}-chat.ids").write_text(" ".join(str(token) for text in part for token in text) + "\n")


def files(part: str, domains: tuple[str, ...]) -> list[str]:
    return [f"{part}-{domain}.{'ids' if domain == 'chat' else 'txt'}" for domain in domains]


def header(calibration: tuple[str, ...], short: bool = False, speed: bool = False, chat: bool = False) -> str:
    out = f"""[source]
model = "{MODEL}"

[calibrate]
text = {json.dumps(files("calibration", calibration))}
window = 256

[evaluate]
text = {json.dumps(files("short" if short else "test", (*DOMAINS, "chat") if chat else DOMAINS))}
window = 256
tasks = "tasks.jsonl"
max_tokens = 64
arena = 0.25
"""
    if speed:
        out += '\n[speed]\nprompt = "prompt.txt"\ntokens = 128\nruns = 3\n'
    return out


def arm(name: str, *lines: str) -> str:
    return "\n".join(["", "[[arm]]", f'name = "{name}"', *filter(None, lines)]) + "\n"


def matrix(steps: bool = False) -> str:
    """{unpruned, half by four methods} x four encodings, exact routing."""
    out = header(DOMAINS, short=steps, speed=True, chat=True)
    for method in ("none", *METHODS):
        prune = "" if method == "none" else f'keep = 0.5\nmethod = "{method}"'
        for name, types in TYPES.items():
            out += arm(f"{method}-{name}", prune, types, "bonus = 0.85" if steps else "")
    return out


def matrix_moce() -> str:
    """The same with cache-aware routing, bonus 0.85, a quarter of the experts in memory; half of the text."""
    return matrix(True)


def ranking() -> str:
    """Half of the experts by each method, nine random draws: what the ranking is worth."""
    out = header(DOMAINS)
    for method in ("reap", "reap-sum", "ean", "frequency", "mass"):
        out += arm(method, f'keep = 0.5\nmethod = "{method}"')
    for seed in range(1, 10):
        out += arm(f"random-{seed}", f'keep = 0.5\nmethod = "random"\nseed = {seed}')
    return out


def price() -> str:
    """What each step costs: half of the experts by REAP sum, then few bits, against the source and against the half."""
    out = header(DOMAINS, short=True)
    for name, types in TYPES.items():
        base = "" if name == "shipped" else 'base = "half-shipped"'
        out += arm(f"half-{name}", 'keep = 0.5\nmethod = "reap-sum"', types, base, "bonus = [0, 0.85]")
    return out


def specialised(domain: str):
    def recipe() -> str:
        """Half of the experts, chosen on one domain alone."""
        return header((domain,)) + arm(f"reap-on-{domain}", "keep = 0.5")
    return recipe


def chat() -> str:
    """Half of the experts, chosen with conversations among the calibration text."""
    out = header((*DOMAINS, "chat"), chat=True)
    for method in METHODS[:3]:
        out += arm(f"{method}-with-chat", f'keep = 0.5\nmethod = "{method}"')
    return out


def double() -> str:
    """Quantising what was quantised before; a mix that protects the down projections."""
    out = header(DOMAINS)
    q2 = 'experts = "Q2_0"'
    out += arm("f16", 'experts = "F16"')
    out += arm("once", 'from = "f16"', q2)
    out += arm("iq4_nl", 'from = "f16"', 'experts = "IQ4_NL"')
    out += arm("via-iq4_nl", 'from = "iq4_nl"', q2)
    out += arm("q4", 'from = "f16"', 'experts = "Q4_0"')
    out += arm("via-q4", 'from = "q4"', q2)
    out += arm("down-q4", 'from = "f16"', q2, 'keep_type = ["blk.*.ffn_down_exps.weight=Q4_0"]')
    return out


def double_iq3() -> str:
    """Through IQ3_S (gate, up) and IQ4_NL (down), written by llama.cpp: a file of ours in between has neither."""
    out = header(DOMAINS)
    q2 = 'experts = "Q2_0"'
    out += arm("once", 'model = "f16.gguf"', q2)
    out += arm("iq3_s-iq4_nl", 'model = "iq3.gguf"')
    out += arm("via-iq3_s-iq4_nl", 'model = "iq3.gguf"', q2)
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


def routing() -> str:
    """The curve of cache-aware routing, each point with its own cache, closed loop; lambda 0 is exact."""
    return header(DOMAINS, short=True, speed=True) + arm(
        "none", "bonus = [0.25, 0.5, 0.85, 1.5]", "lambda = [0, 0.05, 0.09, 0.15, 0.3]")


QUESTIONS = {"matrix": matrix, "matrix-moce": matrix_moce, "ranking": ranking, "double": double,
             "double-iq3": double_iq3, "routing": routing, "price": price, "chat": chat,
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
    penstock = args.penstock.resolve()
    split(work, args.tasks)
    for name in args.questions or QUESTIONS:
        if name == "double-iq3":
            if not args.llama_quantize:
                print("double-iq3 needs --llama-quantize: left out")
                continue
            make_iq3(work, penstock, args.llama_quantize)
        recipe = work / f"{name}.toml"
        text = QUESTIONS[name]()
        if "-chat.ids" in text:
            chat_text(work, penstock)
        recipe.write_text(f"# {name}: {' '.join((QUESTIONS[name].__doc__ or name).split())}\n" + text)
        records = work / f"records-{name}"
        shutil.rmtree(records, ignore_errors=True)
        subprocess.run(["penstock", "recipe", recipe.name, "--work", name, "--record", records.name],
                       executable=penstock, cwd=work, check=True)
        # What it printed names folders of this machine; everything that it measured stays.
        subprocess.run([penstock, "-q", "record", "trim", records, "--drop", "output", "--files",
                        "-o", ROOT / "bench/results/quality"], check=True, stdout=subprocess.DEVNULL)
        print(f"{name}: {next(records.glob('*.json')).stem}")


if __name__ == "__main__":
    main()
