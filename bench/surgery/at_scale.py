#!/usr/bin/env python3
"""Surgery on a large model inside a memory cgroup: throughput, peak memory, and what a kill costs.

    penstock synth qwen3-30b-a3b -o MODEL.gguf
    at_scale.py --penstock PENSTOCK --model MODEL.gguf --work DIR [--limit 8] > out.json

Calibrates, prunes to half of the experts, requantises them to Q2_0 and packs, each step in a group of
its own with a hard limit (v1 or v2; needs the rights of root), the page cache dropped before. Then
each once more, killed (SIGKILL) after half of the time that it took (`calibrate`, which keeps what it has
between groups of windows, after three quarters) and started again: the results must be the same bytes.
DIR gets the results, about 1.5 times the model's size; they are removed as soon as they are not needed.

Peak: the largest sum of anonymous memory of the process, sampled every 50 ms, and the group's own
largest usage, which has the page cache in it and therefore comes close to any limit.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")
GIB = 1 << 30


class Group:
    def __init__(self, limit):
        self.v1 = (V1 / "memory.limit_in_bytes").exists()
        self.path = (V1 if self.v1 else V2) / f"penstock-at-scale-{os.getpid()}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if self.v1 else "memory.max")).write_text(str(limit))

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        path = self.path / ("memory.max_usage_in_bytes" if self.v1 else "memory.peak")
        return int(path.read_text()) if path.exists() else None

    def remove(self):
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)


def anonymous_bytes(pid):
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def bytes_read(pid):
    try:
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def run(args, command, kill_after=None):
    """One process in a group of its own; its figures."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    group = Group(int(args.limit * GIB))
    with tempfile.TemporaryFile() as log:
        start = time.monotonic()
        child = subprocess.Popen(
            [args.penstock, *command], cwd=args.work, stdout=log, stderr=log, preexec_fn=group.enter
        )
        peak = read = 0
        killed = False
        while child.poll() is None:
            peak = max(peak, anonymous_bytes(child.pid))
            read = max(read, bytes_read(child.pid))
            if kill_after is not None and not killed and time.monotonic() - start > kill_after:
                child.send_signal(signal.SIGKILL)
                killed = True
            time.sleep(0.05)
        seconds = time.monotonic() - start
        result = {
            "command": ["penstock", *command],
            "exit_code": child.returncode,
            "seconds": round(seconds, 3),
            "bytes_read": read,
            "peak_anonymous_bytes": peak,
            "peak_group_bytes": group.peak(),
        }
        group.remove()
        log.seek(0)
        text = log.read().decode(errors="replace").replace("\r", "\n")
        lines = [line for line in text.splitlines() if line.strip()]
        result["resumed"] = [line.strip() for line in lines if "resum" in line or "goes on" in line]
        if child.returncode not in (0, -signal.SIGKILL) or (child.returncode != 0 and not killed):
            print("\n".join(lines[-20:]), file=sys.stderr)
            sys.exit(f"{' '.join(command)} ended with {child.returncode}")
    print(f"{command[0]}: {seconds:.1f} s, peak {peak / GIB:.2f} GiB", file=sys.stderr)
    return result


def same(a, b):
    return subprocess.run(["cmp", "-s", a, b]).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", required=True, type=os.path.abspath)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--limit", type=float, default=8, help="GiB")
    parser.add_argument("--windows", type=int, default=8, help="of 512 random tokens, to calibrate with")
    parser.add_argument("--keep", default="50%")
    args = parser.parse_args()
    work = args.work
    model = os.path.relpath(args.model, work)
    ids = random.Random(1)
    (work / "calibration.ids").write_text(
        " ".join(str(ids.randrange(1000, 100000)) for _ in range(512 * args.windows))
    )
    steps = {
        "calibrate": ["calibrate", model, "--text", "calibration.ids", "-o", "stats.gguf"],
        "prune": ["prune", model, "--stats", "stats.gguf", "--keep", args.keep, "-o", "pruned.gguf"],
        "requantise": ["requantise", "pruned.gguf", "--experts", "Q2_0", "-o", "small.gguf"],
        "pack": ["pack", "small.gguf", "-o", "small.xpk"],
    }  # fmt: skip
    outputs = {"calibrate": "stats.gguf", "prune": "pruned.gguf", "requantise": "small.gguf", "pack": "small.xpk"}
    report = {
        "what": "surgery on a large model in a memory cgroup, cold page cache",
        "program": subprocess.run([args.penstock, "--version"], capture_output=True, text=True).stdout.split("\n")[0],
        "limit_bytes": int(args.limit * GIB),
        "model_bytes": args.model.stat().st_size,
        "steps": {},
    }
    for name, command in steps.items():
        entry = run(args, command)
        if name in outputs:
            entry["bytes_written"] = (work / outputs[name]).stat().st_size
            whole = run(args, [*command[:-1], "again"], kill_after=entry["seconds"] * (0.75 if name == "calibrate" else 0.5))
            rest = run(args, [*command[:-1], "again"])
            entry["killed"] = {
                "killed_after_seconds": whole["seconds"],
                "killed": whole["exit_code"] == -signal.SIGKILL,
                "seconds_of_the_second_run": rest["seconds"],
                "said": rest["resumed"],
                "same_bytes": same(work / outputs[name], work / "again"),
            }
            for left in work.glob("again*"):
                left.unlink()
        report["steps"][name] = entry
        if name == "requantise":
            (work / "pruned.gguf").unlink()
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
