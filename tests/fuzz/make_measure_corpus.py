#!/usr/bin/env python3
"""Writes the seeds of the fuzzers of src/measure, one folder each, from what is archived here.

usage: make_measure_corpus.py FOLDER

Several files in one are separated by zero bytes, and "@2" stands for the hash of the third
(parts.h).
"""
import glob
import json
import os
import struct
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CAMPAIGNS = os.path.join(ROOT, "bench", "results", "campaigns")
SEED = os.path.join(ROOT, "docs", "seed")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def save(target, name, content):
    folder = os.path.join(sys.argv[1], target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as out:
        out.write(content)


def refer(value, names):
    if isinstance(value, dict):
        return {key: refer(member, names) for key, member in value.items()}
    if isinstance(value, list):
        return [refer(member, names) for member in value]
    if isinstance(value, str) and value in names:
        return "@" + chr(ord("0") + names[value])
    return value


def cut(record):
    """A run record with its last counters alone: small inputs are fuzzed faster."""
    if record["schema"] == "penstock-run-record":
        record["counters"] = record["counters"][-1:]
        for last in record["counters"]:  # an evaluation has none
            last["counters"].pop("reads_by_layer", None)
        for turn in record.get("turns", []):
            turn["text"] = turn["text"][:20]
            turn["tokens"] = turn["tokens"][:4]
    return record


def archive(paths):
    """The records with what lies in files/ before them, as parts."""
    parts, names = [], {}
    records = [cut(json.loads(read(path))) for path in paths]
    name_of = {record["run_id"]: os.path.basename(path)[:64] for record, path in zip(records, paths)}
    records.sort(key=lambda record: record["schema"] == "penstock-campaign")
    for record in records:
        if record["schema"] == "penstock-campaign":
            record["runs"] = [run for run in record["runs"] if run["record"] in names]
        text = json.dumps(record)
        for path in sorted(glob.glob(os.path.join(os.path.dirname(paths[0]), "files", "*"))):
            name = os.path.basename(path)
            if name in text and name not in names and len(parts) < 14:
                names[name] = len(parts)
                content = read(path)
                parts.append(content if b"\0" not in content and len(content) < 3000 else b"file")
        names[name_of[record["run_id"]]] = len(parts)
        parts.append(json.dumps(refer(record, names), ensure_ascii=False).encode())
    return b"\0".join(parts)


def records():
    for folder in sorted(glob.glob(os.path.join(CAMPAIGNS, "*"))):
        name = os.path.basename(folder)
        paths = sorted(glob.glob(os.path.join(folder, "*.json")), key=os.path.getsize)
        schema = {path: json.loads(read(path))["schema"] for path in paths}
        whole = [path for path in paths if schema[path] == "penstock-campaign"]
        runs = [path for path in paths if schema[path] != "penstock-campaign"]
        for kind in sorted(set(schema[path] for path in runs)):
            first = [path for path in runs if schema[path] == kind]
            save("record", f"{name}-{kind}", archive(first[:1]))
            save("record", f"{name}-{kind}-two", archive(first[:2]))
        save("record", f"{name}-campaign", archive(runs[:3] + whole))
    for path in sorted(glob.glob(os.path.join(SEED, "records", "*.json"))):
        save("record", os.path.basename(path)[:12], read(path))


def claims():
    text, page = read(os.path.join(SEED, "claims.toml")), read(os.path.join(SEED, "README.md"))
    head, *each = text.split(b"[[claim]]")
    kept = [read(path) for path in sorted(glob.glob(os.path.join(SEED, "records", "*.json")))]
    save("claims", "seed", b"\0".join([text, page] + kept))
    for i, claim in enumerate(each):
        named = [r for r, p in zip(kept, sorted(glob.glob(os.path.join(SEED, "records", "*.json"))))
                 if any(os.path.basename(p)[:64].encode() in line and line.split(b" ")[0] in claim
                        for line in head.split(b"\n") if b" = \"" in line)]
        save("claims", f"claim{i}", b"\0".join([head + b"[[claim]]" + claim, page[:600]] + named))
    figures = b'{"rows": [{"name": "a", "rate": 0.5, "list": [1, 2, 3]}, {"name": "b", "rate": 1}]}'
    save("claims", "formula", b"\0".join([
        b'records = ["records"]\n[[claim]]\ntext = "| a | 50 % | 6 tokens |"\nrecords = "2.json"\n'
        b'each = "/rows[name=a]"\nexact = true\naccept = "UNIDENTIFIED BUILD"\nreason = "made up"\n'
        b'values = [{value = "50", unit = "%", formula = "{/rate} * 100"},\n'
        b'  {value = 6, unit = "tokens", formula = "sum({/list})"}]\n[[setting]]\nquote = "8 GiB"\n'
        b'reason = "what was asked for"\n', b"# Page\n\n| a | 50 % | 6 tokens |\n|---|---|---|\n\n8 GiB\n",
        figures]))
    save("claims", "against", b"\0".join([
        b'records = ["records"]\n[[claim]]\ntext = "decode is 1.5 times as fast, 2-3 tok/s"\nvalue = 1.5\n'
        b'unit = "x"\nstatistic = "median"\nrecords = ["2.json"]\nformula = "{/a}"\nphase = "decode"\n'
        b'prompt_tokens = 32\nin_sample = true\nrequires = ["quality", "coverage", "footprint", "paired arm"]\n'
        b'[claim.against]\nrecords = "3.json"\nkind = "ratio"\ndiffers = ["prompt", "model"]\n'
        b'[claim.log]\nrecord = "2.json"\npattern = "* Final #"\ncount = 1\n',
        b"decode is 1.5 times as fast,\n2-3 tok/s\n", b'{"a": 3}', b'{"a": 2}']))


def markdown():
    for path in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))) + [os.path.join(ROOT, "README.md")]:
        save("markdown", os.path.basename(path), read(path)[:4000])
    save("markdown", "marks", "| speed tok/s | a |\n|--:|---|\n| **1,234.5** | `2 GiB` |\n\n```results\n3–4 ms\n"
         "```\n<!-- 5 s -->\n[6 MB/s](u \"7 s\") ≈8\u00a0% 1.2e3 tokens/s −9 %\n    10 GiB\n~~~\n11 s\n".encode())


