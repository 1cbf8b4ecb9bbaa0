"""Every command that opens no weight, on a checkpoint of the release's full size whose data are holes.

Wanted: inspect and plan in 1 s, doctor in 5 s, each within 300 MB.  Times are those of the processor, guarded at five
times what is wanted: a change of kind does not keep that, and a busy machine does.  Memory is the peak of the process.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from flash41.checkpoint.release import release_config
from flash41.checkpoint.sparse import write_sparse
from helpers.command_line import environment

CODE = """
import pathlib, re, sys, time
from flash41.cli.main import run
status = run(sys.argv[1:])
# Not getrusage, which counts what the process was before it became this program.
peak = re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]
print(peak, time.process_time(), file=sys.stderr)
sys.exit(status)
"""
LIMIT_KIB = 300 * 1000 * 1000 // 1024


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("holes") / "release"
    write_sparse(directory, release_config())
    return directory


@pytest.mark.parametrize(
    ("command", "seconds", "words"),
    [
        (("inspect", "--json"), 1, ['"model-00048-of-00048.safetensors"', "763205315794"]),
        (("plan", "--ram", "64G", "--context", "100000"), 1, ["at most 150 of 100,000 tokens at once"]),
        (
            ("doctor",),
            5,
            [
                "No faults",
                "96,085, 510,286,023,000 bytes (475.24 GiB)",
                "engram_tables 4 tensors, 202,758,032,400 bytes",
                "token map not checked (no tokenizer.json)",
                "identity no known release",
            ],
        ),
    ],
    ids=["inspect", "plan", "doctor"],
)
def test_a_command_is_quick_and_small_at_full_size(
    command: tuple[str, ...], seconds: int, words: list[str], release: Path
) -> None:
    name, *options = command
    found = subprocess.run(
        [sys.executable, "-c", CODE, name, str(release), *options],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert found.returncode == 0, found.stderr
    text = " ".join(found.stdout.split())
    assert [word for word in words if word not in text] == []
    peak_kib, elapsed = found.stderr.split()[-2:]
    assert int(peak_kib) < LIMIT_KIB
    assert float(elapsed) < 5 * seconds
