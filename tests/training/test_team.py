"""Processes that share a step: one step of two is the mean of what each saw, and their copies stay equal."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.small_training import PHASES, failing, one_step, small_config
from training.curriculum import TEXT, learning_rate, widened
from training.model.masters import Masters
from training.optimizer import is_bias
from training.state import load
from training.steps import learn
from training.team import ALONE, Team, together
from training.train import PEAK, Run, parse


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Joining sets variables that commands of other tests would inherit."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_one_alone_sums_and_gathers_its_own() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    ALONE.mean_gradients([parameter])
    assert parameter.grad.tolist() == [1.0, 1.0]
    assert ALONE.leads
    assert ALONE.total(torch.ones(1)).item() == 1.0
    assert ALONE.gather("said") == ["said"]
    assert not Team(1, 2).leads


def test_a_step_of_two_is_the_mean_of_what_both_saw(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--minutes", "9"]
    together(one_step, arguments, 2, tmp_path / "meeting")
    assert not (tmp_path / "meeting").exists()
    kept = [(tmp_path / f"{rank}.safetensors").read_bytes() for rank in range(2)]
    assert kept[0] == kept[1], "the copies are equal bit for bit"
    shared = Masters(small_config(), 1)
    progress, _ = load(tmp_path / "0.safetensors", shared.parameters)

    alone = Run(parse(arguments), small_config(), PHASES)
    half = replace(PHASES[0], batch_tokens=PHASES[0].batch_tokens // 2)
    batches = [alone.batches.next(half, TEXT) for _ in range(2)]
    assert progress.tokens == sum(batch.num_tokens for batch in batches)
    biases = {name: value.detach().clone() for name, value in alone.masters.parameters.items() if is_bias(name)}
    alone.masters.config = widened(alone.config, PHASES[0])
    for batch in batches:  # gradients add up
        learn(alone.masters, alone.token_map, batch, dense=True)
        with torch.no_grad():
            for name, value in biases.items():
                alone.masters.parameters[name].copy_(value)
    for one in alone.trained.values():
        if one.grad is not None:
            one.grad /= 2
    alone.optimizer.step(learning_rate(PEAK["target"], 0, 0, alone.wish.tokens))
    for name, value in alone.masters.parameters.items():
        if name not in biases:
            assert torch.equal(value, shared.parameters[name]), name
    assert any(not torch.equal(value, shared.parameters[name]) for name, value in biases.items())


def test_when_one_fails_the_others_end_and_its_error_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the leader fell"):
        together(failing, [], 2, tmp_path / "meeting")
    assert list(tmp_path.iterdir()) == []
