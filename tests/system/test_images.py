"""Pictures in prompts: a row depends on the tokens and pictures before it, and on nothing else.

All equalities are of bits.  spec: vision.md section 6, engram.md section 2, fixtures.md F4, F6 and F15, pitfalls 73
and 144 to 146.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flash41.config.run import PoolDtype, PoolFormat, Profile
from flash41.engine.load import LoadedModel
from flash41.tools.traces import Recorder, trace
from helpers.feeding import Feeder, one_shot
from helpers.golden_judge import CHECKPOINT, Array
from helpers.models import Models, fresh_model
from helpers.picturing import Pictured, drawn, fed, pictured

IMAGE = 511
WIDE, TALL = drawn(60, 45, seed=1), drawn(40, 90, seed=2)
PROMPTS = {
    "first": ([IMAGE, 5, 300, 7, 42], [WIDE]),
    "last": ([0, 5, 300, 7, IMAGE], [WIDE]),
    "alone": ([IMAGE], [TALL]),
    "neighbours": ([0, IMAGE, IMAGE, 9, 77, 12], [WIDE, TALL]),
    "apart": ([0, IMAGE, 9, 5, 300, IMAGE, 77, 12, 33], [TALL, WIDE]),
    "twice": ([0, 8, IMAGE, 9, IMAGE, 77], [WIDE, WIDE]),
}


@pytest.fixture(scope="session")
def models(quick_models: Models) -> Models:
    return quick_models


@pytest.fixture(params=[Profile.VENDOR, Profile.FP32], ids=lambda profile: profile.value)
def model(request: pytest.FixtureRequest, models: Models) -> LoadedModel:
    return models(CHECKPOINT, request.param)


def prompt(model: LoadedModel, name: str) -> Pictured:
    return pictured(model, *PROMPTS[name])


def traced(model: LoadedModel, one: Pictured) -> dict[str, Array]:
    recorder = Recorder()
    fed(model, one, probe=recorder)
    return recorder.joined()


def even(total: int, length: int) -> list[int]:
    return [min(length, total - start) for start in range(0, total, length)]


class TestChunks:
    @pytest.mark.parametrize("name", PROMPTS)
    def test_one_shot_equals_pieces_of_three(self, name: str, model: LoadedModel) -> None:
        one = prompt(model, name)
        assert torch.equal(fed(model, one, even(len(one.ids), 3)), fed(model, one))

    def test_one_shot_equals_token_by_token(self, models: Models) -> None:
        model = models(CHECKPOINT, Profile.VENDOR)
        one = prompt(model, "neighbours")
        assert torch.equal(fed(model, one, [1] * len(one.ids)), fed(model, one))

    @settings(max_examples=6, deadline=None)
    @given(cuts=st.sets(st.integers(1, 27), max_size=4))
    @example(cuts={1, 12, 15, 25})  # at every edge of the pictures
    def test_any_split_gives_the_same_logits(self, models: Models, cuts: set[int]) -> None:
        model = models(CHECKPOINT, Profile.VENDOR)
        one = prompt(model, "apart")
        pieces = [end - start for start, end in pairwise([0, *sorted(cuts), len(one.ids)])]
        assert torch.equal(fed(model, one, pieces), fed(model, one))

    def test_a_trace_in_chunks_is_the_trace_in_one(self, models: Models) -> None:
        model = models(CHECKPOINT, Profile.VENDOR)
        ids, pictures = PROMPTS["neighbours"]
        whole, parts = trace(model, ids, pictures=pictures), trace(model, ids, [7, 1, 5], pictures=pictures)
        assert set(whole) == set(parts)
        for name in set(whole):
            if name.partition(".")[2] not in ("index.scores", "index.candidates"):  # wider in a longer forward
                assert np.array_equal(whole[name], parts[name]), name

    def test_packed_pools_change_no_bit(self, models: Models) -> None:
        plain = models(CHECKPOINT, Profile.VENDOR)
        packed = models(CHECKPOINT, Profile.VENDOR, PoolFormat(main=PoolDtype.FP4, index=PoolDtype.BF16))
        for name in ("apart", "twice"):
            assert torch.equal(fed(plain, prompt(plain, name)), fed(packed, prompt(packed, name)))


class TestCompany:
    def test_pictures_and_text_side_by_side_are_each_as_if_alone(self, model: LoadedModel) -> None:
        first, second = prompt(model, "apart"), prompt(model, "first")
        text = [0, 5, 300, 7, 42, 5, 9, 100, 3]
        feeder = Feeder(model, 3, 64)
        feeder.images = {0: first.images, 2: second.images}
        feeder.rows = first.rows | second.rows
        ids = {0: first.ids, 1: text, 2: second.ids}
        steps = [
            feeder.feed({2: ids[2][:3], 0: ids[0][:14], 1: ids[1][:4]}),
            feeder.feed({0: ids[0][14:15], 2: ids[2][3:], 1: ids[1][4:5]}),
            feeder.feed({1: ids[1][5:], 0: ids[0][15:]}),
        ]
        expected = {0: fed(model, first), 1: one_shot(model, text), 2: fed(model, second)}
        for slot, logits in expected.items():
            assert torch.equal(torch.cat([step[slot] for step in steps if slot in step]), logits), slot

    def test_a_slot_that_held_a_picture_forgets_it(self, model: LoadedModel) -> None:
        one, text = prompt(model, "last"), [0, 9, 5, 300]
        feeder = Feeder(model, 1, 64)
        feeder.images[0], feeder.rows = one.images, one.rows
        feeder.feed({0: one.ids})
        feeder.ids[0], feeder.images[0] = [], ()
        assert torch.equal(feeder.feed({0: text})[0], one_shot(model, text))


class TestWhatAPictureIs:
    def test_another_picture_of_the_same_cost_gives_other_logits_behind_it_only(self, model: LoadedModel) -> None:
        ids, first, second = [0, 5, IMAGE, 7, 42], drawn(60, 45, seed=3), drawn(60, 45, seed=4)
        assert first.plan == second.plan
        one, two = (fed(model, pictured(model, ids, [picture])) for picture in (first, second))
        assert torch.equal(one[:3], two[:3])  # text and START
        assert ((one[3:] - two[3:]).abs().amax(1) > 0).all()

    def test_two_pictures_in_another_order_are_another_prompt(self, model: LoadedModel) -> None:
        first, second = drawn(60, 45, seed=3), drawn(60, 45, seed=4)
        ids = [0, IMAGE, 9, IMAGE, 7]
        one, two = (fed(model, pictured(model, ids, order)) for order in ([first, second], [second, first]))
        assert not torch.equal(one[-1], two[-1])

    def test_the_embedding_of_the_placeholder_is_never_used(self) -> None:
        model = fresh_model(Profile.VENDOR)
        one = prompt(model, "apart")
        before = fed(model, one)
        model.backbone.embed = model.backbone.embed.clone()
        model.backbone.embed[IMAGE] = torch.nan
        assert torch.equal(fed(model, one), before)

    def test_rows_of_a_picture_are_causal(self, model: LoadedModel) -> None:
        one = prompt(model, "last")
        for cut in (6, 9, len(one.ids) - 1):
            shorter = Pictured(ids=one.ids[:cut], images=one.images, rows=one.rows)
            assert torch.equal(fed(model, shorter), fed(model, one)[:cut])


class TestRouting:
    @staticmethod
    def boosted(name: str) -> tuple[dict[str, Array], dict[str, Array], Pictured]:
        """Traces before and after two experts are boosted in one of the two biases of every layer."""
        model = fresh_model(Profile.VENDOR)
        one = prompt(model, "apart")
        before = traced(model, one)
        for layer in model.backbone.layers:
            bias = getattr(layer.ffn, name).clone()
            bias[[3, 11]] = 100.0
            setattr(layer.ffn, name, bias)
        return before, traced(model, one), one

    @pytest.mark.parametrize("name", ["bias_vl", "bias"])
    def test_a_boosted_bias_moves_the_rows_it_is_for_and_no_others(self, name: str) -> None:
        before, after, one = self.boosted(name)
        is_image = np.array([one.is_image(position) for position in range(len(one.ids))])
        mine = is_image if name == "bias_vl" else ~is_image
        for layer_id in range(10):
            chosen = after[f"L{layer_id}.router.ids"]
            assert np.isin([3, 11], chosen[mine][0]).all()
            assert (np.isin(chosen[mine], [3, 11]).sum(1) == 2).all()
            assert not (np.isin(chosen[~mine], [3, 11]).sum(1) == 2).all()
        first = "L0.router.ids"
        assert np.array_equal(before[first][~mine], after[first][~mine])

    def test_the_span_s_delimiters_are_image_rows_too(self) -> None:
        _, after, one = self.boosted("bias_vl")
        for image in one.images:
            for position in (image.start, image.end - 1):
                assert np.isin([3, 11], after["L0.router.ids"][position]).all()


class TestEngram:
    @staticmethod
    def rows(model: LoadedModel, one: Pictured) -> Tensor:
        return torch.from_numpy(traced(model, one)["L1.engram.rows"])

    def test_no_n_gram_crosses_a_picture(self, models: Models) -> None:
        model = models(CHECKPOINT, Profile.VENDOR)
        tail = [9, 5, 300, 77]
        pair = [pictured(model, [0, *text, IMAGE, *tail], [WIDE]) for text in ([5, 300, 7], [8, 44, 501])]
        first, second = (self.rows(model, one) for one in pair)
        assert not torch.equal(first[1:4], second[1:4])
        assert torch.equal(first[4:], second[4:])

    def test_text_behind_a_picture_hashes_as_if_it_began_there(self, models: Models) -> None:
        model = models(CHECKPOINT, Profile.VENDOR)
        tail = [9, 5, 300, 77]
        behind = self.rows(model, pictured(model, [0, 6, IMAGE, *tail], [WIDE]))[-4:]
        assert torch.equal(behind, self.rows(model, pictured(model, tail, [])))

    def test_pictures_read_nothing_and_leave_the_residual_as_it_is(self, models: Models) -> None:
        model = models(CHECKPOINT, Profile.VENDOR)
        one = prompt(model, "apart")
        points = traced(model, one)
        is_image = np.array([one.is_image(position) for position in range(len(one.ids))])
        for layer_id in (1, 4):
            before, after = points[f"L{layer_id}.resid.in"], points[f"L{layer_id}.resid.after_engram"]
            assert np.array_equal(before[is_image], after[is_image])
            assert (before[~is_image] != after[~is_image]).any(axis=(1, 2)).all()
            assert len(np.unique(points[f"L{layer_id}.engram.rows"][is_image], axis=0)) == 1
