"""Builds the library of a CPU level with the system's compiler, at first use, and keeps it in the user's cache.

A library is named by a hash of everything it depends on: sources, compiler, flags, level, machine.  It is written under
another name and renamed, so that nobody loads half a file.  What is loaded runs in this process, so the folder and the
file must belong to this user and be writable by nobody else; otherwise a folder of this process is used.  Processes
that start together build once: one holds the lock, the others find its result.
"""

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import platformdirs

from flash41.errors import KernelError, complaint
from flash41.kernels.cpu.level import Level

CACHE_VARIABLE = "FLASH41_KERNEL_CACHE"
"""Environment variable that names another folder than the user's cache directory."""

COMPILERS = ("g++", "c++", "clang++")
"""Tried in this order; the environment variable CXX goes first."""

FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    # A contracted product and sum would be rounded once in one place and twice in another: rows would not stand alone.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wno-psabi",  # vectors wider than the registers are passed inside one file only
)
PARTS = (1, 2)
"""Parts of a library, `FLASH41_PART` of `src/library.h`."""

TIMEOUT_SECONDS = 600
SHOWN_LINES = 12
"""Lines of a compiler's complaint that are repeated."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A C++ compiler of this system."""

    path: str
    version: str
    """Everything it says about itself."""


def find_compiler(environment: Mapping[str, str] = os.environ) -> Compiler:
    """The compiler to use; raises KernelError when none is found that runs."""
    wanted = environment.get("CXX", "").strip()
    candidates = [wanted] if wanted else list(COMPILERS)
    for name in candidates:
        path = shutil.which(name, path=environment.get("PATH"))
        if path is None:
            continue
        try:
            told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if told.returncode == 0:
            return Compiler(path=path, version=told.stdout)
    raise KernelError(
        complaint("C++ compiler", "none", f"one of {', '.join(candidates)}", "install one, or use --backend reference")
    )


def sources() -> dict[str, bytes]:
    """The C++ files that come with the package, by name."""
    folder = files("flash41.kernels.cpu") / "src"
    return {entry.name: entry.read_bytes() for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)}


def built_library(level: Level, cache: Path | None = None) -> Path:
    """The library of a level, built now unless it lies in the cache.

    `cache` replaces the user's cache directory.  Raises KernelError when it cannot be built.
    """
    compiler, texts = find_compiler(), sources()
    name = f"{level.value}-{_key(level, compiler, texts)}.so"
    path = _private(_cache() if cache is None else cache) / name
    if not _is_ours(path):
        with _locked(path.with_suffix(".lock")):
            if not _is_ours(path):
                _build(path, level, compiler, texts)
    return path


def _cache() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else platformdirs.user_cache_path("flash41")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _key(level: Level, compiler: Compiler, texts: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    parts = [level.value, platform.machine(), compiler.path, compiler.version, *FLAGS, *level.compiler_flags]
    for part in [*(part.encode() for part in parts), *(item for pair in texts.items() for item in _encoded(pair))]:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def _encoded(pair: tuple[str, bytes]) -> tuple[bytes, bytes]:
    return pair[0].encode(), pair[1]


def _private(cache: Path) -> Path:
    """`cache`/kernels if only this user can write there, else a new temporary folder with one warning."""
    folder = cache / "kernels"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{folder} belongs to another user or can be written by others")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written")
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="flash41-kernels-"))
        logger.warning("kernel cache: %s; building in %s, for this process only", error, folder)
    return folder


def _is_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _build(path: Path, level: Level, compiler: Compiler, texts: Mapping[str, bytes]) -> None:
    logger.info("kernels: building the %s library with %s; this takes some seconds, once", level.value, compiler.path)
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as scratch:
        folder = Path(scratch)
        for name, text in texts.items():
            (folder / name).write_bytes(text)
        made = compile_library(compiler, (*FLAGS, *level.compiler_flags), folder / f"level_{level.value}.cpp")
        made.chmod(0o700)
        made.replace(path)


def compile_library(compiler: Compiler, flags: Sequence[str], source: Path) -> Path:
    """The library of a level, whose parts are compiled side by side, beside its source.

    Raises KernelError with the compiler's first words where it fails.
    """
    objects = [source.with_suffix(f".{part}.o") for part in PARTS]
    parts = [
        ["-c", f"-DFLASH41_PART={part}", str(source), "-o", str(made)]
        for part, made in zip(PARTS, objects, strict=True)
    ]
    with ThreadPoolExecutor(len(PARTS)) as compilations:
        for _ in compilations.map(lambda arguments: _compile(compiler, [*flags, *arguments], source), parts):
            pass
    made = source.with_suffix(".so")
    _compile(compiler, ["-shared", "-pthread", *map(str, objects), "-o", str(made)], source)
    return made


def _compile(compiler: Compiler, arguments: Sequence[str], source: Path) -> None:
    command = [compiler.path, *arguments]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(complaint("C++ compiler", compiler.path, "one that runs", str(error))) from error
    if told.returncode != 0:
        shown = "\n".join(told.stderr.splitlines()[:SHOWN_LINES])
        raise KernelError(
            complaint(
                f"build of {source.name} with {compiler.path}",
                f"exit status {told.returncode}",
                "0",
                f"use --backend reference\n{shown}",
            )
        )
