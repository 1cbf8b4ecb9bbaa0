import json
from pathlib import Path

import pytest

from flash41.checkpoint.directory import INDEX_FILE, SINGLE_FILE, survey
from flash41.checkpoint.faults import FaultyCheckpointError
from flash41.checkpoint.schema import kinds
from flash41.tools.ledger import Amount, ledger
from flash41.tools.shards import shard_amounts
from helpers.checkpoints import TINY
from helpers.config_documents import tiny_config


def test_amounts_by_the_index_are_those_of_the_headers() -> None:
    files, _ = survey(TINY)
    amounts = shard_amounts(TINY, kinds(tiny_config()))
    assert list(amounts) == list(files.shards)
    for shard, header in files.shards.items():
        assert (amounts[shard].num_tensors, amounts[shard].num_bytes) == (len(header.tensors), header.payload_bytes)
    assert sum(amounts.values(), start=Amount()) == ledger(tiny_config()).total


def test_a_single_file_holds_everything_and_an_empty_folder_nothing(tmp_path: Path) -> None:
    assert shard_amounts(tmp_path, kinds(tiny_config())) == {}
    (tmp_path / SINGLE_FILE).write_bytes(b"")
    assert shard_amounts(tmp_path, kinds(tiny_config())) == {SINGLE_FILE: ledger(tiny_config()).total}


def test_a_foreign_name_counts_without_bytes(tmp_path: Path) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": {"model.embed": "a.safetensors"}}
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    assert shard_amounts(tmp_path, kinds(tiny_config())) == {"a.safetensors": Amount(num_tensors=1)}


def test_an_index_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).write_text("{}")
    with pytest.raises(FaultyCheckpointError, match="weight_map"):
        shard_amounts(tmp_path, kinds(tiny_config()))
