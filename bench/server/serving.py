"""What the server's benches share: a server of their own, a request over a bare socket, the machine's load."""
from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
TICKS = os.sysconf("SC_CLK_TCK")


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, default=ROOT / "models/sample-qwen4exp-q8_0.gguf")
    parser.add_argument("--penstock", type=Path, default=ROOT / "build/release/penstock")
    parser.add_argument("--out", type=Path, help="where the results go as JSON")
    return parser


class Served:
    """A running `penstock serve`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> socket.socket:
        """A connection on which the request has been sent."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(head.encode() + data)
        return connection

    def get(self, path: str) -> str:
        """The body of the answer."""
        parts = []
        with self.send("GET", path) as connection:
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts).decode().partition("\r\n\r\n")[2]

    def metric(self, sample: str) -> float:
        return metric(self.get("/metrics"), sample)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)


def metric(page: str, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", page, re.MULTILINE)
    if not found:
        raise SystemExit(f"/metrics has no {sample}")
    return float(found[1])


@contextmanager
def serve(args: argparse.Namespace, *options: str) -> Iterator[Served]:
    """A server with the model loaded, on a free port; it must end cleanly."""
    command = [str(args.penstock), "serve", "-m", str(args.model), "--port", "0", *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stderr=log)
        try:
            yield Served(process, wait_until_loaded(process, log))
        finally:  # on an interrupt too
            process.terminate()
            rc = process.wait()
    if rc != 0:
        raise SystemExit(f"the server ended with {rc}")


def wait_until_loaded(process: subprocess.Popen[bytes], log: IO[str]) -> int:
    """The port, when the model is loaded."""
    while process.poll() is None:
        log.seek(0)
        text = log.read()
        if "the model is loaded" in text and (found := re.search(r"listening on http://[^ ]*:(\d+) ", text)):
            return int(found[1])
        time.sleep(0.05)
    log.seek(0)
    raise SystemExit(f"the server did not start:\n{log.read()}")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def busy_seconds() -> float:
    """CPU time that this machine has spent so far, on anything, stolen time included."""
    values = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / TICKS


def summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"n": len(ordered), "median": statistics.median(ordered), "p95": ordered[int(0.95 * (len(ordered) - 1))],
            "max": ordered[-1]}


def archive(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Writes --out: the results beside what they were measured with, without a path of this machine."""
    if not args.out:
        return
    version = subprocess.run([args.penstock, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    facts = {"model": args.model.name, "file_bytes": args.model.stat().st_size, "version": version.splitlines()[0],
             "cpu": cpu[1] if cpu else "", "cores": os.cpu_count(),
             "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    args.out.write_text(json.dumps({**facts, **results}, indent=1) + "\n")
