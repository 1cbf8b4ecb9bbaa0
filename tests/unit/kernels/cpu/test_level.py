import platform
from pathlib import Path

import pytest

from flash41.errors import KernelError
from flash41.kernels.cpu import level as levels
from flash41.kernels.cpu.level import CPU_FLAGS, Level, choose_level, cpu_flags, present_levels

NOTHING = frozenset[str]()


def test_a_cpu_without_features_has_the_portable_level() -> None:
    assert present_levels(NOTHING) == [Level.PORTABLE]
    assert choose_level(None, NOTHING) is Level.PORTABLE


@pytest.mark.parametrize("level", Level)
def test_a_cpu_with_exactly_the_features_of_a_level_chooses_it(level: Level) -> None:
    assert choose_level(None, CPU_FLAGS[level]) is level
    assert choose_level(level.value, CPU_FLAGS[level]) is level


def test_one_missing_feature_is_enough_to_fall_to_the_level_below() -> None:
    below = Level.PORTABLE
    for level in list(Level)[1:]:
        for feature in CPU_FLAGS[level] - CPU_FLAGS[below]:
            assert choose_level(None, CPU_FLAGS[level] - {feature}) is below
        below = level


def test_a_lower_level_may_be_asked_for_and_a_missing_one_is_refused() -> None:
    assert choose_level("portable", CPU_FLAGS[Level.AVX512]) is Level.PORTABLE
    with pytest.raises(KernelError, match="CPU level: got 'avx512', expected one of portable, avx2"):
        choose_level("avx512", CPU_FLAGS[Level.AVX2])
    with pytest.raises(KernelError, match="CPU level: got 'mmx'"):
        choose_level("mmx", CPU_FLAGS[Level.AVX2])


def test_features_are_read_from_the_first_flags_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma f16c\nbugs\t\t: none\nflags\t: other\n")
    monkeypatch.setattr(levels, "CPU_INFO", info)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert cpu_flags() == {"fpu", "avx2", "fma", "f16c"}
    monkeypatch.setattr(levels, "CPU_INFO", tmp_path / "missing")
    assert cpu_flags() == NOTHING
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(levels, "CPU_INFO", info)
    assert cpu_flags() == NOTHING
