from collections.abc import Mapping
from pathlib import Path

import pytest

from flash41.planning import memory
from flash41.planning.memory import available_bytes

MEMINFO = "MemTotal:       24000000 kB\nMemFree:  1000 kB\nMemAvailable:   20000000 kB\n"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the files of a machine say, by path; others cannot be read."""
    files: dict[str, str] = {}

    def text(path: str) -> str:
        return files.get(path, "")

    monkeypatch.setattr(memory, "_text", text)
    return files


def test_it_is_what_the_system_says(machine: dict[str, str]) -> None:
    machine["/proc/meminfo"] = MEMINFO
    assert available_bytes() == 20_000_000 * 1024


def test_nothing_is_known_where_nothing_can_be_read(machine: Mapping[str, str]) -> None:
    assert machine == {}
    assert available_bytes() is None


@pytest.mark.parametrize(
    ("group", "limits"),
    [
        ("0::/a/b\n", {"/sys/fs/cgroup/a/b/memory.max": "5000\n"}),
        ("0::/a/b\n", {"/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/memory.max": "5000\n"}),
        ("0::/\n", {"/sys/fs/cgroup//memory.max": "5000\n"}),
        ("5:cpu:/x\n4:memory:/a\n", {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "5000\n"}),
    ],
)
def test_the_limit_of_a_control_group_or_of_its_parent_counts(
    machine: dict[str, str], group: str, limits: dict[str, str]
) -> None:
    machine |= {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": group, **limits}
    assert available_bytes() == 5000


def test_a_real_file_is_read_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("12\n")
    assert memory._text(str(tmp_path / "here")) == "12\n"
    assert memory._text(str(tmp_path / "not")) == ""
