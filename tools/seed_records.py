#!/usr/bin/env python3
"""Writes docs/seed/records: what is left of eleven runs of other programs, as peer records.

The figures are those that an audit of these runs found in their raw output. What was not archived
then (command lines, environments, outputs, the executable's hash) is null here. Times are seconds of
that day, which is not known: the results were written at 06:52:33, the sources at 06:54:06, the
executable at 06:54:09.
"""
import argparse
import hashlib
import json
import pathlib


def clock(hours, minutes, seconds):
    return float(3600 * hours + 60 * minutes + seconds)


RESULTS, SOURCES, EXECUTABLE = clock(6, 52, 33), clock(6, 54, 6), clock(6, 54, 9)
STREAMED = {"executable_modified": EXECUTABLE, "sources_modified": SOURCES}
# What every run of the streaming engine printed; the first three are strings of its source.
PRINTED = {
    "dropped": "1.60 GB", "anonymous": "0.00 GB anon", "slots_stolen": "0 slots stolen",
    "scratch": "1.36 GB", "slots": 2728, "arena_gb": 3.80, "locked_gb": 2.90, "decode_tokens": 63,
}


def streamed(prompt, **values):
    return {
        "program": "strata-metal", "times": STREAMED, "prompt": prompt, "stop": "token limit",
        "settings": {"watchdog": {"swap_limit_mib": 128}},
        "watchdog": {"policy": {"swap_limit_mib": 64, "min_available_gib": 2.2}},
        "values": {**PRINTED, **values},
    }


def llama(prompt, stop, **values):
    return {
        "program": "llama.cpp", "times": {}, "prompt": prompt, "stop": stop, "settings": None,
        "watchdog": None, "values": values,
    }


RUNS = {
    # 63 steps of 72.49 ms; how long its short prompt was is not archived.
    "streamed-short": streamed(
        None, decode_ms=4566.87, arena_share=0.8433, read_ahead_share=0.0691, misses_per_token=42.1,
        decode_mb_per_token=107.8, stall_ms_per_token=16.05, compute_ms_per_token=55.79,
        load_ms=384.31, fill_ms=500, fill_gb_per_s=6.94),
    "streamed-1024": streamed(
        1024, prefill_tokens=1024, cold_prefill_ms=3191.98, decode_ms=4656.22, arena_share=0.8566,
        read_ahead_share=0.0566, misses_per_token=41.7, decode_mb_per_token=99.9, load_ms=340.83,
        fill_ms=600, fill_gb_per_s=6.84),
    "streamed-2048": streamed(
        2048, prefill_tokens=2048, cold_prefill_ms=5632.86, decode_ms=4861.89, arena_share=0.8343,
        read_ahead_share=0.0730, misses_per_token=44.5, decode_mb_per_token=114.5, load_ms=340.94,
        fill_ms=500, fill_gb_per_s=6.94),
    "unpatched-ub1024": llama(
        1264, "token limit", prefill_tokens=1264, prefill_tok_s=14.3, decode_tokens=64,
        decode_tok_s=1.4, run_storage_mb=105851.73),
    "patched-short": llama(
        22, "token limit", prefill_tokens=22, decode_tokens=64, decode_tok_s=3.22,
        run_storage_mb=33428.34),
    "patched-ub1024": llama(
        1264, "end of text", prefill_tokens=1264, prefill_tok_s=38.11, decode_tokens=1,
        decode_ms=0.0),
    "patched-ub2048": llama(
        1264, "end of text", prefill_tokens=1264, prefill_tok_s=63.27, decode_tokens=1,
        decode_ms=0.0),
    "patched-cache-1536": llama(
        None, "token limit", decode_tokens=64, decode_tok_s=0.28),
}


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def record_id(record):
    """As measure/archive.h has it: the hash of the hashes of the members."""
    return sha256("".join(f"{name} {sha256(canonical(record[name]))}\n" for name in sorted(record)))


def record_of(name, run):
    return {
        "schema": "penstock-peer-record", "version": 1, "run_id": sha256("seed " + name)[:32],
        "started": None, "ended": RESULTS,
        "producer": {"program": run["program"], "version": None, "executable_sha256": None,
                     "executable_modified": None, **run["times"]},
        "recorder": {"program": "tools/seed_records.py"},
        "argv": None, "environment": None, "machine": None,
        "inputs": {"model": {"path": "K256", "model_id": None},
                   "prompt": {"file": None, "tokens": run["prompt"]}},
        "settings": run["settings"], "quality_key": None, "limit": None,
        "memory": {"swapped_out": 0}, "watchdog": run["watchdog"], "output": None, "parser": None,
        "values": run["values"], "note": name,
        "outcome": {"state": "finished", "exit_code": None, "error": None,
                    "stop_reason": run["stop"]},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = pathlib.Path(__file__).parent.parent / "docs/seed/records"
    parser.add_argument("--out", type=pathlib.Path, default=default)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, run in RUNS.items():
        record = record_of(name, run)
        identity = record_id(record)
        (out / f"{identity}.json").write_text(canonical(record))
        print(f'{name} = "{identity}"')


if __name__ == "__main__":
    main()
