"""The drafter of other configurations against the oracle of `oracles.drafter`, and the release's rings of 133 and 7."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from flash41.checkpoint.synthetic import synthetic_weights
from flash41.checkpoint.writer import write_checkpoint
from flash41.config.huggingface import config_from_dict
from flash41.config.run import Profile
from flash41.engine.load import LoadedModel
from flash41.engram.vocabulary import token_map
from flash41.tools.traces import trace
from helpers.config_documents import patched, tiny_text
from helpers.drafting import DraftingFeeder
from helpers.feeding import one_shot
from helpers.golden_judge import CHECKPOINT, Array, relative_rows
from helpers.models import Models, fresh_model
from oracles.drafter import Block, Drafter

SHARP = 2e-6
"""Relative error of a row in profile `fp32`, and of a row of `vendor` that no tie has reached."""
RELEASE_WINDOW = 128


def tokens(length: int, seed: int = 0) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(3, 504, length - 1).tolist()
    return [0, *drawn]


def both(model: LoadedModel, ids: Sequence[int]) -> tuple[dict[str, Array], Block]:
    traced = trace(model, ids, draft=True)
    classes: list[int] = token_map(model.directory / "tokenizer.json", model.config.vocab_size).tolist()
    oracle = Drafter(model.directory, classes, rounded=model.profile is not Profile.FP32)
    return traced, oracle.block(ids, int(traced["logits"][-1].argmax()))


@pytest.mark.parametrize("length", [2, 4, 23])
def test_profile_fp32_drafts_by_the_mathematics_of_the_oracle(length: int, models: Models, checkpoint: Path) -> None:
    traced, expected = both(models(checkpoint, Profile.FP32), tokens(length, length))
    assert traced["trace/draft.ids"].tolist() == expected.ids
    for point, values in (
        ("dspark.main_x", expected.main_x),
        ("draft.base_logits", expected.base_logits),
        ("draft.logits", expected.logits),
        ("draft.confidence", expected.confidence[None]),
    ):
        assert relative_rows(traced[f"trace/{point}"].reshape(values.shape), values).max() < SHARP, point


def test_profile_vendor_rounds_where_the_oracle_rounds(models: Models, second_checkpoint: Path) -> None:
    # A tie that falls differently in the target reaches the block through its taps, so blocks without one are judged.
    sharp = 0
    for seed in range(4):
        traced, expected = both(models(second_checkpoint, Profile.VENDOR), tokens(3, seed))
        if np.array_equal(traced["trace/dspark.main_x"], expected.main_x):
            errors = relative_rows(traced["trace/draft.base_logits"], expected.base_logits)
            sharp += int(errors.max() < SHARP)
    assert sharp >= 2


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The golden topology with the release's window, so rings of 133 and 7 rows; width 5, three stages."""
    config = config_from_dict(patched({"text_config.sliding_window": RELEASE_WINDOW}, json.loads(tiny_text())))
    directory = tmp_path_factory.mktemp("wide") / "checkpoint"
    tokenizer = {"tokenizer.json": (CHECKPOINT / "tokenizer.json").read_bytes()}
    write_checkpoint(directory, config, synthetic_weights(config, 3), num_shards=1, tokenizer_files=tokenizer)
    return fresh_model(Profile.VENDOR, directory=directory)


def test_rings_of_133_and_7_rows_survive_every_rejection(wide: LoadedModel) -> None:
    ids = tokens(160)
    whole = one_shot(wide, ids)
    feeder = DraftingFeeder(wide, 2, len(ids) + 8)
    shape = feeder.runner.store.shape
    assert (shape.ring, shape.member_depth, shape.num_layers) == (133, 7, 13)
    feeder.feed({0: ids[:130]})
    position = 130
    for accepted in (0, 0, 5, 1, 0, 2):
        drafts = [*ids[position + 1 : position + 1 + accepted], *[3] * (5 - accepted)]
        logits = feeder.feed({0: [ids[position], *drafts]})[0]
        assert torch.equal(logits[: accepted + 1], whole[position : position + 1 + accepted]), position
        position += accepted + 1
        feeder.rewind(0, position)
    fresh = DraftingFeeder(wide, 1, len(ids))
    fresh.feed({0: ids[:position]})
    got, expected = feeder.draft({0: 9})[0], fresh.draft({0: 9})[0]
    assert torch.equal(got.logits, expected.logits)
    assert torch.equal(got.confidence, expected.confidence)
