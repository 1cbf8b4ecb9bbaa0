"""Libraries of levels this CPU does not have, built for AVX2 with their instructions emulated (tests/emulation)."""

import fcntl
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import platformdirs

from flash41.kernels.cpu.backend import CpuKernels
from flash41.kernels.cpu.build import CACHE_VARIABLE, FLAGS, Compiler, find_compiler, sources
from flash41.kernels.cpu.check import check_products
from flash41.kernels.cpu.level import Level
from flash41.kernels.cpu.library import Library

EMULATED = (Level.AVX512, Level.AVX512BF16, Level.AMX)
FOLDER = Path(__file__).resolve().parents[1] / "emulation"
# -O1: the loops of the emulation need some optimisation, and more of it costs more than it saves.
EMULATION_FLAGS = (*FLAGS, "-O1", *Level.AVX2.compiler_flags, "-Wno-ignored-attributes", f"-I{FOLDER}")


def emulated_library(level: Level) -> Path:
    """The library of a level as this CPU can run it, built unless it is in the cache."""
    compiler = find_compiler(dict(os.environ))
    headers = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}
    texts = {**sources(), "permission.h": headers["permission.h"]}
    told = repr([level.value, compiler, EMULATION_FLAGS, headers, texts])
    named = os.environ.get(CACHE_VARIABLE)
    folder = (Path(named) if named else platformdirs.user_cache_path("flash41")) / "emulated"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{level.value}-{hashlib.sha256(told.encode()).hexdigest()[:32]}.so"
    with path.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not path.exists():
            _build(path, level, compiler, texts)
    return path


def emulated_kernels(level: Level) -> CpuKernels:
    kernels = CpuKernels(Library(emulated_library(level), level))
    check_products(kernels)
    return kernels


def _build(path: Path, level: Level, compiler: Compiler, texts: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        folder = Path(scratch)
        for name, text in texts.items():
            (folder / name).write_bytes(text)
        made, source = folder / "made", folder / f"level_{level.value}.cpp"
        command = [compiler.path, *EMULATION_FLAGS, "-shared", str(source), "-o", str(made)]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr
        made.replace(path)
