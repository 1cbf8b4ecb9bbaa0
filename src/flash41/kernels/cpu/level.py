"""CPU levels: which instructions a library may use, and which of them this machine has.

    portable    any CPU (SSE2 on x86-64, NEON on aarch64, whatever the compiler targets elsewhere)
    avx2        AVX2, FMA, F16C
    avx512      AVX-512 F, BW, DQ, VL
    avx512bf16  those, VBMI, and dot products of BF16 pairs
    amx         those, and products of BF16 tiles (AMX)

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
    AVX512BF16 = "avx512bf16"
    AMX = "amx"

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """What g++ and clang++ need to build it."""
        return COMPILER_FLAGS[self]

    @property
    def reads_bands(self) -> bool:
        """Whether it multiplies 32 weight rows at a time and reads them from `numerics.bands`.

        Others walk along four or eight rows, which is slower in bands than in rows.
        """
        return self is Level.AMX


AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
AVX512_FLAGS = (*AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
AVX512BF16_FLAGS = (*AVX512_FLAGS, "-mavx512vbmi", "-mavx512bf16")

COMPILER_FLAGS = {
    Level.PORTABLE: (),
    Level.AVX2: AVX2_FLAGS,
    Level.AVX512: AVX512_FLAGS,
    Level.AVX512BF16: AVX512BF16_FLAGS,
    Level.AMX: (*AVX512BF16_FLAGS, "-mamx-tile", "-mamx-bf16"),
}
AVX2_FEATURES = frozenset({"avx2", "fma", "f16c"})
AVX512_FEATURES = AVX2_FEATURES | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
AVX512BF16_FEATURES = AVX512_FEATURES | {"avx512vbmi", "avx512_bf16"}

CPU_FLAGS = {
    Level.PORTABLE: frozenset[str](),
    Level.AVX2: AVX2_FEATURES,
    Level.AVX512: AVX512_FEATURES,
    Level.AVX512BF16: AVX512BF16_FEATURES,
    Level.AMX: AVX512BF16_FEATURES | {"amx_tile", "amx_bf16"},
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
