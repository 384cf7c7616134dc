#!/usr/bin/env python3
"""For every number of a document that no claim quotes, where it might come from.

Looks through bench/results/*.json for values, and medians and ends of lists, that round to the
number in some unit that people would write it in. What rounds alike is not what was measured:
every proposal is to be read, and most are chance. Files that the document itself names come first.

    tools/propose_claims.py bench/claims.toml docs/dense.md
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

# What a unit's value may have been multiplied with: "1e-6" for bytes written as MB.
SCALES = {
    "%": [1, 100], "MB": [1, 1e-6], "GB": [1, 1e-9, 1e-3], "KB": [1, 1e-3], "KiB": [1, 2**-10],
    "MiB": [1, 2**-20], "GiB": [1, 2**-30], "ms": [1, 1e3, 1e-6], "s": [1, 1e-3, 1e-9],
    "GB/s": [1, 1e-9], "MB/s": [1, 1e-6, 1e3],
}


def leaves(value, pointer=""):
    """(pointer, kind, number) of every number; of lists of numbers also median and ends."""
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        yield pointer, "", float(value)
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from leaves(member, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        numbers = [x for x in value if isinstance(x, (int, float)) and not isinstance(x, bool)]
        if len(numbers) == len(value) and len(numbers) >= 3:
            yield pointer, "median", statistics.median(numbers)
            yield pointer, "min", min(numbers)
            yield pointer, "max", max(numbers)
        elif value and all(isinstance(x, dict) for x in value):
            for name in value[0]:
                column = [x.get(name) for x in value]
                if len(column) >= 3 and all(type(x) in (int, float) for x in column):
                    for kind, f in ("median", statistics.median), ("min", min), ("max", max):
                        yield f"{pointer}[*]/{name}", kind, float(f(column))
        if len(value) <= 400:
            for i, member in enumerate(value):
                yield from leaves(member, f"{pointer}/{i}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims")
    parser.add_argument("documents", nargs="*")
    parser.add_argument("--penstock", default="build/release/penstock")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("bench/results"))
    parser.add_argument("--most", type=int, default=6, help="proposals per number")
    args = parser.parse_args()
    run = subprocess.run([args.penstock, "audit", args.claims, *args.documents, "--json"],
                         capture_output=True, text=True, check=False)
    if not run.stdout:
        sys.exit(run.stderr)
    audit = json.loads(run.stdout)
    values = []
    for path in sorted(args.results.glob("*.json")):
        for pointer, kind, number in leaves(json.loads(path.read_text())):
            values.append((path.name, pointer, kind, number))
    texts = {}
    for figure in audit["unclaimed"]:
        document = figure["document"]
        lines = texts.setdefault(document, pathlib.Path(document).read_text().split("\n"))
        named = set(re.findall(r"[\w.+-]+\.json", "\n".join(lines)))
        unit = re.split(r"/tok| per | a ", figure["unit"])[0]
        scales = SCALES.get(figure["unit"], SCALES.get(unit, [1]))
        wanted = float(figure["value"].replace(",", "").replace("\u2212", "-"))
        half = 0.5 * 10 ** -figure["digits"] * (1 + 1e-9)
        found = []
        for name, pointer, kind, number in values:
            for scale in scales:
                if abs(number * scale - wanted) <= half:
                    rank = (name not in named, number == int(number) and scale == 1, kind == "")
                    found.append((rank, name, pointer, kind, number * scale))
        print(f"\n{document}:{figure['line']}:{figure['column']}: {figure['text']}")
        print(f"  | {lines[figure['line'] - 1].strip()}")
        for _, name, pointer, kind, number in sorted(found)[:args.most]:
            print(f"    {name} {pointer} {kind} = {number:.6g}")
        if len(found) > args.most:
            print(f"    and {len(found) - args.most} more")


if __name__ == "__main__":
    main()
