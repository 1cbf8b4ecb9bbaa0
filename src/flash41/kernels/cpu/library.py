"""The compiled library as ctypes sees it: records of `src/api.h`, signatures of `src/library.h`."""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from flash41.errors import KernelError, complaint
from flash41.kernels.cpu.level import Level

INTERFACE = 2
"""Number of the record layouts; `flash41_interface` of a library must agree."""

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Dtypes of activations that the library reads and writes."""

FP8_32X32 = 0
FP4_1X32 = 1
PLAIN_BF16 = 2
PLAIN_F32 = 3
"""Formats of weights."""

OUT_OF_MEMORY = 1
"""What an operation returns that found no memory."""


class Strides(ctypes.Structure):
    """Bytes from one band of 32 rows, row of a band, chunk of 64 channels to the next."""

    _fields_ = (("band", c_int64), ("row", c_int64), ("chunk", c_int64))


class Matrix(ctypes.Structure):
    """A weight where it lies."""

    _fields_ = (
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("rows", c_int64),
        ("format", c_int64),
        ("code_bytes", Strides),
        ("scale_bytes", Strides),
    )


class Rows(ctypes.Structure):
    """Rows of activations."""

    _fields_ = (
        ("data", c_void_p),
        ("rows", c_int64),
        ("width", c_int64),
        ("dtype", c_int64),
        ("row_elements", c_int64),
    )


class Expert(ctypes.Structure):
    """The three weights of an expert."""

    _fields_ = (("w1", Matrix), ("w3", Matrix), ("w2", Matrix))


class Experts(ctypes.Structure):
    """All experts of a layer and who visits them."""

    _fields_ = (
        ("x", Rows),
        ("ids", c_void_p),
        ("weights", c_void_p),
        ("topk", c_int64),
        ("visited", c_void_p),
        ("bank", POINTER(Expert)),
        ("num_visited", c_int64),
        ("limit", c_float),
        ("quantize", c_int32),
        ("routed", c_void_p),
        ("shared", c_void_p),
    )


class StoredRecord(ctypes.Structure):
    """Rows of a cache where they lie."""

    _fields_ = (
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("format", c_int64),
        ("channels", c_int64),
        ("inner", c_int64),
        ("outer_bytes", c_int64),
        ("row_bytes", c_int64),
        ("scale_outer_bytes", c_int64),
        ("scale_row_bytes", c_int64),
        ("run", c_int64),
        ("run_bytes", c_int64),
    )


class Attention(ctypes.Structure):
    """Queries, the rows they may read, and their lists."""

    _fields_ = (
        ("q", c_void_p),
        ("own", StoredRecord),
        ("plane", StoredRecord),
        ("num_own", c_int64),
        ("index", c_void_p),
        ("counts", c_void_p),
        ("sink", c_void_p),
        ("out", c_void_p),
        ("rows", c_int64),
        ("heads", c_int64),
        ("width", c_int64),
        ("length", c_int64),
        ("index_stride", c_int64),
        ("dtype", c_int64),
        ("scale", c_float),
    )


class FullAttention(ctypes.Structure):
    """Queries, keys and values of all heads."""

    _fields_ = (
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("out", c_void_p),
        ("rows", c_int64),
        ("heads", c_int64),
        ("width", c_int64),
        ("dtype", c_int64),
        ("scale", c_float),
    )


class Scores(ctypes.Structure):
    """Index queries, the keys they are scored against, and where scores go."""

    _fields_ = (
        ("q", c_void_p),
        ("weights", c_void_p),
        ("keys", StoredRecord),
        ("pages", c_void_p),
        ("scores", c_void_p),
        ("requests", c_int64),
        ("length", c_int64),
        ("heads", c_int64),
        ("width", c_int64),
        ("dtype", c_int64),
        ("num_pages", c_int64),
        ("rows_per_page", c_int64),
        ("num_keys", c_int64),
        ("blocks", c_void_p),
        ("num_blocks", c_int64),
        ("block_size", c_int64),
    )


class Mixes(ctypes.Structure):
    """Streams, the parameters of a hyper-connection, and where its coefficients go."""

    _fields_ = (
        ("x", c_void_p),
        ("fn", POINTER(Matrix)),
        ("base", c_void_p),
        ("scale", c_void_p),
        ("pre", c_void_p),
        ("post", c_void_p),
        ("comb", c_void_p),
        ("rows", c_int64),
        ("streams", c_int64),
        ("width", c_int64),
        ("dtype", c_int64),
        ("iterations", c_int64),
        ("hc_eps", c_double),
        ("norm_eps", c_double),
    )


POINTERS = (c_void_p,)
COUNTS = (c_int64,)

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "interface": (),
    "lanes": (),
    "usable": (),
    "has_nan_code": (c_void_p, c_int64, c_int64, c_int64),
    "linear": (c_int, c_void_p, c_int64, c_void_p, c_int, c_void_p, c_int),
    "grouped": (c_int, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int),
    "experts": (c_int, c_void_p),
    "attention": (c_int, c_void_p),
    "full_attention": (c_int, c_void_p),
    "index_scores": (c_int, c_void_p),
    "select_rows": (c_int, *POINTERS * 2, *COUNTS * 3, c_void_p),
    "candidate_blocks": (c_int, *POINTERS * 2, *COUNTS * 4, c_void_p),
    "inside_blocks": (c_int, c_void_p, *COUNTS * 4, c_void_p),
    "route": (c_int, *POINTERS * 2, *COUNTS * 4, c_float, *POINTERS * 2),
    "rms_norm": (c_int, *POINTERS * 2, c_int, c_double, c_void_p),
    "rotate": (c_int, *POINTERS * 3, c_int, c_void_p, *COUNTS * 4, c_int),
    "pool_group": (c_int, *POINTERS * 3, *COUNTS * 3),
    "fake_quantize": (c_int, c_void_p, c_int, c_void_p),
    "quantize": (c_int, c_void_p, c_int, *POINTERS * 3),
    "table_rows": (c_int, *POINTERS * 3, *COUNTS * 4, c_int, *POINTERS * 2),
    "engram_gate": (c_int, *POINTERS * 4, c_int, c_int, c_int, c_double, *COUNTS * 3, c_void_p),
    "engram_apply": (c_int, *POINTERS * 4, *COUNTS * 3, c_int),
    "mixes": (c_int, c_void_p),
    "collapse": (c_int, *POINTERS * 3, *COUNTS * 3, c_int),
    "apply": (c_int, *POINTERS * 5, *COUNTS * 3, c_int),
    "stream": (c_int, c_void_p, c_int64, c_void_p),
}
"""Arguments of each function without its prefix; all return an int."""


class Library:
    """One loaded library; `call` runs a function and turns its failure into an error."""

    def __init__(self, path: Path, level: Level) -> None:
        self.path = path
        self.level = level
        self.threads: int | None = None
        """Threads that compute an operation; None stands for as many as torch uses."""
        try:
            loaded = ctypes.CDLL(str(path))
            self._functions = {name: getattr(loaded, f"flash41_{name}") for name in SIGNATURES}
        except (OSError, AttributeError) as error:
            raise KernelError(complaint("compiled kernels", path.name, "a library that loads", str(error))) from error
        for name, arguments in SIGNATURES.items():
            self._functions[name].argtypes = arguments
            self._functions[name].restype = c_int
        if (found := self._functions["interface"]()) != INTERFACE:
            raise KernelError(complaint("interface of the compiled kernels", found, str(INTERFACE)))
        if not self._functions["usable"]():
            raise KernelError(complaint(f"CPU level {level.value}", "refused by this system", "leave to use it"))

    def ask(self, name: str, *arguments: Any) -> int:
        """What a function that cannot fail returns."""
        answer: int = self._functions[name](*arguments)
        return answer

    def call(self, name: str, *arguments: Any) -> None:
        """Runs an operation on this library's threads.

        Raises KernelError when memory ran out, or when the system refuses a thread what the level needs.
        """
        answer = self._functions[name](self.threads or torch.get_num_threads(), *arguments)
        if answer == OUT_OF_MEMORY:
            raise KernelError(complaint(f"working memory of {name}", "none left", "room for one operation"))
        if answer:
            remedy = "choose a lower level with --backend cpu:LEVEL"
            raise KernelError(complaint(f"tiles for a thread of {name}", "refused by this system", "granted", remedy))
