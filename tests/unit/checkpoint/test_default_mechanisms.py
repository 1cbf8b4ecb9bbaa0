"""Everything the real model does happens in the embedded default, in a prompt of some 300 tokens of its own world."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from flash41.chat.conversation import ChatCodec
from flash41.checkpoint.embedded import default_config
from flash41.config.run import Profile
from flash41.config.topology import LayerMode, topology
from flash41.engine.load import LoadedModel, load_model
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.canary.conversations import read_set
from flash41.tools.traces import trace
from helpers.golden_judge import Array

SHORTEST, LONGEST = 250, 400


@pytest.fixture(scope="module")
def prompts(default_directory: Path) -> list[tuple[int, ...]]:
    """Questions about shelves of things, for which rows are selected again among candidates."""
    codec = ChatCodec.from_directory(default_directory, default_config().tokens.image)
    return [codec.encode(codec.convert(question.body)).ids for question in read_set().chosen(("ledger",))]


@pytest.fixture(scope="module")
def model(default_directory: Path) -> LoadedModel:
    profile = Profile.VENDOR
    return load_model(default_directory, profile, profile.default_pool, ReferenceKernels(), drafts=True)


@pytest.fixture(scope="module")
def traced(model: LoadedModel, prompts: list[tuple[int, ...]]) -> dict[str, Array]:
    return trace(model, next(prompt for prompt in prompts if SHORTEST < len(prompt) < LONGEST))


def test_all_layer_modes_and_both_ratios_are_there() -> None:
    layers = topology(default_config()).layers
    assert {layer.mode for layer in layers} == set(LayerMode)
    assert {layer.ratio for layer in layers} == {0, 1, 2}
    assert any(layer.produces_candidates for layer in layers)
    assert any(layer.bounded_by_candidates for layer in layers)


def test_the_parts_around_the_layers_are_there() -> None:
    config = default_config()
    assert len(config.engram.layer_ids) == 2
    assert config.dspark.num_stages == 3
    assert config.mhc.streams == 4
    assert config.vision.num_layers > 0
    assert config.indexer.topk < SHORTEST // 2
    assert config.attention.window < SHORTEST


def test_the_candidate_source_drops_blocks_that_are_visible(traced: dict[str, Array]) -> None:
    config = default_config().indexer
    candidates = traced[f"trace/L{config.candidate_source_layer_id}.index.candidates"]
    num_visible = np.arange(1, len(candidates) + 1)
    num_blocks = -(-num_visible // config.candidate_block_size)
    kept = (candidates >= 0).sum(1)
    assert (kept <= num_blocks).all()
    assert (kept < num_blocks).sum() > 50
    # More than the oldest or the newest blocks: which ones are dropped depends on the scores.
    dropped = Counter(
        block for row, count in zip(candidates, num_blocks, strict=True) for block in set(range(count)) - set(row)
    )
    assert len(dropped) > 6


def test_a_bounded_scorer_selects_other_rows_than_it_would_unbounded(traced: dict[str, Array]) -> None:
    config = default_config()
    (bounded,) = (layer.layer_id for layer in topology(config).layers if layer.bounded_by_candidates)
    scores, selected = (traced[f"trace/L{bounded}.index.{name}"] for name in ("scores", "selected"))
    topk, differing = config.indexer.topk, 0
    for position in range(len(selected)):
        visible = scores[position, : position + 1]
        best = np.sort(np.argsort(-visible, kind="stable")[:topk])
        differing += list(best) != [row for row in selected[position] if row >= 0]
    assert differing > 20


def test_both_engram_tables_are_used(traced: dict[str, Array]) -> None:
    for layer_id in default_config().engram.layer_ids:
        assert len(np.unique(traced[f"trace/L{layer_id}.engram.rows"])) > 100


def test_every_expert_is_used_by_a_few_conversations(model: LoadedModel, prompts: list[tuple[int, ...]]) -> None:
    config = default_config()
    short = [prompt for prompt in prompts if len(prompt) < LONGEST][:4]
    found = [trace(model, prompt, None, ("L*.router.ids",)) for prompt in short]
    for layer_id in range(config.num_layers):
        used = np.unique(np.concatenate([one[f"trace/L{layer_id}.router.ids"].ravel() for one in found]))
        assert used.tolist() == list(range(config.moe.num_experts))


def test_every_value_is_a_number_of_moderate_size(traced: dict[str, Array]) -> None:
    for point, values in traced.items():
        if point.endswith("index.scores"):
            continue  # -inf where a row is not visible yet
        assert np.isfinite(values).all(), point
    assert 1 < traced["logits"].std() < 20
    assert traced["trace/final.norm"].std() < 10


def test_the_head_prefers_no_token_for_every_row(traced: dict[str, Array]) -> None:
    assert len(set(traced["logits"].argmax(1))) > 10
