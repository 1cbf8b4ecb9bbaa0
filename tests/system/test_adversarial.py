"""Whole models in conditions that random weights and ordinary prompts never meet.  spec: fixtures.md section 1.

Outlier channels, extreme routers, scores that tie or are NaN, dropped candidates, zeroed groups, images that are not
there.  Where a mechanism decides, its decision is compared with what the trace says it saw.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from flash41.config.run import Profile
from flash41.config.topology import topology
from flash41.engine.load import LoadedModel
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.stored_rows import Keys, as_keys
from flash41.tools.traces import Recorder, trace
from helpers.feeding import Feeder, one_shot
from helpers.golden_judge import CHECKPOINT, Array, load_case
from helpers.models import Models, fresh_model

Traces = Callable[[str, Profile], dict[str, Array]]

IDS = load_case("candidate_drop").ids[:40]
SCORERS = (2, 4, 6, 8)
CHUNKS = (9, 1, 17, 13)
NUM_LAYERS, TOPK, IMAGE = 10, 8, 511


def nonfinite(traced: dict[str, Array]) -> list[str]:
    """Points with a value that is not finite, in the order of the forward; scores may be -inf where invisible."""
    found = []
    for point, value in traced.items():
        values = value
        if point.endswith("index.scores"):
            ratio = 2 if int(point.removeprefix("trace/L").partition(".")[0]) < 6 else 1
            visible = np.arange(value.shape[1]) < (np.arange(len(value))[:, None] + 1) // ratio
            assert np.isneginf(value[~visible]).all(), point
            values = value[visible]
        if not np.isfinite(values).all():
            found.append(point)
    return found


def assert_chunks_change_nothing(model: LoadedModel, ids: Sequence[int] = IDS) -> None:
    assert torch.equal(Feeder(model).feed_chunks(ids, CHUNKS), one_shot(model, ids))


@pytest.mark.parametrize("profile", list(Profile), ids=lambda profile: profile.value)
def test_every_point_of_every_layer_is_finite(profile: Profile, golden_traces: Traces) -> None:
    assert nonfinite(golden_traces("long_wrap", profile)) == []


def test_a_trace_names_the_layer_in_which_a_nan_appears() -> None:
    model = fresh_model(Profile.VENDOR)
    norm = model.backbone.layers[4].attn_norm
    norm.weight = norm.weight.clone()
    norm.weight[3] = torch.nan
    logits, first, *_ = nonfinite(trace(model, IDS, points=("*.in", "*.out", "*.resid.*")))
    assert (logits, first) == ("logits", "trace/L4.attn.in")


class TestOutliers:
    @pytest.fixture(params=list(Profile), ids=lambda profile: profile.value)
    def outlying(self, request: pytest.FixtureRequest) -> LoadedModel:
        """One channel of every sub-layer's input is made a thousand times as large."""
        model = fresh_model(request.param)
        for block in model.backbone.layers:
            for norm in (block.attn_norm, block.ffn_norm):
                norm.weight = norm.weight.clone()
                norm.weight[7] *= 1000
        return model

    def test_an_outlier_channel_reaches_every_product_and_leaves_everything_finite(self, outlying: LoadedModel) -> None:
        traced = trace(outlying, IDS)
        assert nonfinite(traced) == []
        for layer_id in range(NUM_LAYERS):
            for point in (f"trace/L{layer_id}.attn.in", f"trace/L{layer_id}.ffn.in"):
                size = np.abs(traced[point])
                assert size[:, 7].max() > 300 * np.median(np.delete(size, 7, axis=1)), point

    def test_an_outlier_channel_does_not_tie_rows_together(self, outlying: LoadedModel) -> None:
        if outlying.profile is not Profile.DEMO:
            assert_chunks_change_nothing(outlying)


