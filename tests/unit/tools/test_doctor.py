import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flash41.checkpoint.directory import INDEX_FILE
from flash41.checkpoint.faults import FaultKind
from flash41.tools.doctor import Report, TokenMapStatus, examine
from helpers.checkpoints import TINY, edit_header, edit_json, set_byte, tiny_copy

SECOND = "model-00002-of-00005.safetensors"


def kinds(report: Report) -> list[FaultKind]:
    return [fault.kind for fault in report.faults]


def test_the_golden_checkpoint_is_healthy() -> None:
    report = examine(TINY)
    assert report.faults == ()
    assert (report.num_tensors, report.payload_bytes, report.header_bytes) == (1568, 6_717_760, 167_496)
    assert sum(report.bytes_by_dtype.values()) == report.payload_bytes
    assert report.token_map is TokenMapStatus.CHECKED
    assert report.expected is not None
    assert (report.expected.num_tensors, report.expected.num_bytes) == (1568, 6_717_760)
    assert report.shards["model-00004-of-00005.safetensors"].num_tensors == 6
    assert not report.has_generation_config
    assert report.leftovers == ()


def test_a_report_is_json(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / SECOND).unlink()
    for place in (TINY, directory, tmp_path / "nowhere"):
        report = examine(place)
        document = json.loads(json.dumps(report.to_dict()))
        assert document["healthy"] == (not report.faults)
        assert document["num_tensors"] == report.num_tensors
        assert [fault["message"] for fault in document["faults"]] == [fault.message for fault in report.faults]


def test_a_broken_config_does_not_hide_faults_of_the_files(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / "config.json").write_text("{")
    os.truncate(directory / SECOND, 1000)
    report = examine(directory)
    assert kinds(report) == [FaultKind.SHARD, FaultKind.CONFIG]
    assert report.expected is None
    assert report.token_map is TokenMapStatus.NO_CONFIG
    assert report.num_tensors == 1568 - 623


def test_a_config_of_v4_is_named(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    edit_json(directory / "config.json", lambda config: config.update(model_type="deepseek_v4"))
    (fault,) = examine(directory).faults
    assert fault.kind is FaultKind.CONFIG
    assert "model_type: got 'deepseek_v4', expected 'deepseek_v41'" in fault.message


def test_index_header_and_schema_faults_come_in_one_report(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    edit_json(directory / INDEX_FILE, lambda index: index["metadata"].update(total_size=1))
    edit_header(directory / SECOND, lambda header: header.update({"extra": header.pop(list(header)[-1])}))
    report = examine(directory)
    assert {FaultKind.INDEX, FaultKind.SCHEMA} == set(kinds(report))
    (schema_fault,) = [fault for fault in report.faults if fault.kind is FaultKind.SCHEMA]
    assert "unexpected [extra]" in schema_fault.message


def test_a_tokenizer_of_another_model_is_a_fault(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    tokenizer = directory / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"content": "', '"content": "x'))
    edit_json(directory / "config.json", lambda c: c["text_config"].update(engram_compressed_vocab_size=400))
    report = examine(directory)
    assert kinds(report) == [FaultKind.TOKEN_MAP]
    assert report.token_map is TokenMapStatus.WRONG
    assert "expected 400" in report.faults[0].message


def test_a_tokenizer_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / "tokenizer.json").write_text("{}")
    assert kinds(examine(directory)) == [FaultKind.TOKEN_MAP]


def test_leftovers_and_generation_config_are_facts_not_faults(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    (directory / "pytorch_model.bin").write_bytes(b"")
    (directory / "model.gguf").write_bytes(b"")
    (directory / "generation_config.json").write_text("{}")
    report = examine(directory)
    assert report.faults == ()
    assert report.leftovers == ("model.gguf", "pytorch_model.bin")
    assert report.has_generation_config


def test_weights_are_not_read(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    set_byte(directory, "layers.0.attn.wq_a.scale", 0, 255)
    assert examine(directory).faults == ()


def test_the_index_hash_names_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(TINY)
    monkeypatch.setattr("flash41.tools.doctor.RELEASE_INDEX_SHA256", report.hashes[INDEX_FILE][:8])
    assert "revision dba1be0a" in examine(TINY).identity


@pytest.mark.parametrize("name", ["config.json", INDEX_FILE, "tokenizer.json", SECOND])
def test_a_folder_in_place_of_a_file_is_reported(tmp_path: Path, name: str) -> None:
    directory = tiny_copy(tmp_path)
    (directory / name).unlink()
    (directory / name).mkdir()
    assert examine(directory).faults != ()


def test_no_torch_is_imported() -> None:
    program = (
        "import sys, pathlib\n"
        "import flash41.tools.rank_sizes\n"
        "from flash41.tools.doctor import examine\n"
        "assert not examine(pathlib.Path(sys.argv[1])).faults\n"
        "assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", program, str(TINY)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
