#!/usr/bin/env python3
"""Writes the seeds of fuzz_gguf: small valid files that reach every branch of the reader.

usage: make_gguf_corpus.py FOLDER
"""
import os
import struct
import sys


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def build(pairs, tensors, data, version=3, alignment=32):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    for key, kind, payload in pairs:
        out += text(key) + struct.pack("<I", kind) + payload
    for name, dims, kind, offset in tensors:
        out += text(name) + struct.pack("<I", len(dims))
        out += b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, offset)
    out += b"\0" * (-len(out) % alignment)
    return out + data


def array(kind, count, payload):
    return struct.pack("<IQ", kind, count) + payload


ARCH = ("general.architecture", 8, text("test"))
SEEDS = {
    "worked": build([ARCH], [("a", [64], 42, 0), ("b", [32, 2], 8, 32)], bytes(128)),
    "version2": build([ARCH], [("a", [64], 42, 0)], bytes(32), version=2),
    "aligned8": build([ARCH, ("general.alignment", 4, struct.pack("<I", 8))],
                      [("a", [4], 0, 0), ("b", [2, 2, 2, 2], 1, 16)], bytes(48), alignment=8),
    "scalars": build([("u8", 0, b"\1"), ("i8", 1, b"\xff"), ("u16", 2, b"\1\2"), ("i16", 3, b"\1\2"),
                      ("u32", 4, bytes(4)), ("i32", 5, bytes(4)), ("f32", 6, bytes(4)),
                      ("bool", 7, b"\1"), ("str", 8, text("x")), ("u64", 10, bytes(8)),
                      ("i64", 11, bytes(8)), ("f64", 12, bytes(8))], [], b""),
    "arrays": build([("s", 9, array(8, 3, text("a") + text("") + text("bc"))),
                     ("b", 9, array(7, 2, b"\0\1")), ("i", 9, array(5, 2, bytes(8))),
                     ("f", 9, array(6, 1, bytes(4))), ("e", 9, array(8, 0, b"")),
                     ("u", 9, array(10, 1, bytes(8)))], [], b""),
    "split": build([ARCH, ("split.no", 2, bytes(2)), ("split.count", 2, bytes(2)),
                    ("split.tensors.count", 5, b"\1\0\0\0")], [("t", [8], 0, 0)], bytes(32)),
    "legacy": build([ARCH], [("w", [1280], 42, 0), ("x", [32], 8, 352)], bytes(386)),
    "dense_only": build([ARCH], [("q", [32], 8, 0), ("blk.0.ffn_up_exps.weight", [32, 4, 8], 8, 64)],
                        bytes(64)),
    "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
    "html": b"<!DOCTYPE html><html></html>",
}
SEEDS.update({f"type{kind}": build([], [("t", [block, 2], kind, 0)], bytes(2 * size))
              for kind, block, size in [(10, 256, 84), (14, 256, 210), (29, 256, 56), (30, 1, 2),
                                        (35, 256, 66), (39, 32, 17), (40, 64, 36), (28, 1, 8)]})

os.makedirs(sys.argv[1], exist_ok=True)
for name, content in SEEDS.items():
    with open(os.path.join(sys.argv[1], name), "wb") as out:
        out.write(content)
