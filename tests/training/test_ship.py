"""From a state to the folder of the embedded default: whole, the same bytes again, and the card where it was."""

import sys
from pathlib import Path

import pytest
import torch

from flash41.checkpoint.default import default_checkpoint
from flash41.checkpoint.loader import open_checkpoint
from flash41.errors import CheckpointError
from flash41.tools.doctor import examine
from training.export import stored_weights
from training.model.masters import Masters
from training.ship import CARD_FILE, TARGET, main, ship
from training.state import Progress, save
from training.tokenizer import CONFIG, FOLDER, shipped_config

CARD = b'{"canary": {"samples": 1, "at_least": {}, "needs": {}}}\n'


@pytest.fixture(scope="module")
def masters() -> Masters:
    """Weights that no run would begin with."""
    found = Masters(shipped_config(), seed=7)
    generator = torch.Generator().manual_seed(7)
    for value in found.parameters.values():
        value.data.add_(0.01 * torch.randn(value.shape, generator=generator))
    return found


@pytest.fixture(scope="module")
def state(masters: Masters, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "state.safetensors"
    save(path, Progress(seed=7, stage="drafter"), masters.parameters, {})
    return path


@pytest.fixture(scope="module")
def shipped(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("package") / "default"
    ship(state, directory)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_package_gets_the_weights_of_the_state_with_config_and_tokenizer(shipped: Path, masters: Masters) -> None:
    report = examine(shipped)
    assert (report.faults, len(report.shards), report.token_map.value) == ((), 3, "checked")
    checkpoint, wanted = open_checkpoint(shipped), stored_weights(masters)
    for name in ("embed.weight", "layers.2.ffn.experts.3.w1.weight", "layers.1.attn.wq_a.scale"):
        assert torch.equal(checkpoint.tensor(name).view(torch.uint8), wanted(name).view(torch.uint8)), name
    found = contents(shipped)
    assert found["config.json"] == CONFIG.read_bytes()
    assert {name: found[name] for name in ("tokenizer.json", "tokenizer_config.json")} == contents(FOLDER)


def test_the_folder_is_the_one_that_is_opened_without_a_name() -> None:
    assert default_checkpoint().samefile(TARGET)


def test_the_same_state_gives_the_same_bytes_and_a_card_stays(
    state: Path, shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, card = tmp_path / "default", tmp_path / "mine.json"
    card.write_bytes(CARD)
    for options, told in (
        ([], "without a card, which the package needs"),
        (["--card", str(card)], "with its card"),
        ([], "with its card"),
    ):
        monkeypatch.setattr(sys, "argv", ["ship", str(state), "--to", str(target), *options])
        main()
        size = sum(map(len, contents(target).values()))
        assert capsys.readouterr().out.endswith(f" tensors, {size:,} bytes, {told}\n")
    assert contents(target) == {**contents(shipped), CARD_FILE: CARD}


@pytest.mark.parametrize(
    ("text", "said"), [("{", "strict JSON"), ('{"canary": 1}', "an object 'canary'"), (None, "No such file")]
)
def test_a_card_that_is_none_is_refused_before_anything_is_written(
    text: str | None, said: str, state: Path, tmp_path: Path
) -> None:
    card = tmp_path / "card.json"
    if text is not None:
        card.write_text(text)
    with pytest.raises(CheckpointError, match=said):
        ship(state, tmp_path / "default", card)
    assert not (tmp_path / "default").exists()


def test_a_file_that_is_no_state_is_one_line_and_status_1(
    tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["ship", str(shipped / "config.json"), "--to", str(tmp_path / "default")])
    with pytest.raises(SystemExit, match="error: training state") as caught:
        main()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "default").exists()
