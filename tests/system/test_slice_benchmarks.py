"""The benchmarks of slices run and print what they promise; how fast anything is, no test says."""

import json
import subprocess
from pathlib import Path
from typing import Any

from helpers.command_line import ROOT, environment
from helpers.zygote import forked_python


def printed(name: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    command = [*forked_python(), str(ROOT / "benchmarks" / name), "--quick", "--threads", "1", "--folder", str(folder)]
    env = environment()
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=env, timeout=200)
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_slice_is_measured_against_the_bandwidth_and_the_reference(tmp_path: Path) -> None:
    facts, *lines, ratio = printed("slice.py", tmp_path)
    engram = lines.pop(2)
    assert (engram["what"], engram["rows"]) == ("engram", 48)
    assert [line["what"] for line in lines] == ["prefill", "decode"] * 2
    assert [line["backend"] for line in lines[2:]] == ["reference"] * 2
    for line in lines:
        assert facts["dense_bytes"] < line["num_bytes"] <= facts["slice_bytes"]
        assert line["bandwidth"] is None or 0 < line["fraction_of_bandwidth"] < 1
    assert ratio["decode"] > 0


def test_tokens_from_the_disk_are_those_from_memory(tmp_path: Path) -> None:
    disk, *lines = printed("cold.py", tmp_path, "--tokens", "3")
    assert disk["bytes_per_second"] > 0
    assert [line["what"] for line in lines] == ["dropped", "limited"]
    assert all(line["same"] for line in lines)
    assert all(line["needed_bytes"] > 0 for line in lines)
