import hashlib
import json
from pathlib import Path

import pytest

from flash41.checkpoint.directory import CheckpointFiles, survey
from flash41.checkpoint.faults import FaultKind
from flash41.errors import CheckpointError
from flash41.tools.deep import DeepReport, read_sums, scan_files
from helpers.checkpoints import TINY, set_byte, tiny_copy

SCALE = "layers.0.attn.wq_a.scale"


class InterruptedScanError(Exception):
    """Stands for Ctrl-C."""


def scanned(directory: Path, state: Path | None = None, stop_at: str | None = None) -> tuple[DeepReport, list[str]]:
    """The report, and the shards whose bytes were told."""
    told: list[str] = []

    def progress(shard: str, num_bytes: int) -> None:
        assert num_bytes >= 0
        if shard == stop_at:
            raise InterruptedScanError
        told.append(shard)

    return scan_files(files_of(directory), state=state, sums={}, progress=progress), told


def files_of(directory: Path) -> CheckpointFiles:
    return survey(directory)[0]


def test_a_scan_goes_on_behind_the_last_whole_shard(tmp_path: Path) -> None:
    directory, state = tiny_copy(tmp_path), tmp_path / "state.json"
    set_byte(directory, SCALE, 0, 255)
    shards = sorted(path.name for path in directory.glob("*.safetensors"))
    with pytest.raises(InterruptedScanError):
        scanned(directory, state, stop_at=shards[2])
    assert sorted(json.loads(state.read_text())["shards"]) == shards[:2]
    report, told = scanned(directory, state)
    assert report.num_resumed == 2
    assert told.count(shards[0]) == 1  # told once, as a whole
    assert told.count(shards[2]) > 1
    whole, _ = scanned(directory)
    assert (report.sha256, report.faults) == (whole.sha256, whole.faults)
    assert [fault.names for fault in report.faults] == [(SCALE,)]


def test_a_shard_that_changed_since_is_read_again(tmp_path: Path) -> None:
    directory, state = tiny_copy(tmp_path), tmp_path / "state.json"
    scanned(directory, state)
    set_byte(directory, SCALE, 0, 255)
    report, _ = scanned(directory, state)
    assert report.num_resumed == 4
    assert [fault.kind for fault in report.faults] == [FaultKind.SCALE]


def test_nothing_is_written_where_no_state_was_named(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    scanned(directory)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2, "shards": {}}', '{"format": 1, "shards": {"a": {}}}'])
def test_a_file_that_is_no_state_is_refused_and_stays(content: str, tmp_path: Path) -> None:
    state = tmp_path / "notes.txt"
    state.write_text(content)
    with pytest.raises(CheckpointError, match="expected the state of a deep scan"):
        scanned(TINY, state)
    assert state.read_text() == content


def test_checksums_are_compared_with_those_of_sha256sum(tmp_path: Path) -> None:
    names = sorted(path.name for path in TINY.glob("*.safetensors"))
    sums = tmp_path / "SHA256SUMS"
    lines = [f"{hashlib.sha256((TINY / name).read_bytes()).hexdigest()}  ./{name}" for name in names]
    lines[1] = f"{'0' * 64} *{names[1]}"
    lines += [f"{'1' * 64}  config.json", "", f"{'2' * 64}  model-00006-of-00005.safetensors"]
    sums.write_text("\n".join(lines))
    report = scan_files(files_of(TINY), state=None, sums=read_sums(sums))
    assert report.num_compared == 5
    assert [fault.kind for fault in report.faults] == [FaultKind.CHECKSUM] * 2
    assert report.faults[0].message.startswith(f"{names[1]}: got SHA-256 ")
    assert report.faults[1].names == ("model-00006-of-00005.safetensors",)


@pytest.mark.parametrize("line", ["deadbeef  a", "no sums at all"])
def test_a_line_that_is_no_checksum_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    sums = tmp_path / "sums"
    sums.write_text(f"{'0' * 64}  a\n{line}\n")
    with pytest.raises(CheckpointError, match="line 2"):
        read_sums(sums)
    with pytest.raises(CheckpointError, match="a readable text file"):
        read_sums(tmp_path / "nowhere")
