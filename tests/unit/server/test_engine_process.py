"""The engine in a process of its own: it opens what it is told, or says why not, and nothing is left of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flash41.errors import ConfigError
from flash41.server import engine_process
from flash41.server.engine_process import EngineProcess
from helpers.command_line import environment
from helpers.server_process import is_gone, is_there

PATIENCE_SECONDS = 60


def test_a_process_that_ends_without_a_word_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "PROGRAM", "import sys; sys.exit(7)")
    with EngineProcess({}, ["m"]) as process, pytest.raises(ConfigError, match="exit status 7"):
        process.client()
    assert not Path(f"/proc/{process.pid}").exists(), "not even a zombie"


def test_a_process_that_does_not_hear_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "PROGRAM", "import time; time.sleep(600)")
    monkeypatch.setattr(engine_process, "PARTING_SECONDS", 0.1)
    with EngineProcess({}, ["m"]) as process:
        assert not process.wait(0.01)
    assert process.wait(0)
    assert not Path(f"/proc/{process.pid}").exists()


STARTER = """
import sys, time
from flash41.server import engine_process
loading = "import time; print('loading', file=sys.stderr, flush=True); time.sleep(600)"
rest = f"from {engine_process.HOST} import main; main(orders)"
engine_process.PROGRAM = engine_process.PROGRAM.replace(rest, loading)
process = engine_process.EngineProcess({}, ["m"])
print(process.pid, flush=True)
time.sleep(600)
"""


def test_while_tensors_are_loaded_signals_do_nothing_and_the_end_of_the_starter_is_seen() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert starter.stdout is not None
    assert starter.stderr is not None
    with starter.stdout as said, starter.stderr as log:
        pid = int(said.readline())
        os.kill(pid, signal.SIGINT)  # before the process has said what to do with it
        assert log.readline() == "loading\n"
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)
        assert is_there(pid)
        starter.kill()
        starter.wait(PATIENCE_SECONDS)
        assert is_gone(pid, PATIENCE_SECONDS)


def test_what_comes_before_the_model_loads_no_tensors() -> None:
    code = f"import sys, {engine_process.ORDERS}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert found.stdout == "False\n"


def test_it_finds_modules_where_its_starter_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "found_by_path.py").write_text("import os\n\ndef main(_):\n    os._exit(9)\n")
    (tmp_path / "json.py").write_text("raise SystemError('a file of the working directory')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(engine_process, "PROGRAM", engine_process.PROGRAM.replace(engine_process.HOST, "found_by_path"))
    with EngineProcess({}, ["m"]) as process:
        assert process.wait(PATIENCE_SECONDS)
        assert process._process.returncode == 9