class TestRouter:
    @staticmethod
    def expected(logits: Array, bias: Array) -> tuple[Array, Array]:
        """Ids ascending and weights of three experts, in FP64."""
        z = logits.astype(np.float64)
        scores = np.sqrt(np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))))
        key = scores.astype(np.float32) + bias
        ids = np.sort(np.argsort(-key, axis=1, kind="stable")[:, :3], axis=1)
        chosen = np.take_along_axis(scores, ids, axis=1)
        return ids, 1.5 * chosen / (chosen.sum(axis=1, keepdims=True) + 1e-20)

    def check(self, model: LoadedModel) -> dict[str, Array]:
        traced = trace(model, IDS)
        assert nonfinite(traced) == []
        for layer_id, block in enumerate(model.backbone.layers):
            name = f"trace/L{layer_id}.router"
            ids, weights = self.expected(traced[f"{name}.logits"], block.ffn.bias.numpy())
            assert np.array_equal(traced[f"{name}.ids"], ids)
            np.testing.assert_allclose(traced[f"{name}.weights"], weights, rtol=1e-6, atol=0)
        return traced

    def test_a_bias_decides_who_is_chosen_and_not_with_what_weight(self) -> None:
        model = fresh_model(Profile.VENDOR)
        for block in model.backbone.layers:
            block.ffn.bias = block.ffn.bias.clone()
            block.ffn.bias[5] += 100.0
            block.ffn.bias[0] -= 100.0
        traced = self.check(model)
        for layer_id in range(NUM_LAYERS):
            ids = traced[f"trace/L{layer_id}.router.ids"]
            assert (ids == 5).any(axis=1).all()
            assert not (ids == 0).any()
            assert traced[f"trace/L{layer_id}.router.weights"].max() < 1.5

    def test_logits_far_beyond_the_exponential_route_by_their_order(self) -> None:
        model = fresh_model(Profile.VENDOR)
        for block in model.backbone.layers:
            block.ffn.gate = block.ffn.gate * 256  # a power of two: the weights stay exact
        traced = self.check(model)
        logits = np.stack([traced[f"trace/L{layer_id}.router.logits"] for layer_id in range(NUM_LAYERS)])
        assert logits.min() < -200
        assert logits.max() > 90

    def test_a_token_no_expert_wants_gets_the_shared_expert_alone(self) -> None:
        class Unwanted(ReferenceKernels):
            @staticmethod
            def route(logits: Tensor, bias: Tensor, topk: int, route_scale: float) -> tuple[Tensor, Tensor]:
                return ReferenceKernels.route(torch.full_like(logits, -200.0), bias, topk, route_scale)

        class Unrouted(ReferenceKernels):
            @staticmethod
            def route(logits: Tensor, bias: Tensor, topk: int, route_scale: float) -> tuple[Tensor, Tensor]:
                ids, weights = ReferenceKernels.route(logits, bias, topk, route_scale)
                return ids, torch.zeros_like(weights)

        # sqrt(softplus(-200)) = e^-100, below the floor of 1e-20 that is added to the sum of the weights.
        assert torch.equal(
            one_shot(fresh_model(Profile.VENDOR, Unwanted), IDS), one_shot(fresh_model(Profile.VENDOR, Unrouted), IDS)
        )


class TestScores:
    @staticmethod
    def first_rows(num_rows: int, ratio: int) -> Array:
        """Selections when all scores tie: the first top-k visible rows."""
        rows = np.tile(np.arange(TOPK), (num_rows, 1))
        visible = (np.arange(num_rows)[:, None] + 1) // ratio
        return np.where(rows < visible, rows, -1)

    @staticmethod
    def first_blocks(num_rows: int) -> Array:
        """Candidates when all scores tie: the first five blocks of two rows, and the newest."""
        newest = np.arange(num_rows) // 2
        blocks = np.tile(np.arange(6), (num_rows, 1))
        blocks[:, 5] = np.maximum(newest, 5)
        return np.where(blocks <= newest[:, None], blocks, -1)

    def assert_first_rows(self, traced: dict[str, Array]) -> None:
        for scorer in SCORERS:
            expected = self.first_rows(len(IDS), 2 if scorer < 6 else 1)
            assert np.array_equal(traced[f"trace/L{scorer}.index.selected"], expected), scorer
        assert np.array_equal(traced["trace/L6.index.candidates"], self.first_blocks(len(IDS)))

    def test_scores_that_tie_at_zero_select_the_first_rows_and_blocks(self) -> None:
        class NoHeadAgrees(ReferenceKernels):
            """Every dot product is negative, so every score is a sum of zeros of both signs."""

            @staticmethod
            def index_scores(q: Tensor, keys: Keys, weights: Tensor) -> Tensor:
                return ReferenceKernels.index_scores(-q.abs(), as_keys(keys).abs(), weights)

        model = fresh_model(Profile.VENDOR, NoHeadAgrees)
        traced = trace(model, IDS)
        for scorer in SCORERS:
            scores = traced[f"trace/L{scorer}.index.scores"]
            assert (scores[np.isfinite(scores)] == 0).all()
        self.assert_first_rows(traced)
        assert_chunks_change_nothing(model)

    def test_keys_that_are_all_zero_tie_too(self) -> None:
        model = fresh_model(Profile.VENDOR)
        for owner in topology(model.config).kv_owners:
            norm = model.backbone.layers[owner].attn.indexer.key.k_norm
            norm.weight = torch.zeros_like(norm.weight)
        traced = trace(model, IDS)
        assert nonfinite(traced) == []
        self.assert_first_rows(traced)

    def test_a_query_whose_scores_are_nan_reads_the_first_rows_and_disturbs_nobody(self, models: Models) -> None:
        class NotANumber(ReferenceKernels):
            @staticmethod
            def index_scores(q: Tensor, keys: Keys, weights: Tensor) -> Tensor:
                scores = ReferenceKernels.index_scores(q, keys, weights)
                scores[:, 31] = torch.nan
                return scores

        usual = trace(models(CHECKPOINT, Profile.VENDOR), IDS)
        traced = trace(fresh_model(Profile.VENDOR, NotANumber), IDS)
        assert np.isfinite(traced["logits"]).all()
        for scorer in SCORERS:
            expected = self.first_rows(len(IDS), 2 if scorer < 6 else 1)[31]
            assert np.array_equal(traced[f"trace/L{scorer}.index.selected"][31], expected)
        assert np.array_equal(traced["trace/L6.index.candidates"][31], self.first_blocks(len(IDS))[31])
        # Rows before it, and what does not depend on its output: the first selection of the rows behind it.
        assert np.array_equal(traced["logits"][:31], usual["logits"][:31])
        assert np.array_equal(traced["trace/L2.index.selected"][32:], usual["trace/L2.index.selected"][32:])

    @pytest.mark.parametrize("token", [0, 2, 7, IMAGE])
    def test_a_prompt_of_one_repeated_token_keeps_its_bits_in_chunks(self, token: int, models: Models) -> None:
        assert_chunks_change_nothing(models(CHECKPOINT, Profile.VENDOR), [token] * len(IDS))


