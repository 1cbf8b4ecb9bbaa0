"""A draft depends on the tokens before it and on nothing else, and drafting changes no number of the target.

All equalities are of bits.  The reference is a prompt computed in one forward, in a fresh slot.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flash41.cache.geometry import pool_geometry
from flash41.cache.geometry_rules import smallest_block_size
from flash41.cache.paged import PagedStore
from flash41.cache.placement import placement
from flash41.checkpoint.residence import Residence
from flash41.config.run import Draft, DraftAccept, PoolDtype, Profile
from flash41.engine.load import LoadedModel
from flash41.engine.plan import PlannedSpan
from flash41.model.draft_heads import Drafts
from flash41.planning.resolve import RunPlan
from helpers.drafting import DraftingFeeder, speculative
from helpers.feeding import greedy, one_shot
from helpers.models import Models
from helpers.picturing import picture_plan

EXACT = (Profile.VENDOR, Profile.ATOM, Profile.FP32)
LENGTH = 23
"""Longer than a ring and a half of 13 rows, and than two of 10."""
ANCHOR = 9
POISON = 0xFF
"""As BF16, FP32, E4M3 or E8M0: NaN."""


def tokens(length: int, seed: int = 0) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(3, 504, length - 1).tolist()
    return [0, *drawn]


@pytest.fixture(scope="session")
def models(quick_models: Models) -> Models:
    return quick_models


@pytest.fixture(params=EXACT, ids=lambda profile: profile.value)
def model(request: pytest.FixtureRequest, models: Models, checkpoint: Path) -> LoadedModel:
    return models(checkpoint, request.param)


def differing(got: Drafts, expected: Drafts) -> list[str]:
    names = ("ids", "base_logits", "logits", "confidence")
    return [name for name in names if not torch.equal(getattr(got, name), getattr(expected, name))]


def fresh(model: LoadedModel, ids: Sequence[int], anchor: int = ANCHOR) -> Drafts:
    """Drafts behind a prompt that was computed in one forward."""
    return fresh_all(model, [ids], anchor)[0]


def fresh_all(model: LoadedModel, prompts: Sequence[Sequence[int]], anchor: int = ANCHOR) -> list[Drafts]:
    """Drafts behind prompts, each in a slot of its own; that company changes nothing is shown by another test."""
    feeder = DraftingFeeder(model, len(prompts), max(map(len, prompts)))
    feeder.feed(dict(enumerate(prompts)))
    return list(feeder.draft(dict.fromkeys(range(len(prompts)), anchor)).values())


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, ...]:
    borders = sorted(draw(st.sets(st.integers(1, LENGTH - 1), max_size=5)))
    return tuple(end - start for start, end in pairwise([0, *borders, LENGTH]))


def test_taps_fed_in_pieces_give_the_draft_of_one_forward(model: LoadedModel) -> None:
    cut = {0: [LENGTH], 1: [LENGTH - 1, 1], 2: [5, 14, 4]}
    feeder = DraftingFeeder(model, len(cut), LENGTH)
    for slot, lengths in cut.items():
        feeder.feed_chunks(tokens(LENGTH), lengths, slot)
    whole, *pieces = feeder.draft(dict.fromkeys(cut, ANCHOR)).values()
    assert [differing(drafts, whole) for drafts in pieces] == [[], []]


@given(lengths=cuts())
@example(lengths=(1,) * LENGTH)
@settings(max_examples=2, deadline=None)
def test_any_chunks_give_the_draft_of_one_forward(lengths: tuple[int, ...], models: Models, checkpoint: Path) -> None:
    model = models(checkpoint, Profile.VENDOR)
    feeder = DraftingFeeder(model, 2, LENGTH)
    feeder.feed_chunks(tokens(LENGTH), lengths, slot=1)
    assert differing(feeder.draft({1: ANCHOR})[1], fresh(model, tokens(LENGTH))) == []


def test_ragged_requests_draft_together_what_each_drafts_alone(model: LoadedModel) -> None:
    prompts = {0: tokens(1, 1), 1: tokens(2, 2), 3: tokens(9, 3), 2: tokens(17, 4), 4: tokens(LENGTH, 5)}
    feeder = DraftingFeeder(model, 5, LENGTH)
    feeder.feed(prompts)
    anchors = {slot: 10 + slot for slot in (4, 0, 3, 1, 2)}
    for slot, drafts in feeder.draft(anchors).items():
        assert differing(drafts, fresh(model, prompts[slot], anchors[slot])) == [], slot


def test_a_draft_depends_on_its_prompt_and_its_anchor(model: LoadedModel) -> None:
    # Or the equalities above would hold for a drafter that looks at nothing.
    first = fresh(model, tokens(LENGTH))
    for other in (fresh(model, tokens(LENGTH, 1)), fresh(model, tokens(LENGTH), ANCHOR + 1)):
        assert not torch.equal(first.base_logits, other.base_logits)


def wrong(token: int) -> int:
    return 3 + (token + 10) % 500


def forced(model: LoadedModel, ids: Sequence[int], start: int, plan: Sequence[int]) -> Iterator[tuple[int, Drafts]]:
    """Drafts whose first k tokens are right, for every k of the plan; yields what is kept and the drafts behind it.

    The right continuation is `ids`, whatever the model thinks of it: what is verified is what is forced.
    """
    whole = one_shot(model, ids)
    feeder = DraftingFeeder(model, 1, len(ids) + 8)
    feeder.feed({0: ids[:start]})
    position = start
    for accepted in plan:
        drafts = [*ids[position + 1 : position + 1 + accepted]]
        drafts += [wrong(ids[position + 1 + k]) for k in range(accepted, 5)]
        logits = feeder.feed({0: [ids[position], *drafts]})[0]
        kept = position + 1 + accepted
        assert torch.equal(logits[: accepted + 1], whole[position:kept]), (position, accepted)
        feeder.rewind(0, kept)
        position = kept
        yield position, feeder.draft({0: ANCHOR})[0]


@pytest.mark.parametrize("start", [5, 6], ids=["odd", "even"])
def test_every_acceptance_leaves_the_state_of_a_request_that_never_drafted(start: int, model: LoadedModel) -> None:
    # Both parities of a group of two, and positions that pass the rings of 13 and 10 rows.
    plan = (0, 5, 1, 4, 2, 3) if model.profile is Profile.VENDOR else (5, 0, start - 4)
    ids = tokens(start + len(plan) + sum(plan) + 6)
    positions, drafts = zip(*forced(model, ids, start, plan), strict=True)
    expected = fresh_all(model, [ids[:position] for position in positions])
    assert [differing(got, right) for got, right in zip(drafts, expected, strict=True)] == [[]] * len(plan)


def test_a_drafted_text_is_the_text_without_drafts(models: Models, checkpoint: Path) -> None:
    model = models(checkpoint, Profile.VENDOR)
    ((plain,), _) = greedy(model, [tokens(7)], 12)
    drafted, turns = speculative(model, tokens(7), 12)
    assert drafted == plain
    assert 2 <= len(turns) <= 11


@pytest.mark.parametrize("profile", [Profile.VENDOR, Profile.ATOM])
def test_pools_of_equal_numbers_draft_equally(profile: Profile, models: Models, checkpoint: Path) -> None:
    # In atom the index pool is part of the numbers, and its packed main pool is refused with drafts (S4), not wrong.
    pools = [
        pool for pool in profile.allowed_pools if profile is Profile.VENDOR or pool.index is profile.default_pool.index
    ]
    found = [fresh(models(checkpoint, profile, pool), tokens(LENGTH)) for pool in pools]
    assert len(found) >= 2
    assert [differing(drafts, found[0]) for drafts in found] == [[]] * len(found)


@pytest.mark.parametrize("packed", [False, True])
def test_pages_draft_what_contiguous_rows_draft(packed: bool, models: Models, checkpoint: Path) -> None:
    pools = [pool for pool in Profile.VENDOR.allowed_pools if (pool.main is PoolDtype.FP4) == packed]
    model = models(checkpoint, Profile.VENDOR, pools[0])
    feeder = paged(model, 3)
    prompts = {0: tokens(LENGTH, 1), 2: tokens(4, 2)}
    feeder.feed({slot: ids[:3] for slot, ids in prompts.items()})
    feeder.feed({0: prompts[0][3:]})
    feeder.feed({2: prompts[2][3:]})
    for slot, drafts in feeder.draft({2: 7, 0: ANCHOR}).items():
        assert differing(drafts, fresh(model, prompts[slot], 7 if slot == 2 else ANCHOR)) == [], slot


class Paged(DraftingFeeder):
    """Gives every slot pages of its own."""

    def _span(self, slot: int, ids: tuple[int, ...]) -> PlannedSpan:
        store = self.runner.store
        assert isinstance(store, PagedStore)
        per_slot = store.pool.placement.num_pages // store.shape.num_slots
        pages = tuple(range(slot * per_slot, (slot + 1) * per_slot))
        return replace(super()._span(slot, ids), pages=pages)


def paged(model: LoadedModel, num_slots: int) -> Paged:
    """A feeder over a pool full of NaN whose entries have rings for the stages."""
    attention, draft_tokens = model.config.attention, model.config.dspark.block_size
    ratios = [attention.compress_ratios[owner] for owner in attention.kv_source_layer_ids]
    block_size = smallest_block_size(model.config.indexer.candidate_block_size, ratios)
    geometry = pool_geometry(model.config, model.pool, block_size=block_size, draft_tokens=draft_tokens)
    num_pages = geometry.pages_for(LENGTH)
    places = placement(geometry, num_slots * num_pages, num_slots)
    plan = RunPlan(
        placement=places,
        block_size=block_size,
        num_pages=places.num_pages,
        num_images=0,
        image_interval=block_size,
        prefix_cache=False,
        decoder_replay=False,
        prefix_replay=False,
        draft=Draft.ON,
        draft_accept=DraftAccept.SHARED_NOISE,
        draft_tokens=draft_tokens,
        max_num_seqs=num_slots,
        max_num_batched_tokens=64,
        max_model_len=LENGTH,
        residence=Residence(),
        pictures=picture_plan(),
        choices=(),
    )
    feeder = Paged(model, num_slots, LENGTH)
    feeder.runner = model.planned_runner(plan)
    assert isinstance(feeder.runner.store, PagedStore)
    feeder.runner.store.pool.memory.fill_(POISON)
    return feeder
