"""The roofline benchmark runs and prints what it promises; how fast a kernel is, no test says."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helpers.backends import kernels_or_skip
from helpers.command_line import ROOT, environment
from helpers.zygote import forked_python

SCRIPT = str(ROOT / "benchmarks" / "roofline.py")
KERNELS = [
    "stream",
    "fp8_linear",
    "fp4_linear",
    "lm_head",
    "experts",
    "sparse_attention",
    "sparse_attention_fp4",
    "index_scores",
    "index_scores_fp4",
    "index_scores_fp8",
    "select_rows",
]


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    kernels_or_skip("cpu")
    told = subprocess.run(
        [*forked_python(), SCRIPT, "--quick", "--json", "--threads", "1"],
        capture_output=True,
        text=True,
        check=False,
        env={**environment(), "PYTHONWARNINGS": "error"},
        timeout=240,
    )
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


def test_every_kernel_has_its_lines_and_the_roof_comes_first(lines: list[dict[str, Any]]) -> None:
    assert list(dict.fromkeys(line["kernel"] for line in lines)) == KERNELS
    assert lines[0]["fraction_of_bandwidth"] == 1.0
    rows = [line["rows"] for line in lines if line["kernel"] == "fp8_linear"]
    assert rows == [1, 6, 64]


def test_a_line_says_where_it_was_measured_and_its_figures_agree(lines: list[dict[str, Any]]) -> None:
    roof = lines[0]["bytes_per_second"]
    for line in lines:
        assert (line["threads"], line["isa"]) == (1, kernels_or_skip("cpu").library.level.value)  # type: ignore[attr-defined]
        assert line["bytes_per_second"] == pytest.approx(line["num_bytes"] / line["seconds"])
        assert line["fraction_of_bandwidth"] == pytest.approx(line["bytes_per_second"] / roof, abs=1e-4)


def test_a_machine_without_a_compiler_is_skipped_with_the_reason(tmp_path: Path) -> None:
    told = subprocess.run(
        [*forked_python(), SCRIPT, "--quick", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**environment(), "PATH": str(tmp_path), "CXX": "no-compiler"},
        timeout=120,
    )
    (line,) = told.stdout.splitlines()
    assert json.loads(line)["skipped"].startswith("C++ compiler: got 'none', expected one of no-compiler")
