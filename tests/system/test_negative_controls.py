"""One mechanism is left out or replaced at a time, and the judge must reject.  A gate that accepts these sees nothing.

Each control replaces one operation of the kernels, so that everything else is the model as it is.  Profile fp32 against
the fp32 goldens (T1) sees all but one: where a routing weight enters is the same in exact arithmetic, so it is judged
by a module's golden output under the released roundings.
"""

import pytest
import torch
from torch import Tensor

from flash41.cache.views import Span
from flash41.config.run import Profile
from flash41.engine.load import LoadedModel
from flash41.kernels.interface import ExpertBank, ExpertWeights
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model import rope
from flash41.model.batch import ForwardBatch, Step
from flash41.tools.traces import Recorder
from helpers.feeding import one_shot
from helpers.golden_judge import Distance, distance, load_case, module_faults, t1_faults
from helpers.models import fresh_model

PROMPT = "candidate_drop"
"""Long enough for all mechanisms: rows beyond top-k, dropped blocks, many windows."""


class WithoutRelu(ReferenceKernels):
    @staticmethod
    def index_scores(q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
        folded = (q.double() * weights.double().unsqueeze(-1)).sum(2)
        return torch.matmul(folded, keys.double().transpose(1, 2)).float()


class WithQueryNorm(ReferenceKernels):
    """Normalises every query head before its rotation, as the model's predecessor did.

    The four heads turn together with the window row behind them, which stays as it is.
    """

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
        if not inverse and x.shape[1:] == (5, 64):
            heads, row = x[:, :4], x[:, 4:]
            x = torch.cat((heads * heads.square().mean(-1, keepdim=True).add(1e-20).rsqrt(), row), 1)
        return ReferenceKernels.rotate(x, cos, sin, inverse)


class WithTransposedComb(ReferenceKernels):
    @staticmethod
    def mhc_apply(x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        return ReferenceKernels.mhc_apply(x, y, post, comb.transpose(1, 2))


class WithoutEngram(ReferenceKernels):
    @staticmethod
    def engram_apply(x: Tensor, _gate: Tensor, _value: Tensor) -> Tensor:
        return x


class WithoutCandidates(ReferenceKernels):
    @staticmethod
    def inside_blocks(candidates: Tensor, num_rows: int, _block_size: int) -> Tensor:
        return torch.ones(candidates.shape[0], num_rows, dtype=torch.bool)


class WithoutExpertThree(ReferenceKernels):
    """Expert 3 answers zero, as if its tensors had never been filled."""

    def __init__(self) -> None:
        super().__init__()
        complete = self.experts

        def experts(x: Tensor, ids: Tensor, weights: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
            routed, shared = complete(x, ids, weights.masked_fill(ids == 3, 0.0), *rest)
            return routed, shared

        self.experts = experts


class WithWeightAfterDown(ReferenceKernels):
    """Multiplies an expert's output with the routing weight, not its activation."""

    def __init__(self) -> None:
        super().__init__()
        complete = self.experts

        def experts(
            x: Tensor,
            ids: Tensor,
            weights: Tensor,
            bank: ExpertBank,
            shared: ExpertWeights,
            limit: float,
            quantize_input: bool,
        ) -> tuple[Tensor, Tensor]:
            total = torch.zeros(x.shape)
            for column in range(ids.shape[1]):
                one = ids[:, column : column + 1]
                routed, alone = complete(x, one, torch.ones(one.shape), bank, shared, limit, quantize_input)
                total += routed * weights[:, column : column + 1]
            return total, alone

        self.experts = experts


class WithoutOutputRotation(ReferenceKernels):
    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
        return x if inverse else ReferenceKernels.rotate(x, cos, sin)


class WithoutSink(ReferenceKernels):
    @staticmethod
    def sparse_attention(q: Tensor, rows: Tensor, index: Tensor, counts: Tensor, sink: Tensor, scale: float) -> Tensor:
        nothing = torch.full_like(sink, -torch.inf)
        return ReferenceKernels.sparse_attention(q, rows, index, counts, nothing, scale)


class WithOwnCollapse(ReferenceKernels):
    """Every token's first stream instead of the mix the sub-layer before asked for."""

    @staticmethod
    def mhc_collapse(x: Tensor, _pre: Tensor) -> Tensor:
        return x[:, 0]


class WithLatestRows(ReferenceKernels):
    """Selects the newest rows instead of the best."""

    @staticmethod
    def select_rows(scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
        newest = torch.arange(scores.shape[1], dtype=torch.float32).expand_as(scores)
        return ReferenceKernels.select_rows(newest, allowed, topk)


def against_t1(model: LoadedModel) -> Distance:
    case = load_case(PROMPT)
    return distance(one_shot(model, case.ids)[case.arrays["logit_rows"]].numpy(), case.arrays["logits_fp32"])


def test_the_judge_accepts_the_model_as_it_is() -> None:
    assert t1_faults(against_t1(fresh_model(Profile.FP32))) == []


def rejected(kernels: type[ReferenceKernels]) -> bool:
    """Whether T1 rejects the model with these kernels, by its median and its rows, not for being infinite."""
    found = against_t1(fresh_model(Profile.FP32, kernels))
    return found.is_finite and {"median", "rows within 1e-3"} <= set(t1_faults(found))


def test_scores_without_their_relu_are_rejected() -> None:
    assert rejected(WithoutRelu)


def test_a_norm_over_every_query_head_is_rejected() -> None:
    assert rejected(WithQueryNorm)


def test_a_transposed_stream_mix_is_rejected() -> None:
    assert rejected(WithTransposedComb)


def test_zeroed_engram_is_rejected() -> None:
    assert rejected(WithoutEngram)


def test_ignored_candidates_are_rejected() -> None:
    assert rejected(WithoutCandidates)


def test_one_missing_expert_is_rejected() -> None:
    assert rejected(WithoutExpertThree)


def test_no_rotation_of_the_output_is_rejected() -> None:
    assert rejected(WithoutOutputRotation)


def test_no_attention_sink_is_rejected() -> None:
    assert rejected(WithoutSink)


def test_an_unmixed_collapse_is_rejected() -> None:
    assert rejected(WithOwnCollapse)


def test_selecting_the_newest_rows_is_rejected() -> None:
    assert rejected(WithLatestRows)


def test_swapped_rotary_tables_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    window, compressed = rope.plain_frequencies, rope.yarn_frequencies
    monkeypatch.setattr(rope, "plain_frequencies", compressed)
    monkeypatch.setattr(rope, "yarn_frequencies", window)
    assert rejected(ReferenceKernels)


def test_rotary_tables_without_yarn_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def unscaled(config: rope.RopeConfig) -> list[float]:
        return [config.compress_theta ** (-2 * i / config.head_dim) for i in range(config.head_dim // 2)]

    monkeypatch.setattr(rope, "yarn_frequencies", unscaled)
    assert rejected(ReferenceKernels)


def ffn_faults(model: LoadedModel, layer_id: int) -> list[str]:
    """The module check of one feed-forward sub-layer with golden inputs."""
    case = load_case("odd_25")
    x = torch.from_numpy(case.arrays[f"trace/L{layer_id}.ffn.in"]).to(model.dtype)
    positions = torch.arange(len(x))
    batch = ForwardBatch(ids=torch.tensor(case.ids), positions=positions, logit_rows=positions, engram={})
    view = model.runner(1, len(x)).store.view([Span(slot=0, start=0, length=len(x), offset=0)])
    step = Step(batch=batch, view=view, angles={}, visible={}, most_visible={}, probe=Recorder())
    with torch.inference_mode():
        out = model.backbone.layers[layer_id].ffn(x, step, "")
    return module_faults(out.float().numpy(), case.arrays[f"trace/L{layer_id}.ffn.out"], exact=False)


def test_a_routing_weight_behind_the_down_projection_is_rejected_by_the_module_check() -> None:
    accepted, moved = fresh_model(Profile.VENDOR), fresh_model(Profile.VENDOR, WithWeightAfterDown)
    for layer_id in range(10):
        assert ffn_faults(accepted, layer_id) == []
        assert ffn_faults(moved, layer_id) != [], layer_id


def test_t1_cannot_see_where_a_routing_weight_enters() -> None:
    # The reason for the module check: in FP32 both places are the same number.
    assert t1_faults(against_t1(fresh_model(Profile.FP32, WithWeightAfterDown))) == []
