"""CPU levels: which instructions a library may use, and which of them this machine has.

    portable    any CPU (SSE2 on x86-64, NEON on aarch64, whatever the compiler targets elsewhere)
    avx2        AVX2, FMA, F16C
    avx512      AVX-512 F, BW, DQ, VL

Each level is a library of its own, so nothing built for a newer CPU is ever loaded on an older one.
"""

import enum
import platform
from pathlib import Path

from flash41.errors import KernelError, complaint

CPU_INFO = Path("/proc/cpuinfo")


class Level(enum.Enum):
    """A set of instructions; ascending."""

    PORTABLE = "portable"
    AVX2 = "avx2"
    AVX512 = "avx512"

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """What g++ and clang++ need to build it."""
        return COMPILER_FLAGS[self]


COMPILER_FLAGS = {
    Level.PORTABLE: (),
    Level.AVX2: ("-mavx2", "-mfma", "-mf16c"),
    Level.AVX512: ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
}
CPU_FLAGS = {
    Level.PORTABLE: frozenset[str](),
    Level.AVX2: frozenset({"avx2", "fma", "f16c"}),
    Level.AVX512: frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"}),
}


def cpu_flags() -> frozenset[str]:
    """Features the operating system reports for an x86-64 CPU (those it also saves and restores); else none."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return frozenset()
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def present_levels(flags: frozenset[str]) -> list[Level]:
    """Levels a CPU with these features can run, ascending."""
    return [level for level in Level if flags >= CPU_FLAGS[level]]


def choose_level(name: str | None, flags: frozenset[str]) -> Level:
    """The named level, or the highest one; raises KernelError for one this CPU does not have."""
    present = present_levels(flags)
    if name is None:
        return present[-1]
    if name not in {level.value for level in present}:
        raise KernelError(complaint("CPU level", name, f"one of {', '.join(level.value for level in present)}"))
    return Level(name)
