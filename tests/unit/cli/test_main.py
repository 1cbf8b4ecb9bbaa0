import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer.core
import typer.main

from flash41.cli import main as main_module
from flash41.cli.main import build_app, run
from flash41.errors import CapacityError, ConfigError, Flash41Error
from flash41.version import __version__
from helpers.checkpoints import TINY
from helpers.command_line import PROGRAM, environment, invoke, program
from helpers.config_documents import DATA
from helpers.zygote import forked_python

COMMANDS = ("generate", "batch", "bench", "inspect", "doctor", "trace", "make-tiny", "make-checkpoint")
WITHOUT_TORCH = """
import sys
from flash41.cli.main import main
try:
    main()
finally:
    for module in ("torch", "numpy"):
        print(module, module in sys.modules, file=sys.stderr)
"""


def failing(error: BaseException) -> object:
    def command() -> None:
        raise error

    return command


def test_the_help_names_every_command_and_no_line_is_cut() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in result.output
    assert "..." not in result.output.replace("[ARGS]...", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_and_option_of_a_command_is_explained(command: str) -> None:
    group = typer.main.get_command(build_app())
    assert isinstance(group, typer.core.TyperGroup)
    assert group.commands[command].help
    for parameter in group.commands[command].params:
        assert getattr(parameter, "help", None), parameter.name
    assert invoke(command, "--help").exit_code == 0


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"flash41 {__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["inspect"], ["inspect", "--nonsense", "x"], ["doctor", "a", "b"]])
def test_wrong_usage_ends_with_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Usage: flash41" in captured.err


@pytest.mark.parametrize("error", [ConfigError("a: got 1, expected 2"), CapacityError("x")])
def test_an_error_of_the_tree_is_one_line_and_status_1(
    error: Flash41Error, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "inspect", failing(error))
    assert run(["inspect"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {error}\n")


def test_an_error_is_red_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "inspect", failing(ConfigError("no")))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["inspect"]) == 1
    assert capsys.readouterr().err == "\x1b[31merror:\x1b[0m no\n"


def test_an_interrupt_is_quiet_and_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "inspect", failing(KeyboardInterrupt()))
    assert run(["inspect"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_mistake_of_our_own_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "inspect", failing(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError, match="ours"):
        run(["inspect"])


def test_the_program_exits_with_the_status_of_its_command(tmp_path: Path) -> None:
    found = program(["inspect", tmp_path / "nowhere"])
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("error: ")
    assert "Traceback" not in found.stderr


def test_a_reader_that_goes_away_is_no_complaint() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", PROGRAM, "inspect", str(TINY)]
    try:
        found = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=environment(), timeout=60
        )
    finally:
        os.close(writing)
    assert (found.returncode, found.stderr) == (1, "")


def test_a_full_disk_is_one_line_and_status_1() -> None:
    command = [sys.executable, "-c", PROGRAM, "inspect", str(TINY)]
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment(), timeout=60
        )
    assert found.returncode == 1
    assert found.stderr.startswith("error: operating system: got '[Errno 28]")
    assert found.stderr.count("\n") == 1


def test_closed_streams_are_no_traceback() -> None:
    command = f"exec {sys.executable} -c '{PROGRAM}' inspect {TINY} <&- >&-"
    found = subprocess.run(
        ["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False, env=environment(), timeout=60
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_an_output_that_knows_only_ascii_loses_characters_and_no_more() -> None:
    arguments = ["generate", "--model", str(TINY), "--token-ids", "0,5,6", "--max-tokens", "12", "--seed", "1"]
    outputs = {}
    # Once as a process of its own, which finds out for itself what its streams know.
    for encoding, pythons in {"utf-8": [forked_python()] * 2, "ascii": [[sys.executable], forked_python()]}.items():
        for python, options in zip(pythons, ((), ("--json",)), strict=True):
            found = subprocess.run(
                [*python, "-c", PROGRAM, *arguments, *options],
                capture_output=True,
                check=True,
                env={**environment(), "PYTHONIOENCODING": encoding},
                timeout=60,
            )
            outputs[encoding, options] = found.stdout.decode(encoding)
    assert outputs["ascii", ()] == outputs["utf-8", ()].encode("ascii", "replace").decode()
    assert "?" in outputs["ascii", ()]
    wide, narrow = (json.loads(outputs[encoding, ("--json",)])["text"] for encoding in ("utf-8", "ascii"))
    assert narrow == wide
    assert not wide.isascii()


@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_a_name_that_no_file_system_takes_is_one_error(command: str) -> None:
    found = program([command, "a" * 5000], python=forked_python())
    assert found.returncode == 1
    assert "File name too long" in found.stdout + found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        (["--help"], ("torch", "numpy")),
        (["generate", "--help"], ("torch", "numpy")),
        (["batch", "--help"], ("torch", "numpy")),
        (["bench", "--help"], ("torch", "numpy")),
        (["make-tiny", "--help"], ("torch", "numpy")),
        (["inspect", TINY], ("torch", "numpy")),
        (["inspect", DATA / "release.json", "--json"], ("torch", "numpy")),
        (["plan", DATA / "release.json", "--ram", "64G"], ("torch", "numpy")),
        (["doctor", TINY], ("torch",)),
    ],
)
def test_commands_that_compute_nothing_import_no_torch(arguments: list[str | Path], modules: tuple[str, ...]) -> None:
    found = program(arguments, WITHOUT_TORCH)
    assert found.returncode == 0, found.stderr
    for module in modules:
        assert f"{module} False" in found.stderr


def test_the_help_starts_quickly() -> None:
    # Wanted: 0.3 s on an idle machine.  Five times as much catches a heavy import, not a busy machine.
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert program(["--help"]).returncode == 0
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.5
