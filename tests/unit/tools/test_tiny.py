import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flash41.checkpoint.embedded import tiny_config, tiny_tokenizer_files
from flash41.checkpoint.loader import Checkpoint, open_checkpoint
from flash41.checkpoint.schema import schema
from flash41.config.huggingface import config_from_dict
from flash41.config.run import Profile
from flash41.engine.load import load_model
from flash41.errors import CheckpointError, ConfigError
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools import tiny
from flash41.tools.doctor import TokenMapStatus, examine
from flash41.tools.tiny import config_to_fill, make_tiny, tokenizer_beside
from flash41.tools.traces import trace
from helpers.checkpoints import TINY
from helpers.config_documents import DATA, patched
from helpers.default_fixtures import SEED

CONFIG = config_to_fill(TINY / "config.json")
TOKENIZER = TINY / "tokenizer.json"


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def differing(first: Checkpoint, second: Checkpoint) -> list[str]:
    return [name for name in first.specs if not torch.equal(bits(first, name), bits(second, name))]


def bits(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    return checkpoint.tensor(name).contiguous().view(torch.uint8)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden checkpoint's configuration with other weights."""
    directory = tmp_path_factory.mktemp("made") / "tiny"
    make_tiny(directory, CONFIG, seed=3, tokenizer=TOKENIZER)
    return directory


def test_a_config_is_read_from_a_file_a_directory_or_is_the_small_one_of_the_package() -> None:
    assert config_to_fill(None) == tiny_config()
    assert config_to_fill(TINY) == config_to_fill(TINY / "config.json") == CONFIG
    with pytest.raises(ConfigError, match=r"nowhere.json: expected a file"):
        config_to_fill(TINY / "nowhere.json")


def test_a_tokenizer_beside_a_config_is_found() -> None:
    assert tokenizer_beside(TINY) == tokenizer_beside(TINY / "config.json") == TINY / "tokenizer.json"
    assert tokenizer_beside(DATA / "tiny-a.json") is None
    assert tokenizer_beside(None) is None


def test_the_doctor_finds_no_fault(made: Path) -> None:
    report = examine(made)
    assert report.faults == ()
    assert report.token_map is TokenMapStatus.CHECKED
    assert report.num_tensors == len(schema(CONFIG))


def test_it_can_be_run(made: Path) -> None:
    model = load_model(made, Profile.VENDOR, Profile.VENDOR.default_pool, ReferenceKernels())
    logits = trace(model, [0, 5, 6, 7], points=())["logits"]
    assert logits.shape == (4, CONFIG.vocab_size)
    assert np.isfinite(logits).all()


def test_the_same_seed_gives_the_same_files(made: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path / "again", CONFIG, seed=3, tokenizer=TOKENIZER)
    assert digests(tmp_path / "again") == digests(made)


def test_another_seed_gives_other_weights_and_the_same_rest(made: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path / "other", CONFIG, seed=4, tokenizer=TOKENIZER)
    first, second = digests(made), digests(tmp_path / "other")
    changed = {name for name in first if first[name] != second[name]}
    assert changed == {name for name in first if name.endswith(".safetensors")}


def test_with_its_seed_the_small_one_of_all_tests_is_made(tmp_path: Path, tiny_directory: Path) -> None:
    make_tiny(tmp_path / "made", tiny_config(), SEED)
    assert differing(open_checkpoint(tmp_path / "made"), open_checkpoint(tiny_directory)) == []
    for name, content in tiny_tokenizer_files().items():
        assert (tmp_path / "made" / name).read_bytes() == content


def test_its_bytes_are_the_same_everywhere(tiny_directory: Path) -> None:
    total = hashlib.sha256()
    for path in sorted(tiny_directory.iterdir()):
        total.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        total.update(path.read_bytes())
    assert total.hexdigest() == "29046594f44463bccbc2c2a768c9296af1457a90588d9594e5868f3ca1708f76"


def test_large_checkpoints_are_cut_into_shards(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "BYTES_PER_SHARD", 1 << 20)
    make_tiny(tmp_path / "cut", CONFIG, seed=3, tokenizer=TOKENIZER)
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) > 3
    assert differing(open_checkpoint(tmp_path / "cut"), open_checkpoint(made)) == []


def test_progress_names_every_tensor_once(tmp_path: Path) -> None:
    names: list[str] = []
    make_tiny(tmp_path / "out", CONFIG, 0, TOKENIZER, names.append)
    assert sorted(names) == sorted(schema(CONFIG))


def test_an_existing_directory_is_replaced_only_by_force(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_tiny(tmp_path / "out", CONFIG, seed, TOKENIZER, force=seed == 2)
    before = digests(tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"target: got '.*out', expected a name that does not exist yet"):
        make_tiny(tmp_path / "out", CONFIG, 3, TOKENIZER)
    assert digests(tmp_path / "out") == before


# Tokenizers.


def test_a_config_of_another_vocabulary_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make_tiny(tmp_path / "out", CONFIG, 0, progress=pytest.fail)
    remedy = "(that of the small tokenizer of the package; name another tokenizer.json with --tokenizer)"
    assert f"vocab_size: got 512, expected 1024 {remedy}" in str(caught.value)
    assert f"engram_compressed_vocab_size: got 437, expected 875 {remedy}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_config_of_other_control_tokens_needs_a_tokenizer(tmp_path: Path) -> None:
    config = dataclasses.replace(tiny_config(), tokens=dataclasses.replace(tiny_config().tokens, eos=7))
    with pytest.raises(ConfigError, match=r"^eos_token_id: got 7, expected 1 "):
        make_tiny(tmp_path / "out", config, 0, progress=pytest.fail)


def test_a_config_of_other_widths_takes_the_default_tokenizer(tmp_path: Path) -> None:
    document = json.loads((Path(tiny.__file__).parents[1] / "checkpoint/data/tiny/config.json").read_text())
    config = config_from_dict(patched({"text_config.hidden_size": 96, "text_config.n_routed_experts": 3}, document))
    make_tiny(tmp_path / "wide", config, 0)
    report = examine(tmp_path / "wide")
    assert report.faults == ()
    assert report.token_map is TokenMapStatus.CHECKED


def test_a_tokenizer_with_other_classes_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tiny_tokenizer_files()["tokenizer.json"])
    with pytest.raises(ConfigError, match=r"engram_compressed_vocab_size: got \d+ classes from the tokenizer"):
        make_tiny(tmp_path / "out", CONFIG, 0, tmp_path / "tokenizer.json", pytest.fail)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.json: got 'No such file or directory'"):
        make_tiny(tmp_path / "out", CONFIG, 0, tmp_path / "nowhere.json", pytest.fail)


def test_the_tokenizer_is_copied_under_its_official_name_with_its_configuration(tmp_path: Path) -> None:
    source = tmp_path / "mine.json"
    source.write_bytes(TOKENIZER.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{}")
    make_tiny(tmp_path / "out", CONFIG, 0, source)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == TOKENIZER.read_bytes()
    assert (tmp_path / "out" / "tokenizer_config.json").read_text() == "{}"
