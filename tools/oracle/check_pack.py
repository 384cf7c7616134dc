#!/usr/bin/env python3
"""Reads a pack by docs/pack.md alone and compares it with the model it was made from.

Independent of the program: tensors come from the `gguf` package, checksums from libxxhash, identities from
hashlib. Checks every field, every record's bytes against the tensors, every checksum, and the three
identities. Types that the `gguf` package does not know (Q2_0) cannot be checked. Usage: check_pack.py PACK MODEL.gguf [SHARD...] [--dense DENSE.gguf]
"""

import argparse
import ctypes
import ctypes.util
import hashlib
import json
import os
import re
import struct
import sys

import gguf
import numpy as np

BANK = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.weight$")
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def xxh64(data):
    library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
    library.XXH64.restype = ctypes.c_uint64
    library.XXH64.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    return library.XXH64(bytes(data), len(data), 0)


class Header:
    """The pairs and descriptors of one GGUF file, as they stand in it."""

    def __init__(self, path):
        self.path = path
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        self.at = 0
        magic, _, n_tensors, n_pairs = self.take("<4sIQQ")
        assert magic == b"GGUF"
        self.pairs, self.tensors = {}, []
        alignment = 32
        for _ in range(n_pairs):
            key = self.text()
            (kind,) = self.take("<I")
            element, count = kind, 1
            if kind == 9:
                element, count = self.take("<IQ")
                start = self.at
                for _ in range(count):
                    self.text() if element == 8 else self.take("<" + SCALARS[element])
                value = bytes(self.data[start:self.at])
            else:
                value = self.text() if kind == 8 else bytes(self.raw(struct.calcsize(SCALARS[kind])))
            self.pairs[key] = (kind, element, count, value)
            if key == b"general.alignment":
                alignment = struct.unpack("<I", value)[0]
        for _ in range(n_tensors):
            name = self.text()
            (n_dims,) = self.take("<I")
            dims = self.take(f"<{n_dims}Q")
            kind, offset = self.take("<IQ")
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
            n_bytes = int(np.prod(dims, dtype=np.uint64)) // block * size
            self.tensors.append((name, kind, dims, offset, n_bytes))
        self.header_bytes = self.at
        self.start = (self.at + alignment - 1) // alignment * alignment

    def raw(self, n):
        self.at += n
        return self.data[self.at - n:self.at]

    def take(self, form):
        return struct.unpack(form, bytes(self.raw(struct.calcsize(form))))

    def text(self):
        (n,) = self.take("<Q")
        return bytes(self.raw(n))

    def bytes_of(self, tensor):
        return self.data[self.start + tensor[3]:self.start + tensor[3] + tensor[4]]


def ends(data):
    n = min(4096, len(data))
    return bytes(data[:n]) + bytes(data[-n:])


def identities(files):
    header = hashlib.sha256()
    for f in files:
        header.update(bytes(f.data[:f.header_bytes]))
    model = header.copy()
    for f in files:
        for tensor in f.tensors:
            model.update(ends(f.bytes_of(tensor)))
    return header.digest(), model.digest()


def dense_identity(files):
    digest = hashlib.sha256()
    pairs = {k: v for k, v in files[0].pairs.items()
             if k != b"general.alignment" and not k.startswith(b"split.")}
    digest.update(struct.pack("<Q", len(pairs)))
    for key in sorted(pairs):
        kind, element, count, value = pairs[key]
        digest.update(struct.pack("<Q", len(key)) + key)
        digest.update(struct.pack("<IIQQ", kind, element, count, len(value)) + value)
    tensors = sorted(((t, f) for f in files for t in f.tensors), key=lambda x: x[0][0])
    digest.update(struct.pack("<Q", len(tensors)))
    for (name, kind, dims, offset, n_bytes), f in tensors:
        digest.update(struct.pack("<Q", len(name)) + name + struct.pack("<II", kind, len(dims)))
        digest.update(struct.pack(f"<{len(dims)}Q", *dims))
        if not BANK.match(name.decode()):
            digest.update(ends(f.bytes_of((name, kind, dims, offset, n_bytes))))
    return digest.digest()


