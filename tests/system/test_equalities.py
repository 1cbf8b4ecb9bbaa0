"""A row's result depends on the tokens before it and on nothing else: not on chunks, company, slots or pool formats.

All equalities are of bits.  The one exception is profile `demo`, which reproduces a defect of the official program.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flash41.config.run import Profile
from flash41.config.topology import topology
from flash41.engine.load import LoadedModel
from flash41.kernels.reference.index import index_scores_bf16_chain
from flash41.tools.traces import trace
from helpers.feeding import Feeder, one_shot
from helpers.golden_judge import CHECKPOINT, Array
from helpers.models import Models

EXACT = (Profile.VENDOR, Profile.ATOM, Profile.FP32)
LENGTH = 22
"""Longer than three windows and, at ratio 2, than top-k, in both checkpoints."""
POOL_POINTS = ("*.index.selected", "*.index.candidates", "*.index.scores", "*.attn.out")

Lengths = tuple[int, ...]


def tokens(length: int, seed: int = 0) -> list[int]:
    """Ordinary ids after BOS."""
    drawn: list[int] = np.random.default_rng(seed).integers(3, 504, length - 1).tolist()
    return [0, *drawn]


@pytest.fixture(scope="session")
def models(models_of_backends: Models) -> Models:
    """Each backend is equal to itself, whatever it owes another."""
    return models_of_backends


@pytest.fixture(params=EXACT, ids=lambda profile: profile.value)
def model(request: pytest.FixtureRequest, models: Models, checkpoint: Path) -> LoadedModel:
    return models(checkpoint, request.param)


class Once:
    """Keeps what was made under a key."""

    def __init__(self) -> None:
        self._made: dict[object, Any] = {}

    def __call__(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


@pytest.fixture(scope="module")
def once() -> Once:
    return Once()


def alone(model: LoadedModel, ids: list[int], once: Once) -> Tensor:
    """Logits of one forward, made once."""
    logits: Tensor = once((model.kernels.name, model.directory, model.profile, *ids), lambda: one_shot(model, ids))
    return logits


@pytest.fixture
def reference(model: LoadedModel, once: Once) -> Tensor:
    """Logits of `tokens(LENGTH)` in one forward."""
    return alone(model, tokens(LENGTH), once)


@st.composite
def cuts(draw: st.DrawFn, length: int = LENGTH) -> Lengths:
    """Chunk lengths that sum to `length`."""
    borders = sorted(draw(st.sets(st.integers(1, length - 1), max_size=5)))
    edges = [0, *borders, length]
    return tuple(end - start for start, end in pairwise(edges))


@given(lengths=cuts())
@example(lengths=(21, 1))
@example(lengths=(2, 1, 8, 1, 9, 1))
@settings(max_examples=5, deadline=None)
def test_any_chunks_give_the_bits_of_one_forward(
    lengths: Lengths, models: Models, checkpoint: Path, once: Once
) -> None:
    model = models(checkpoint, Profile.VENDOR)
    assert torch.equal(Feeder(model).feed_chunks(tokens(LENGTH), lengths), alone(model, tokens(LENGTH), once))


@pytest.mark.parametrize("chunks", [(1,), (5, 8, 9)], ids=str)
def test_every_traced_point_is_the_same_token_by_token_and_in_chunks(
    chunks: Lengths, model: LoadedModel, once: Once
) -> None:
    # Logits, selections, candidates, rows, everything.  What grows with the context is padded as in one forward.
    key = (model.kernels.name, model.directory, model.profile, "trace")
    whole: dict[str, Array] = once(key, lambda: trace(model, tokens(LENGTH)))
    split = trace(model, tokens(LENGTH), chunks)
    assert set(split) == set(whole)
    differing = [point for point, value in whole.items() if not np.array_equal(value, split[point])]
    assert differing == []


def test_a_request_resumes_at_every_position(model: LoadedModel, reference: Tensor) -> None:
    positions = range(1, LENGTH)
    feeder = Feeder(model, LENGTH, LENGTH)
    feeder.feed({position: tokens(LENGTH)[:position] for position in positions})
    rest = feeder.feed({position: tokens(LENGTH)[position:] for position in positions})
    differing = [position for position in positions if not torch.equal(rest[position], reference[position:])]
    assert differing == []


def test_a_trace_has_the_logits_of_a_forward_that_scores_only_candidates(model: LoadedModel, reference: Tensor) -> None:
    # Traced, a bounded scorer scores every row; untraced, a compiled backend leaves out what no selection looks at.
    assert np.array_equal(trace(model, tokens(LENGTH))["logits"], reference.numpy())


def test_the_next_logits_are_those_of_a_longer_prompt(model: LoadedModel, reference: Tensor) -> None:
    # Causality: what comes after a row does not reach it.
    for length in (1, 2, 9, 17):
        assert torch.equal(one_shot(model, tokens(LENGTH)[:length]), reference[:length])


REQUESTS = {0: tokens(1, 10), 1: tokens(2, 11), 2: tokens(9, 12), 3: tokens(17, 13), 4: tokens(23, 14)}


def test_a_ragged_batch_gives_the_bits_of_each_request_alone(model: LoadedModel, once: Once) -> None:
    together = Feeder(model, len(REQUESTS)).feed(REQUESTS)
    for slot, ids in REQUESTS.items():
        assert torch.equal(together[slot], alone(model, ids, once)), slot


@given(order=st.permutations(list(REQUESTS)), data=st.data())
@settings(max_examples=4, deadline=None)
def test_any_order_and_any_chunks_of_a_batch_give_the_bits_of_each_request_alone(
    order: list[int], data: st.DataObject, models: Models, checkpoint: Path, once: Once
) -> None:
    model = models(checkpoint, Profile.VENDOR)
    feeder, left = Feeder(model, len(REQUESTS)), {slot: list(REQUESTS[slot]) for slot in order}
    parts: dict[int, list[Tensor]] = {slot: [] for slot in order}
    while left:
        pieces = {}
        for slot in list(left):
            size = data.draw(st.integers(min(4, len(left[slot])), len(left[slot])), label=f"piece of {slot}")
            pieces[slot] = [left[slot].pop(0) for _ in range(size)]
        for slot, logits in feeder.feed(pieces).items():
            parts[slot].append(logits)
        left = {slot: rest for slot, rest in left.items() if rest}
    for slot, ids in REQUESTS.items():
        assert torch.equal(torch.cat(parts[slot]), alone(model, ids, once)), slot


@pytest.mark.parametrize("num_rows", [1, 2, 6, 64])
def test_a_row_keeps_its_bits_among_any_number_of_rows(num_rows: int, model: LoadedModel, reference: Tensor) -> None:
    feeder = Feeder(model, 2, 128)
    feeder.feed({0: tokens(LENGTH)[:-1]})
    company = {1: tokens(num_rows, 20)[: num_rows - 1]} if num_rows > 1 else {}
    got = feeder.feed({**company, 0: tokens(LENGTH)[-1:]})[0]
    assert torch.equal(got[0], reference[-1])


def test_a_used_slot_serves_the_next_request_like_a_new_one(model: LoadedModel, reference: Tensor) -> None:
    feeder = Feeder(model, 2)
    feeder.feed({0: tokens(27, 30), 1: tokens(5, 31)})
    feeder.ids[0].clear()
    first = feeder.feed({0: tokens(LENGTH)[:11], 1: tokens(4, 32)})[0]
    second = feeder.feed({0: tokens(LENGTH)[11:]})[0]
    assert torch.equal(torch.cat((first, second)), reference)


def test_all_pool_formats_of_the_vendor_hold_the_same_numbers(models: Models, checkpoint: Path) -> None:
    pools = Profile.VENDOR.allowed_pools
    assert len(pools) == 4
    found = []
    for pool in pools:
        # A traced row is what was handed to the pool; the attention output is what came back.
        found.append(trace(models(checkpoint, Profile.VENDOR, pool), tokens(LENGTH), (11, 1, 10), POOL_POINTS))
    for pool, traced in zip(pools[1:], found[1:], strict=True):
        differing = [point for point, value in found[0].items() if not np.array_equal(value, traced[point])]
        assert differing == [], pool


def test_packing_the_main_pool_of_atom_changes_no_bit_and_its_index_pool_is_part_of_the_numbers(
    models: Models, checkpoint: Path
) -> None:
    by_pool = {
        (pool.main.value, pool.index.value): Feeder(models(checkpoint, Profile.ATOM, pool)).feed_chunks(
            tokens(LENGTH), (9, 13)
        )
        for pool in Profile.ATOM.allowed_pools
    }
    assert torch.equal(by_pool["bf16", "fp8"], by_pool["fp4", "fp8"])
    assert torch.equal(by_pool["bf16", "fp4"], by_pool["fp4", "fp4"])
    assert not torch.equal(by_pool["bf16", "fp8"], by_pool["bf16", "fp4"])


class TestDemo:
    """Profile `demo` scores open pairs against another plane.  spec: attention.md section 11.7."""

    @pytest.fixture
    def demo(self, models: Models, checkpoint: Path) -> LoadedModel:
        return models(checkpoint, Profile.DEMO)

    @pytest.fixture
    def stepped(self, demo: LoadedModel, once: Once) -> dict[str, Array]:
        traced: dict[str, Array] = once(
            (demo.kernels.name, demo.directory, "steps"), lambda: trace(demo, tokens(LENGTH), (1,))
        )
        return traced

    @staticmethod
    def first_scorer(model: LoadedModel) -> int:
        """A ratio-2 scorer in front of which no selection was made, so that its inputs do not depend on chunks."""
        return topology(model.config).scorers[0]

    def test_prefill_in_chunks_of_two_or_more_is_one_forward(self, demo: LoadedModel) -> None:
        got = Feeder(demo).feed_chunks(tokens(LENGTH), (2, 3, 7, 10))
        assert torch.equal(got, one_shot(demo, tokens(LENGTH)))

    def test_it_is_the_vendor_as_long_as_every_visible_row_is_selected(self, demo: LoadedModel, models: Models) -> None:
        topk = demo.config.indexer.topk
        vendor = models(demo.directory, Profile.VENDOR)
        ids = tokens(topk)
        for lengths in ((topk,), (1,) * topk):
            assert torch.equal(Feeder(demo).feed_chunks(ids, lengths), one_shot(vendor, ids))

    def test_single_steps_select_other_rows_only_on_open_pairs_with_more_rows_than_topk(
        self, demo: LoadedModel, stepped: dict[str, Array]
    ) -> None:
        whole = trace(demo, tokens(LENGTH))
        point = f"trace/L{self.first_scorer(demo)}.index.selected"
        differing = np.flatnonzero((whole[point] != stepped[point]).any(axis=1))
        open_pairs = [p for p in range(0, LENGTH, 2) if (p + 1) // 2 > demo.config.indexer.topk]
        assert len(differing) > 0
        assert set(differing.tolist()) <= set(open_pairs)
        first = int(differing[0])
        assert np.array_equal(whole["logits"][:first], stepped["logits"][:first])
        assert not np.array_equal(whole["logits"][first], stepped["logits"][first])

    def test_open_pairs_are_scored_against_the_last_owners_keys(
        self, demo: LoadedModel, stepped: dict[str, Array]
    ) -> None:
        scorer, last_owner = self.first_scorer(demo), topology(demo.config).kv_owners[-1]
        name = f"trace/L{scorer}.index"
        for position in range(LENGTH):
            owner = last_owner if position % 2 == 0 else scorer
            num_rows = (position + 1) // 2
            keys = stepped[f"trace/L{owner}.index.key"][:num_rows]
            expected = index_scores_bf16_chain(
                torch.from_numpy(stepped[f"{name}.q"][None, position : position + 1]).bfloat16(),
                torch.from_numpy(keys[None]).bfloat16(),
                torch.from_numpy(stepped[f"{name}.weights"][None, position : position + 1]),
            )
            scores = stepped[f"{name}.scores"][position]
            assert np.array_equal(scores[:num_rows], expected[0, 0].numpy()), position
            assert np.isneginf(scores[num_rows:]).all()

    def test_ratio_one_scorers_use_their_own_keys_at_every_step(
        self, demo: LoadedModel, stepped: dict[str, Array]
    ) -> None:
        source = demo.config.indexer.candidate_source_layer_id
        name = f"trace/L{source}.index"
        expected = index_scores_bf16_chain(
            torch.from_numpy(stepped[f"{name}.q"][None]).bfloat16(),
            torch.from_numpy(stepped[f"{name}.key"][None]).bfloat16(),
            torch.from_numpy(stepped[f"{name}.weights"][None]),
        )[0].numpy()
        visible = np.tri(LENGTH, dtype=bool)
        assert np.array_equal(stepped[f"{name}.scores"][visible], expected[visible])


def test_a_seeded_prompt_differs_from_another(model: LoadedModel, reference: Tensor) -> None:
    # The equalities above would also hold in a model that ignores its input.
    other = one_shot(model, tokens(LENGTH, 1))
    assert not any(torch.equal(row, reference[position]) for position, row in enumerate(other[1:], 1))


def test_the_second_checkpoint_shares_neither_widths_nor_topology(models: Models, second_checkpoint: Path) -> None:
    first, second = (models(path, Profile.VENDOR).config for path in (CHECKPOINT, second_checkpoint))
    assert first.hidden_size != second.hidden_size
    assert first.attention.head_dim != second.attention.head_dim
    assert first.attention.window != second.attention.window
    modes = [[layer.mode for layer in topology(config).layers] for config in (first, second)]
    assert set(modes[0]) == set(modes[1])
    assert modes[0] != modes[1]
