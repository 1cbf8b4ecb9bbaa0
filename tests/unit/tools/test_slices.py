from dataclasses import replace
from pathlib import Path

import pytest

from flash41.chat.tokenizer import Tokenizer
from flash41.checkpoint.embedded import tiny_config, tiny_tokenizer_files
from flash41.config.huggingface import read_config
from flash41.config.slices import SliceWish
from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.errors import ConfigError
from flash41.tools.doctor import examine
from flash41.tools.slices import make_slice, num_bytes, padded_tokenizer
from helpers.checkpoints import TINY

WISH = SliceWish(layers=3, experts=3, engram_rows=200)


@pytest.fixture(scope="module")
def slice_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slice of a configuration without a tokenizer, with more ids than the default's has."""
    directory = tmp_path_factory.mktemp("slice") / "made"
    make_slice(directory, replace(tiny_config(), vocab_size=1200), WISH, seed=1)
    return directory


def test_a_slice_has_no_fault_and_the_sizes_asked_for(slice_directory: Path) -> None:
    report = examine(slice_directory)
    assert report.faults == ()
    config = read_config(slice_directory)
    assert (config.num_layers, config.moe.num_experts, config.vocab_size) == (3, 3, 1200)
    assert report.payload_bytes == num_bytes(config)


def test_an_engine_runs_it_and_every_id_it_may_choose_has_a_text(slice_directory: Path) -> None:
    llm = LLM(slice_directory, backend="reference", threads=1, max_model_len=256)
    answer = llm.generate([[0, 17, 1199]], SamplingParams(max_tokens=4, seed=1))[0]
    assert len(answer.output_ids) == 4
    assert llm.tokenizer.decode([1199]) == "<id1199>"


def test_a_padded_tokenizer_reads_texts_as_the_default_does(tmp_path: Path) -> None:
    found = {}
    for name, files in (("default", tiny_tokenizer_files()), ("padded", padded_tokenizer(1100))):
        (tmp_path / name).write_bytes(files["tokenizer.json"])
        found[name] = Tokenizer.from_file(tmp_path / name)
    text = "Once <id1050> upon a time, 12345 <｜begin▁of▁sentence｜>!"
    assert found["padded"].encode_with_control(text) == found["default"].encode_with_control(text)
    assert found["padded"].decode([1022, 1050]) == found["default"].decode([1022]) + "<id1050>"


def test_the_tokenizer_beside_the_configuration_is_kept(tmp_path: Path) -> None:
    config = read_config(TINY)
    make_slice(tmp_path / "made", config, SliceWish(layers=2, experts=4), 1, TINY / "tokenizer.json")
    assert (tmp_path / "made" / "tokenizer.json").read_bytes() == (TINY / "tokenizer.json").read_bytes()
    assert read_config(tmp_path / "made").tokens == config.tokens


def test_a_vocabulary_smaller_than_the_default_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vocab_size: got 1016, expected at least the 1024 ids"):
        make_slice(tmp_path / "made", replace(tiny_config(), vocab_size=1016), WISH, seed=1)
    assert list(tmp_path.iterdir()) == []
