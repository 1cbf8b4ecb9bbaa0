"""The comparison with other engines: turns with one that answers, reasons of those that do not, wrong options."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from helpers.command_line import ROOT, environment
from helpers.zygote import forked_python

FAKE_FTLLM = """
import time
print("Loading 100")  # peers print on what they like


class Library:
    def launch_response_llm_model(self, model, length, ids, most, least, *sampling):
        assert length == len(ids) and most == least
        self.left = most
        return 0

    def can_fetch_response_llm_model(self, model, handle):
        time.sleep(0.002)
        return True

    def fetch_response_llm_model(self, model, handle):
        self.left -= 1
        return -1 if self.left < 0 else 7


class model:
    def __init__(self, path):
        self.model = 0

    def stop_token_ctypes(self, ids):
        return 0, None


fastllm_lib = Library()
set_cpu_threads = set_device_map = lambda value: None
"""
DYING_FTLLM = """
import sys
input_closed = sys.stdin.read()
print("FakeError: no tokenizer")
print("Press any key to exit...")
sys.exit(0)
"""


def interpreter(folder: Path, peers: Path | None) -> Path:
    """A Python without site-packages, and with the modules of a folder."""
    script = folder / "python"
    launch = folder / "launch.py"
    launch.write_text(
        f"import runpy, sys; sys.argv.pop(0); sys.path[:0] = ['', {str(peers or '')!r}]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {launch} "$@"\n')
    script.chmod(0o755)
    return script


def ran(*options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*forked_python(), str(ROOT / "benchmarks" / "peers.py"), "--quick", "--threads", "1"]
    whole = [*command, *map(str, options)]
    return subprocess.run(whole, capture_output=True, text=True, check=False, env=environment(), timeout=100)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def fake(folder: Path, ftllm: str) -> Path:
    peers = folder / "peers"
    for package, module, text in (("ftllm", "llm", ftllm), ("mlx", "core", ""), ("mlx_lm", "utils", "")):
        (peers / package).mkdir(parents=True)
        (peers / package / "__init__.py").touch()
        (peers / package / f"{module}.py").write_text(text)
    (peers / "mlx_lm" / "generate.py").write_text("raise ValueError('Model type deepseek_v41 not supported.')")
    return peers


def test_peers_that_are_not_installed_are_named_and_our_speed_is_measured_alone(tmp_path: Path) -> None:
    done = ran("--python", interpreter(tmp_path, None))
    assert done.returncode == 0, done.stderr
    facts, *skipped, ours = lines(done)
    assert facts["engram"]
    assert skipped == [{"peer": name, "version": None, "skipped": "not installed"} for name in ("mlx-lm", "ftllm")]
    assert ours["what"] == "ours"
    assert min(ours["prefill"], ours["decode"]) > 0


def test_a_peer_that_answers_is_compared_and_one_that_raises_is_quoted(tmp_path: Path) -> None:
    done = ran("--python", interpreter(tmp_path, fake(tmp_path, FAKE_FTLLM)), "--at-least", "1e9", "--no-engram")
    assert done.returncode == 1, done.stderr  # nobody is so fast
    facts, mlx, prefill, decode = lines(done)
    assert not facts["engram"]
    assert mlx["skipped"] == "ValueError: Model type deepseek_v41 not supported."
    assert (prefill["what"], decode["what"]) == ("prefill", "decode")
    assert 0 < decode["theirs"] < 500  # it waits 2 ms for each token
    assert abs(decode["ratio"] * decode["theirs"] / decode["ours"] - 1) < 0.01


def test_a_peer_that_ends_while_it_loads_is_quoted(tmp_path: Path) -> None:
    done = ran("--python", interpreter(tmp_path, fake(tmp_path, DYING_FTLLM)), "--peer", "ftllm")
    assert done.returncode == 0, done.stderr
    assert lines(done)[1]["skipped"] == "FakeError: no tokenizer"


def test_wrong_options_are_refused_together(tmp_path: Path) -> None:
    done = ran("--threads", "0", "--patience", "0", "--python", tmp_path, "--layers", "0")
    assert (done.returncode, done.stdout) == (2, "")
    for option in ("--threads: got 0", "--patience: got 0.0", f"--python: got {tmp_path}", "--layers: got 0"):
        assert option in done.stderr
