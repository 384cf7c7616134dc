#!/usr/bin/env python3
"""How long `penstock sim` takes for 20 sizes and 5 policies of a long made-up trace.

usage: measure_speed.py BENCH_TRACE PENSTOCK OUT.json [TOKENS [FOLDER [RUNS]]]

Writes what was run, the trace's parameters and the seconds of each of RUNS (3) runs (elapsed, and
of processors): a busy machine shows in the difference. The trace is made in FOLDER and removed.
"""
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

LAYERS, EXPERTS, USED, THREADS = 48, 256, 10, 2
POLICIES = "lru,lfu,cycle,clairvoyant,clairvoyant-admits"


def timed(command):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    elapsed, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    processors = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"elapsed_s": round(elapsed, 2), "processors_s": round(processors, 2)}


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else None


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    make, penstock, out = sys.argv[1:4]
    tokens = int(sys.argv[4]) if len(sys.argv) > 4 else 100000
    runs = int(sys.argv[6]) if len(sys.argv) > 6 else 3
    with tempfile.TemporaryDirectory(dir=sys.argv[5] if len(sys.argv) > 5 else None) as folder:
        trace = os.path.join(folder, "trace.xrt")
        subprocess.run([make, trace, *map(str, (tokens, LAYERS, EXPERTS, USED))], check=True)
        options = ["--slots", "sweep", "--sizes", "20", "--policy", POLICIES, "-t", str(THREADS)]
        found = {
            "command": ["penstock", "sim", "trace.xrt", *options],
            "version": subprocess.run([penstock, "--version"], check=True, capture_output=True,
                                      text=True).stdout.splitlines()[0],
            "cpu": processor(),
            "logical_processors": os.cpu_count(),
            "threads": THREADS,
            "trace": {"tokens": tokens, "layers": LAYERS, "experts": EXPERTS, "used": USED,
                      "tokens_per_turn": 512, "bytes": os.path.getsize(trace)},
            "settings": 20 * len(POLICIES.split(",")),
            "uses": tokens * LAYERS * USED,
            "load_average_before": os.getloadavg()[0],
            "runs": [timed([penstock, "sim", trace, *options]) for _ in range(runs)],
        }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


main()
