"""Writes GGUF files from metadata with explicit types and C-order arrays, by the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Mapping

import gguf
import numpy as np

from hf_models import Meta

SCALARS: dict[str, gguf.GGUFValueType] = {
    "u32": gguf.GGUFValueType.UINT32,
    "i32": gguf.GGUFValueType.INT32,
    "u64": gguf.GGUFValueType.UINT64,
    "f32": gguf.GGUFValueType.FLOAT32,
    "bool": gguf.GGUFValueType.BOOL,
    "string": gguf.GGUFValueType.STRING,
}

# The block type of a tensor, from its name and array; None keeps F32.
TypeChoice = Callable[[str, np.ndarray], gguf.GGMLQuantizationType | None]


def write(path: Path, metadata: Meta, tensors: Mapping[str, np.ndarray], choose: TypeChoice | None = None) -> None:
    """Metadata {key: (type, value)} and tensors {name: array}; an array's last axis is ne0."""
    arch = str(metadata["general.architecture"][1])
    writer = gguf.GGUFWriter(path, arch)
    for key, (kind, value) in metadata.items():
        if key == "general.architecture":
            continue
        put(writer, key, kind, value)
    for name, values in tensors.items():
        data = np.ascontiguousarray(values, dtype=np.float32)
        kind_of_block = choose(name, data) if choose else None
        if kind_of_block is None:
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, gguf.quants.quantize(data, kind_of_block), raw_dtype=kind_of_block)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def put(writer: gguf.GGUFWriter, key: str, kind: str, value: Any) -> None:
    if kind.endswith("[]"):
        writer.add_key_value(key, list(value), gguf.GGUFValueType.ARRAY, sub_type=SCALARS[kind[:-2]])
    else:
        writer.add_key_value(key, value, SCALARS[kind])
