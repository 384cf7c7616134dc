"""Writes GGUF files by the project's exporter (tools/export) from metadata as fixtures hold it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Mapping

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "export"))
import gguf_export  # noqa: E402

Kind = gguf.GGUFValueType
KINDS: dict[str, Kind] = {
    "u32": Kind.UINT32,
    "i32": Kind.INT32,
    "u64": Kind.UINT64,
    "f32": Kind.FLOAT32,
    "bool": Kind.BOOL,
    "string": Kind.STRING,
}


def value(kind: str, content: Any) -> gguf_export.Value:
    if kind.endswith("[]"):
        return gguf_export.array(content, KINDS[kind[:-2]])
    return gguf_export.Value(content, KINDS[kind])


def write(path: Path, metadata: Mapping[str, tuple[str, Any]], tensors: Mapping[str, np.ndarray]) -> None:
    """Metadata {key: (type, value)} and tensors {name: array} as F32; an array's last axis is ne0."""
    rest = dict(metadata)
    architecture = str(rest.pop("general.architecture")[1])
    gguf_export.write(path, architecture, {key: value(*entry) for key, entry in rest.items()}, tensors)