def campaigns():
    save("campaign", "peers", b'name = "peers"\nmodel = "m.gguf"\nrepeats = 3\ntokens = 64\ncontext = 256\n'
         b'limit = "3G"\ncool_down = 1.5\nroofline = true\n[[prompt]]\nname = "p"\ntext = "hello"\n'
         b'[[prompt]]\nname = "q"\nrandom_tokens = 32\nseed = 2\n[[arm]]\nname = "penstock"\n'
         b'options = ["--slots", 100]\n[[arm]]\nname = "server"\nprogram = "llama-server"\n'
         b'command = "llama-server"\nlimit = "2 GiB"\n[[arm]]\nname = "other"\nprogram = "openai"\n'
         b'url = "http://127.0.0.1:1"\n[[arm]]\nname = "command"\nprogram = "command"\n'
         b'command = ["a", "{model}"]\nparser = "stream"\nenvironment = ["A=B"]\n')


def formulas():
    record = b'{"a": {"b": [1, 2.5, -3], "c": 4}, "x/y": 2, "z~": 0}'
    for i, text in enumerate([
            b"{/a/b/-1} + {/a/b/0} * -({/a/c} / {/x~1y})", b"sum({/a/b}) - min({/a/b}) / max({/a/b})",
            b"least({/a/c}, most(1e3, 2)) * count({/a/b})", b"((((1))))", b"{} / {/z~0}", b"--1"]):
        save("formula", str(i), text + b"\0" + record)


def peer_outputs():
    times = (b"llama_perf: load time = 12.5 ms\nprompt eval time = 100.25 ms / 32 tokens (3 ms per)\n"
             b"  eval time = 950.5 ms / 63 runs\n")
    save("peer_output", "llama.cpp", b"text\0" + times)
    save("peer_output", "llama-bench", b'[{"n_prompt": 512, "n_gen": 0, "avg_ns": 12345678},'
         b'{"n_prompt": 0, "n_gen": 64, "avg_ns": 9876543}]\0')
    save("peer_output", "llama-server", b'{"content": "a", "timings": {"prompt_n": 32, "prompt_ms": 9.5,'
         b'"predicted_n": 64, "predicted_ms": 32.25}}\0' + times)
    save("peer_output", "stream", b'{"sent_ms": 1, "arrived_ms": [2, 3.5, 7], "prompt_tokens": 32,'
         b'"completion_tokens": null}\0')


def traces():
    def half(n):
        return b"".join(struct.pack("<e", (7 * i + n) % 5 - 2) for i in range(n))

    for logits in (False, True):
        layers = [(0, 6, 2), (1, 4, 2), (3, 8, 1)]
        settings = {"depth": 2, "transit": 4, "slots": 13, "classes": [{"slot_bytes": 4096, "slots": 8},
                    {"slot_bytes": 8192, "slots": 5}], "class_of_layer": [0, 0, 1], "read_bytes": [4096, 4096, 8000]}
        out = b"".join(struct.pack("<BHIHHIHI", 3, i, 3, 2, 0, 2, n - 1, 1) for i, (_, n, _) in enumerate(layers))
        for step in range(5):
            rows = 2 if step == 3 else 1
            for i, (_, n, used) in enumerate(layers):
                for row in range(rows):
                    ids = [(step * 3 + row + k) % n for k in range(used)]
                    out += struct.pack(f"<BHH{used}H", 1, i, row, *ids) + (half(n) if logits else b"")
                if logits and i + 1 < len(layers):
                    out += struct.pack("<BHHB", 2, i + 1, 0, 1) + half(layers[i + 1][1])
            out += struct.pack("<BHBi", 4, rows, 6, step)
        out += struct.pack("<B", 5)
        for given in (settings, {}):
            header = {"logits": logits, "layers": [{"layer": l, "n_expert": n, "n_used": u} for l, n, u in layers],
                      "settings": given}
            save("trace", f"{'logits' if logits else 'ids'}-{len(given)}", json.dumps(header).encode() + b"\0" + out)


for make in (records, claims, markdown, campaigns, formulas, peer_outputs, traces):
    make()
