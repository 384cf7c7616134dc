#!/usr/bin/env python3
"""How fast /health and /metrics answer while a long prompt runs.

    latency.py [-m MODEL.gguf] [--penstock build/release/penstock] [--out FILE.json]

Each question is a connection of its own, timed from connect to the last byte, this program's own share included. The
prompt is random token ids; a new one is sent when one is done before all questions were asked. An answer counts when
it says itself that a request was running. The wish is under 50 ms.
"""
from __future__ import annotations

import json
import os
import random
import time

from serving import Served, archive, arguments, busy_seconds, metric, serve, summary

WISH_MS = 50


def running(path: str, page: str) -> bool:
    """Does this answer say that the prompt is running?"""
    if path == "/health":
        return bool(json.loads(page)["requests"]["running"] == 1)
    return metric(page, "penstock_requests_running") == 1


def ask(served: Served, rng: random.Random, questions: int, prompt: int, times: dict[str, list[float]]) -> int:
    """Sends one long prompt and asks until it is done or enough was asked. Returns the answers that found none running."""
    ids = [rng.randrange(1000) for _ in range(prompt)]
    idle = 0
    with served.send("POST", "/v1/completions", {"prompt": ids, "max_tokens": 1, "ignore_eos": True}) as work:
        time.sleep(0.05)
        while any(len(found) < questions for found in times.values()):
            for path in times:
                started = time.perf_counter()
                page = served.get(path)
                took = (time.perf_counter() - started) * 1e3
                if not running(path, page):
                    idle += 1
                    continue
                times[path].append(took)
            if idle:
                break
            time.sleep(rng.uniform(0, 0.01))  # not in step with the engine
        answer = b""
        while part := work.recv(65536):
            answer += part
    if b" 200 " not in answer.split(b"\r\n", 1)[0]:
        raise SystemExit(answer.decode())
    return idle


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--questions", type=int, default=400, help="to each of the two")
    parser.add_argument("--prompt", type=int, default=4000, help="tokens")
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    rng = random.Random(7)
    times: dict[str, list[float]] = {"/health": [], "/metrics": []}
    with serve(args, "--ctx", str(args.ctx), "--threads", str(args.threads)) as served:
        prompts = idle = 0
        wall, busy, own = time.perf_counter(), busy_seconds(), served.cpu_seconds() + time.process_time()
        while any(len(found) < args.questions for found in times.values()):
            idle += ask(served, rng, args.questions, args.prompt, times)
            prompts += 1
        wall = time.perf_counter() - wall
        others = busy_seconds() - busy - (served.cpu_seconds() + time.process_time() - own)
        speed = served.metric('penstock_tokens_per_second{phase="prompt"}')
    report = {path: summary(found) for path, found in times.items()}
    for path, row in report.items():
        print(f"{path:9} {row['n']} answers while a prompt ran: median {row['median']:.2f} ms, p95 {row['p95']:.2f}, "
              f"max {row['max']:.2f}")
    print(f"{prompts} prompts of {args.prompt} tokens at {speed:.0f} tokens/s on {args.threads} threads; {idle} answers "
          f"came when none was running and are left out; {max(0.0, others / wall):.2f} cores busy with other work")
    within = all(row["max"] < WISH_MS for row in report.values())
    print(f"{'all' if within else 'NOT all'} under {WISH_MS} ms")
    archive(args, {"threads": args.threads, "prompt_tokens": args.prompt, "prompts": prompts,
                   "prompt_tokens_per_s": speed, "left_out_because_none_ran": idle,
                   "cores_busy_with_other_work": round(max(0.0, others / wall), 2), "milliseconds": report,
                   "all_under_50_ms": within})


if __name__ == "__main__":
    main()
