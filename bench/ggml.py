"""ggml's encoders, from a shared library: ggml_quantize_chunk and ggml_row_size with their types."""

from __future__ import annotations

import ctypes
import pathlib


def library(path: pathlib.Path) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(path))
    pointer, wide = ctypes.c_void_p, ctypes.c_int64
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, wide, wide, wide, pointer]
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_row_size.argtypes = [ctypes.c_int, wide]
    lib.ggml_row_size.restype = ctypes.c_size_t
    return lib
