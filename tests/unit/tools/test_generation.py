from pathlib import Path

import pytest

from flash41.checkpoint.faults import FaultKind
from flash41.tools.generation import GENERATION_FILE, generation_faults
from helpers.config_documents import tiny_config


def messages(folder: Path, text: str, with_config: bool = True) -> list[str]:
    (folder / GENERATION_FILE).write_text(text)
    faults = list(generation_faults(folder, tiny_config() if with_config else None))
    assert all(fault.kind is FaultKind.GENERATION for fault in faults)
    return [fault.message for fault in faults]


@pytest.mark.parametrize(
    "text", ["{}", '{"eos_token_id": 1, "bos_token_id": 0}', '{"eos_token_id": [1, 5]}', '{"temperature": 1.0}']
)
def test_a_config_that_contradicts_nothing_is_no_fault(text: str, tmp_path: Path) -> None:
    assert messages(tmp_path, text) == []


def test_every_token_that_is_another_is_told(tmp_path: Path) -> None:
    assert messages(tmp_path, '{"eos_token_id": [3], "bos_token_id": 9, "pad_token_id": 2}') == [
        "generation_config.json: bos_token_id: got 9, expected 0 as in config.json",
        "generation_config.json: eos_token_id: got [3], expected 1 as in config.json",
    ]
    assert messages(tmp_path, '{"eos_token_id": 3}', with_config=False) == []


def test_what_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    assert "expected strict JSON" in messages(tmp_path, "[1]")[0]
    assert "at most 1048576 bytes" in messages(tmp_path, " " * (1 << 21))[0]
    (tmp_path / GENERATION_FILE).unlink()
    (tmp_path / GENERATION_FILE).mkdir()
    (fault,) = generation_faults(tmp_path, tiny_config())
    assert "not a regular file" in fault.message
