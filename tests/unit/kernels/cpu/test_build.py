"""Building and keeping libraries; a script stands in for the compiler wherever its output does not matter."""

import logging
import os
import stat
import subprocess
from pathlib import Path

import pytest

from flash41.errors import KernelError
from flash41.kernels.cpu import build
from flash41.kernels.cpu.build import FLAGS, PARTS, built_library, find_compiler, sources
from flash41.kernels.cpu.level import Level

COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "stand-in {version}"; exit 0; fi
echo run >> "{log}"
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def compiler(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that counts how often it was asked to compile."""
    path = tmp_path / "stand-in"
    write_program(path, COMPILER.format(version=1, log=log))
    monkeypatch.setenv("CXX", str(path))
    return path


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o700)


def builds(log: Path) -> int:
    """Libraries that were built; each takes a run for every part and one that links."""
    runs = len(log.read_text().splitlines()) if log.exists() else 0
    assert runs % (len(PARTS) + 1) == 0
    return runs // (len(PARTS) + 1)


def test_a_library_is_built_once_and_then_found(tmp_path: Path, compiler: Path, log: Path) -> None:
    first = built_library(Level.PORTABLE, tmp_path / "cache")
    assert first.read_text() == "library\n"
    assert built_library(Level.PORTABLE, tmp_path / "cache") == first
    assert builds(log) == 1
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".lock", ".so"]


def test_level_compiler_and_sources_are_part_of_the_name(
    tmp_path: Path, compiler: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    paths = {built_library(Level.PORTABLE, cache), built_library(Level.AVX2, cache)}
    write_program(compiler, COMPILER.format(version=2, log=log))
    paths.add(built_library(Level.PORTABLE, cache))
    monkeypatch.setattr(build, "sources", lambda: {**sources(), "extra.h": b"// one more"})
    paths.add(built_library(Level.PORTABLE, cache))
    monkeypatch.setattr(build, "FLAGS", (*FLAGS, "-g"))
    paths.add(built_library(Level.PORTABLE, cache))
    assert len(paths) == builds(log) == 5


def test_what_is_kept_belongs_to_its_owner_alone(tmp_path: Path, compiler: Path) -> None:
    path = built_library(Level.PORTABLE, tmp_path / "cache")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_library_that_others_can_write_is_built_anew(tmp_path: Path, compiler: Path, log: Path) -> None:
    path = built_library(Level.PORTABLE, tmp_path / "cache")
    path.write_text("changed")
    path.chmod(0o777)
    assert built_library(Level.PORTABLE, tmp_path / "cache").read_text() == "library\n"
    assert builds(log) == 2


@pytest.mark.parametrize("kind", ["writable", "link", "file"])
def test_a_folder_that_is_not_ours_alone_is_left(
    tmp_path: Path, compiler: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    folder = cache / "kernels"
    if kind == "writable":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.write_text("a file")
    with caplog.at_level(logging.WARNING):
        path = built_library(Level.PORTABLE, cache)
    assert path.parent != folder
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [record.getMessage().startswith("kernel cache: ") for record in caplog.records] == [True]


def test_the_environment_may_name_the_cache(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH41_KERNEL_CACHE", str(tmp_path / "named"))
    assert built_library(Level.PORTABLE).parent == tmp_path / "named" / "kernels"


def test_a_failing_compiler_is_quoted_and_leaves_nothing(tmp_path: Path, compiler: Path) -> None:
    write_program(compiler, '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "no such header" >&2\nexit 3\n')
    with pytest.raises(KernelError, match=r"(?s)exit status 3.*--backend reference.*no such header"):
        built_library(Level.PORTABLE, tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache" / "kernels").iterdir()] == [".lock"]


def test_without_a_compiler_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"C\+\+ compiler: got 'none', expected one of g\+\+, c\+\+, clang\+\+"):
        find_compiler({"PATH": str(tmp_path)})
    with pytest.raises(KernelError, match="expected one of missing-compiler"):
        find_compiler({"PATH": str(tmp_path), "CXX": "missing-compiler"})


def test_the_first_compiler_that_runs_is_taken(tmp_path: Path) -> None:
    write_program(tmp_path / "g++", "#!/bin/sh\nexit 1\n")
    write_program(tmp_path / "clang++", "#!/bin/sh\necho stand-in\n")
    found = find_compiler({"PATH": str(tmp_path)})
    assert (found.path, found.version) == (str(tmp_path / "clang++"), "stand-in\n")


def test_building_is_announced(tmp_path: Path, compiler: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flash41.kernels.cpu.build"):
        built_library(Level.PORTABLE, tmp_path / "cache")
        built_library(Level.PORTABLE, tmp_path / "cache")
    (message,) = [record.getMessage() for record in caplog.records]
    assert "building the portable library" in message


@pytest.mark.parametrize("level", [Level.AVX512BF16, Level.AMX])
def test_units_of_levels_that_this_machine_may_lack_compile(level: Level, tmp_path: Path) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("levels of x86-64")
    try:
        found = find_compiler(dict(os.environ))
    except KernelError as error:
        pytest.skip(str(error))
    for name, text in sources().items():
        (tmp_path / name).write_bytes(text)
    command = [found.path, *FLAGS, *level.compiler_flags, "-fsyntax-only", "-Werror", f"level_{level.value}.cpp"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert told.returncode == 0, told.stderr