class TestCandidates:
    def test_bounded_scorers_read_candidate_rows_only_although_others_score_higher(self, golden_traces: Traces) -> None:
        traced = golden_traces("candidate_drop", Profile.VENDOR)
        blocks, scores = traced["trace/L6.index.candidates"], traced["trace/L8.index.scores"]
        passed_over = 0
        for position, selected in enumerate(traced["trace/L8.index.selected"]):
            rows = selected[selected >= 0]
            assert set((rows // 2).tolist()) <= set(blocks[position].tolist()), position
            outside = [row for row in range(position + 1) if row // 2 not in blocks[position]]
            passed_over += sum(scores[position, row] > scores[position, rows].min() for row in outside)
        assert passed_over > 50

    def test_the_newest_row_is_always_a_candidate(self, golden_traces: Traces) -> None:
        blocks = golden_traces("long_wrap", Profile.VENDOR)["trace/L6.index.candidates"]
        assert (blocks == (np.arange(len(blocks)) // 2)[:, None]).any(axis=1).all()
        assert ((blocks >= 0).sum(axis=1) == np.minimum(np.arange(len(blocks)) // 2 + 1, 6)).all()


class TestZeroGroups:
    def test_a_zeroed_group_of_a_compressed_row_stays_zero(self) -> None:
        model = fresh_model(Profile.VENDOR)
        for owner in topology(model.config).kv_owners:
            norm = model.backbone.layers[owner].attn.compressor.norm
            norm.weight = norm.weight.clone()
            norm.weight[16:32] = 0
        traced = trace(model, IDS)
        assert nonfinite(traced) == []
        for owner in topology(model.config).kv_owners:
            rows = traced[f"trace/L{owner}.attn.main_row"]
            assert (rows[:, 16:32] == 0).all()
            assert (rows[:, :16] != 0).any()

    def test_window_rows_of_zeros_attend_to_zero(self) -> None:
        model = fresh_model(Profile.VENDOR)
        norm = model.backbone.layers[0].attn.kv_norm
        norm.weight = torch.zeros_like(norm.weight)
        traced = trace(model, IDS)
        assert nonfinite(traced) == []
        assert (traced["trace/L0.attn.window_row"] == 0).all()
        assert (traced["trace/L0.attn.out"] == 0).all()
        assert (traced["trace/L1.attn.out"] != 0).any()


class TestImages:
    PROMPT = (*IDS[:10], IMAGE, IMAGE, IMAGE, *IDS[10:20])
    MASK = torch.tensor([token == IMAGE for token in PROMPT])

    def traced(self, model: LoadedModel, mask: Tensor | None) -> dict[str, Array]:
        recorder = Recorder()
        Feeder(model).feed({0: self.PROMPT}, recorder, mask)
        return recorder.joined()

    def test_the_image_id_in_text_is_an_ordinary_token(self, models: Models) -> None:
        model = models(CHECKPOINT, Profile.VENDOR)
        found = self.traced(model, None)
        nothing = self.traced(model, torch.zeros_like(self.MASK))
        assert all(np.array_equal(value, nothing[point]) for point, value in found.items())
        for layer_id in (1, 4):
            assert (found[f"L{layer_id}.engram.gate"][self.MASK.numpy()] > 0).all()

    def test_masked_rows_pass_engram_bit_for_bit_and_the_others_do_not(self, models: Models) -> None:
        found, mask = self.traced(models(CHECKPOINT, Profile.VENDOR), self.MASK), self.MASK.numpy()
        for layer_id in (1, 4):
            same = (found[f"L{layer_id}.resid.in"] == found[f"L{layer_id}.resid.after_engram"]).all(axis=(1, 2))
            assert np.array_equal(same, mask)
            assert np.array_equal((found[f"L{layer_id}.engram.gate"] == 0).all(axis=1), mask)

    def test_a_boosted_image_bias_moves_image_rows_only(self) -> None:
        model, mask = fresh_model(Profile.VENDOR), self.MASK.numpy()
        for block in model.backbone.layers:
            block.ffn.bias_vl = block.ffn.bias_vl.clone()
            block.ffn.bias_vl[[1, 14]] += 50.0
        found = self.traced(model, self.MASK)
        for layer_id in range(NUM_LAYERS):
            ids = found[f"L{layer_id}.router.ids"]
            boosted = (ids == 1).any(axis=1) & (ids == 14).any(axis=1)
            assert boosted[mask].all()
        assert np.array_equal(found["L0.router.ids"][~mask], self.traced(model, None)["L0.router.ids"][~mask])
