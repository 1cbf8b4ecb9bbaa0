"""Runs of a tiny model: resumed runs, what each stage moves, reports, refusals."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from flash41.checkpoint.loader import open_checkpoint
from flash41.checkpoint.stored import Scope
from flash41.errors import CheckpointError, ConfigError
from helpers.small_training import PHASES, small_config
from training.corpus.mixture import DRILLS, FAMILIES
from training.curriculum import Phase
from training.model.masters import Masters
from training.optimizer import BALANCE_RATE, balance
from training.report import COLUMNS
from training.state import load, save
from training.steps import STAGES, learn
from training.train import STATE, Run, main, parse, train

Values = dict[str, torch.Tensor]


def run(folder: Path, steps: int, *more: str, phases: tuple[Phase, ...] = PHASES) -> Run:
    folder.mkdir(exist_ok=True)
    wish = parse(["--out", str(folder), "--minutes", "9", "--max-steps", str(steps), "--report-steps", "2", *more])
    return Run(wish, small_config(), phases)


def stepped(one: Run, steps: int) -> Run:
    for _ in range(steps):
        one.step()
    one.save()
    return one


def state(folder: Path) -> bytes:
    return (folder / STATE).read_bytes()


def values(one: Run) -> Values:
    return {name: value.detach().clone() for name, value in one.masters.parameters.items()}


def moved(before: Values, after: Values) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.fixture(scope="module")
def began(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the state of a target after two steps."""
    folder = tmp_path_factory.mktemp("began")
    stepped(run(folder, 2), 2)
    return folder


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(began: Path, tmp_path: Path) -> None:
    whole = stepped(run(tmp_path / "whole", 4), 4)
    assert whole.progress.phase == "second", "the phase changes on the way"
    resumed = run(tmp_path / "resumed", 2, "--resume", str(began / STATE))
    assert resumed.progress.steps == 2
    stepped(resumed, 2)
    assert resumed.progress == whole.progress
    assert moved(values(whole), values(resumed)) == set()
    assert state(tmp_path / "whole") == state(tmp_path / "resumed")


@pytest.mark.parametrize("stage", ["target", "drafter"])
def test_a_stage_moves_its_own_parameters_and_no_others(stage: str, began: Path, tmp_path: Path) -> None:
    shown = (replace(PHASES[-1], pictures=200.0),)
    one = run(tmp_path / "run", 2, "--stage", stage, "--resume", str(began / STATE), phases=shown)
    before = values(one)
    stepped(one, 2)
    changed = moved(before, values(one))
    allowed = set(one.masters.of(*STAGES[stage]))
    assert changed <= allowed
    # Experts that nobody visited and heads of unseen tokens may rest; most others must have moved.
    assert len(changed) > 0.6 * len(allowed)
    if stage == "target":
        assert {one.masters.scopes[name] for name in changed} == {Scope.BACKBONE, Scope.VISION}


def test_the_tower_rests_until_a_phase_shows_pictures(began: Path, tmp_path: Path) -> None:
    before = values(run(tmp_path / "fresh", 1))
    after = values(run(tmp_path / "run", 1, "--resume", str(began / STATE)))
    tower = set(Masters(small_config(), 1).of(Scope.VISION))
    assert moved(before, after) & tower == set()
    assert moved(before, after)


def test_training_lowers_the_loss_of_what_it_sees(tmp_path: Path) -> None:
    one = run(tmp_path / "run", 1)
    batch = one.batches.next(PHASES[0], {"stories": 1.0})
    losses = []
    for _ in range(8):
        losses.append(learn(one.masters, one.token_map, batch).loss)
        one.optimizer.step(1e-2)
    assert losses[-1] < 0.7 * losses[0]


def test_a_run_leaves_a_checkpoint_curves_and_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.train.EVALUATED", 1)
    one = run(tmp_path / "run", 2)
    train(one)
    assert one.progress.steps == 2
    assert open_checkpoint(tmp_path / "run" / "checkpoint").config == small_config()
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert capsys.readouterr().out.splitlines() == [json.dumps(line) for line in lines]
    assert set(lines[-1]["scores"]) > {"stories", "recall"}
    with (tmp_path / "run" / "curve.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert tuple(row) == COLUMNS
    assert float(row["loss"]) == lines[0]["loss"]
    assert set(lines[0]["families"]) <= {*FAMILIES, *DRILLS}
    assert min(lines[0]["families"].values()) > 0


def test_a_state_of_another_configuration_seed_or_kind_is_refused(began: Path, tmp_path: Path) -> None:
    other = Masters(replace(small_config(), num_layers=5, hidden_size=64), 1)
    with pytest.raises(CheckpointError, match="those of the configuration"):
        load(began / STATE, other.parameters)
    with pytest.raises(CheckpointError, match=r"seed of .* expected --seed 2"):
        run(tmp_path / "run", 1, "--resume", str(began / STATE), "--seed", "2")
    save_file({"p/x": torch.zeros(1)}, tmp_path / "foreign")
    with pytest.raises(CheckpointError, match=r"format of .*: got "):
        load(tmp_path / "foreign", other.parameters)
    (tmp_path / "odd").write_bytes(b"nothing of that kind")
    with pytest.raises(CheckpointError, match="a readable file"):
        load(tmp_path / "odd", other.parameters)
    with pytest.raises(CheckpointError, match="a readable file"):
        load(tmp_path / "missing", other.parameters)


def test_a_state_replaces_the_last_one_whole(began: Path, tmp_path: Path) -> None:
    masters = Masters(small_config(), 1)
    progress, moments = load(began / STATE, masters.parameters)
    save(tmp_path / STATE, progress, masters.parameters, moments)
    assert (tmp_path / STATE).read_bytes() == state(began)
    assert [path.name for path in tmp_path.iterdir()] == [STATE]


def test_a_wish_that_would_lose_work_or_learn_nothing_is_refused(began: Path) -> None:
    with pytest.raises(ConfigError, match=r"a folder without state\.safetensors") as caught:
        parse(["--out", str(began), "--minutes", "0", "--report-steps", "0", "--tokens", "nan"])
    for name in ("--minutes: got 0.0", "--report-steps: got 0", "--tokens: got nan"):
        assert name in str(caught.value)
    with pytest.raises(ConfigError, match="a trained target for --stage drafter"):
        parse(["--out", str(began / "other"), "--minutes", "1", "--stage", "drafter"])


def test_the_command_ends_with_a_line_instead_of_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--out", str(tmp_path), "--minutes", "-1"], ["--out", "/proc/none", "--minutes", "1"]):
        monkeypatch.setattr("sys.argv", ["train", *arguments])
        with pytest.raises(SystemExit, match="error: "):
            main()


def test_balance_raises_the_bias_of_who_was_chosen_less() -> None:
    bias = nn.Parameter(torch.zeros(3))
    ids, kept = torch.tensor([[0, 1], [0, 2], [2, 1]]), torch.tensor([True, True, False])
    assert balance([bias], [ids], kept) == 1.5
    assert torch.equal(bias.detach(), BALANCE_RATE * torch.tensor([-1.0, 1.0, 1.0]))
    assert balance([bias], [ids], torch.zeros(3, dtype=torch.bool)) == 1.0