def up(n, to):
    return (n + to - 1) // to * to


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack")
    parser.add_argument("model", nargs="+")
    parser.add_argument("--dense")
    args = parser.parse_args()
    pack = np.memmap(args.pack, dtype=np.uint8, mode="r")
    files = [Header(path) for path in args.model]
    head = bytes(pack[:4096])
    magic, major, minor, align, flags, kind, n_layers, entry = struct.unpack_from("<8sHHIIIII", head)
    assert (magic, major, kind, entry) == (b"XPRTPACK", 1, 1, 128), "header"
    size, table, sums_off, sums_bytes, meta_off, meta_bytes, data_off, n = struct.unpack_from("<8Q", head, 32)
    assert size == len(pack) == os.path.getsize(args.pack) and flags & 1
    header_sum, table_sum, sums_sum, meta_sum = struct.unpack_from("<4Q", head, 224)
    assert header_sum == xxh64(head[:224] + bytes(8) + head[232:])
    assert table_sum == xxh64(pack[table:table + n_layers * entry])
    assert sums_sum == xxh64(pack[sums_off:sums_off + sums_bytes]) and sums_bytes == 8 * n
    assert meta_sum == xxh64(pack[meta_off:meta_off + meta_bytes])
    header_id, model_id = identities(files)
    assert head[96:128] == header_id and head[256:288] == model_id, "identity"
    assert struct.unpack_from("<I", head, 288) == (0,)
    assert head[296:328] == dense_identity(files), "dense identity"
    if args.dense:
        assert head[296:328] == dense_identity([Header(args.dense)]), "dense-only file"
    content = head[128:160]
    if any(content):
        whole = hashlib.sha256()
        for f in files:
            whole.update(f.data)
        assert content == whole.digest(), "content identity"
    assert not any(head[328:]) and not any(head[292:296])

    banks = {}
    for path in args.model:
        for tensor in gguf.GGUFReader(path).tensors:
            match = BANK.match(tensor.name)
            if match:
                banks[int(match[1]), match[2]] = tensor
    sums = struct.unpack_from(f"<{n}Q", pack, sums_off)
    record, strides, end = 0, set(), data_off
    for i in range(n_layers):
        f = struct.unpack_from("<10I8Q", pack, table + i * entry)
        layer, role, n_expert, _, n_embd, n_ff, *types, zero = f[:10]
        gate_b, up_b, down_b, up_at, down_at, used, stride, base = f[10:]
        assert zero == 0 and role in (0, 1) and base == end and base % align == 0
        assert up_at == up(gate_b, 64) and down_at == up(up_at + up_b, 64)
        assert used == down_at + down_b and stride == up(used, align)
        strides.add(stride)
        merged = banks.get((layer, "gate_up"))
        for e in range(n_expert):
            expected = np.zeros(stride, dtype=np.uint8)
            flat = [np.ascontiguousarray(banks[layer, m].data[e]).view(np.uint8).reshape(-1)
                    for m in (("gate_up", "down") if merged is not None else ("gate", "up", "down"))]
            if merged is not None:
                flat[:1] = np.split(flat[0], 2)
            for at, length, matrix in zip((0, up_at, down_at), (gate_b, up_b, down_b), flat):
                assert len(matrix) == length
                expected[at:at + length] = matrix
            got = pack[base + e * stride:base + (e + 1) * stride]
            assert np.array_equal(got, expected), f"layer {layer} expert {e}"
            assert sums[record] == xxh64(got), f"checksum of layer {layer} expert {e}"
            record += 1
        for k, m in enumerate(("gate", "up", "down")):
            tensor = merged if merged is not None and m != "down" else banks[layer, m]
            assert int(tensor.tensor_type) == types[k] and int(tensor.shape[2]) == n_expert
        assert (n_embd, n_ff) == (int(banks[layer, "down"].shape[1]), int(banks[layer, "down"].shape[0]))
        end = base + n_expert * stride
    assert record == n and end == sums_off and bool(flags & 8) == (len(strides) == 1)
    metadata = json.loads(bytes(pack[meta_off:meta_off + meta_bytes]))
    print(f"{args.pack}: version {major}.{minor}, {n} records of {n_layers} layers, made by "
          f"{metadata['tool']}: all as docs/pack.md says")


if __name__ == "__main__":
    sys.exit(main())
