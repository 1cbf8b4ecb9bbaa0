"""Each module alone, fed with golden traced inputs: no avalanche, so outputs hold to the precision of one module.

The bounds and where they come from: `helpers.golden_judge.module_faults`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from flash41.cache.views import Span
from flash41.config.run import Profile
from flash41.config.topology import LayerSpec, topology
from flash41.engine.load import LoadedModel
from flash41.model.batch import EngramRows, ForwardBatch, Selections, Step
from flash41.model.block import Block
from flash41.model.rope import Rope
from flash41.tools.traces import Recorder
from helpers.golden_judge import CHECKPOINT, Array, Case, equal_rows, load_case, module_faults
from helpers.models import Models


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A model with an empty cache, ready for the golden inputs of one case."""

    model: LoadedModel
    case: Case
    prefix: str
    step: Step
    seen: Recorder

    def golden(self, point: str) -> Array:
        return self.case.arrays[f"{self.prefix}trace/{point}"]

    def input(self, point: str) -> Tensor:
        """A golden array in the dtype of the profile's activations."""
        return torch.from_numpy(self.golden(point)).to(self.model.dtype)

    def recorded(self, point: str) -> Array:
        return self.seen.joined()[point]

    @property
    def blocks(self) -> list[tuple[LayerSpec, Block]]:
        return list(zip(topology(self.model.config).layers, self.model.backbone.layers, strict=True))

    def check(self, got: Tensor | Array, point: str) -> None:
        """Compares with a golden point."""
        ours = got.float().numpy() if isinstance(got, Tensor) else got
        theirs = self.golden(point)
        assert ours.shape == theirs.shape, (point, ours.shape, theirs.shape)
        faults = module_faults(ours, theirs, exact=self.model.profile is Profile.FP32)
        assert faults == [], point


def replayed(model: LoadedModel, case: Case) -> Replay:
    length, ratios = len(case.ids), set(model.config.attention.compress_ratios)
    positions, rope = torch.arange(length), Rope(model.config.rope)
    seen = Recorder()
    prefix = "fp32/" if model.profile is Profile.FP32 else ""
    batch = ForwardBatch(
        ids=torch.tensor(case.ids),
        positions=positions,
        logit_rows=positions,
        engram={layer: gathered(model, case.arrays[f"trace/L{layer}.engram.rows"], layer) for layer in model.tables},
    )
    step = Step(
        batch=batch,
        view=model.runner(1, length).store.view([Span(slot=0, start=0, length=length, offset=0)]),
        angles={ratio: rope.angles(positions, ratio) for ratio in ratios},
        visible={ratio: (positions + 1) // ratio for ratio in ratios - {0}},
        most_visible={ratio: length // ratio for ratio in ratios - {0}},
        probe=seen,
    )
    return Replay(model=model, case=case, prefix=prefix, step=step, seen=seen)


def gathered(model: LoadedModel, row_ids: Array, layer_id: int) -> EngramRows:
    ids = row_ids.astype(np.int64)
    values = model.tables[layer_id][1].gather(ids, dtype=model.dtype)
    return EngramRows(row_ids=torch.from_numpy(ids), values=values)


@pytest.fixture(
    params=[
        ("window_cross", Profile.FP32),
        ("window_cross", Profile.VENDOR),
        ("odd_25", Profile.VENDOR),
    ],
    ids=lambda param: f"{param[0]}-{param[1].value}",
)
def replay(request: pytest.FixtureRequest, models: Models) -> Replay:
    name, profile = request.param
    return replayed(models(CHECKPOINT, profile), load_case(name))


@torch.inference_mode()
def run_attention(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LayerSpec, Tensor]]:
    """Output of every layer, in order; planes hold what their owners wrote from golden inputs.

    Scorers choose for themselves, and what they chose is compared; what they hand on is the golden choice, so that one
    near-tie does not spread to the layers that reuse it.
    """
    kernels, specs, selections = replay.model.kernels, [spec for spec, _ in replay.blocks], Selections()
    scorers = iter([spec.layer_id for spec in specs if spec.scores])
    source = next(spec.layer_id for spec in specs if spec.produces_candidates)
    select_rows, candidate_blocks = kernels.select_rows, kernels.candidate_blocks

    def golden_rows(scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
        golden = replay.golden(f"L{next(scorers)}.index.selected")
        assert equal_rows(select_rows(scores, allowed, topk).numpy(), golden) >= 0.95
        return torch.from_numpy(golden).long()

    def golden_blocks(scores: Tensor, visible: Tensor, num_blocks: int, block_size: int) -> Tensor:
        golden = replay.golden(f"L{source}.index.candidates")
        assert equal_rows(candidate_blocks(scores, visible, num_blocks, block_size).numpy(), golden) >= 0.95
        return torch.from_numpy(golden).long()

    monkeypatch.setattr(kernels, "select_rows", golden_rows)
    monkeypatch.setattr(kernels, "candidate_blocks", golden_blocks)
    for spec, block in replay.blocks:
        yield spec, block.attn(replay.input(f"L{spec.layer_id}.attn.in"), replay.step, selections)
    assert next(scorers, None) is None, "a scorer did not select"


def test_attention_maps_golden_inputs_to_golden_outputs(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, out in run_attention(replay, monkeypatch):
        replay.check(out, f"L{spec.layer_id}.attn.out")


def test_attention_makes_the_golden_rows_keys_queries_and_scores(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(run_attention(replay, monkeypatch))
    owners = topology(replay.model.config).kv_owners
    scorers = topology(replay.model.config).scorers
    for spec, _ in replay.blocks:
        for point in ("attn.q", "attn.window_row"):
            replay.check(replay.recorded(f"L{spec.layer_id}.{point}"), f"L{spec.layer_id}.{point}")
    for owner in owners:
        for point in ("attn.latent", "attn.main_row", "index.key"):
            replay.check(replay.recorded(f"L{owner}.{point}"), f"L{owner}.{point}")
    for scorer in scorers:
        for point in ("index.q", "index.weights"):
            replay.check(replay.recorded(f"L{scorer}.{point}"), f"L{scorer}.{point}")
        ours, theirs = replay.recorded(f"L{scorer}.index.scores"), replay.golden(f"L{scorer}.index.scores")
        assert np.array_equal(np.isneginf(ours), np.isneginf(theirs))
        visible = np.isfinite(theirs)
        exact = replay.model.profile is Profile.FP32
        assert module_faults(ours[visible], theirs[visible], exact) == []


@torch.inference_mode()
def run_ffn(replay: Replay) -> Iterable[tuple[str, Tensor]]:
    for spec, block in replay.blocks:
        name = f"L{spec.layer_id}"
        yield name, block.ffn(replay.input(f"{name}.ffn.in"), replay.step, name)


def test_experts_map_golden_inputs_to_golden_outputs_and_routes(replay: Replay) -> None:
    for name, out in run_ffn(replay):
        assert equal_rows(replay.recorded(f"{name}.router.ids"), replay.golden(f"{name}.router.ids")) == 1.0
        # FP32 in, FP32 out in every profile: one sum of 128 products, then two pointwise functions.
        for point in (f"{name}.router.logits", f"{name}.router.weights"):
            np.testing.assert_allclose(replay.recorded(point), replay.golden(point), rtol=2.0**-19, atol=2.0**-19)
        replay.check(out, f"{name}.ffn.out")


@torch.inference_mode()
def test_hyper_connections_predict_the_golden_coefficients(replay: Replay) -> None:
    for spec, block in replay.blocks:
        name = f"L{spec.layer_id}"
        before = f"{name}.resid.after_engram" if spec.has_engram else f"{name}.resid.in"
        for connection, point, prefix in (
            (block.hc_attn, before, f"{name}.attn"),
            (block.hc_ffn, f"{name}.resid.mid", f"{name}.ffn"),
        ):
            found = connection(replay.input(point))
            for coefficients, part in zip(found, ("pre", "post", "comb"), strict=True):
                # FP32 from BF16-exact inputs in both profiles: a sum of 512 products and a mean of 512 squares.
                np.testing.assert_allclose(
                    coefficients.numpy(), replay.golden(f"{prefix}.{part}"), rtol=2.0**-18, atol=2.0**-20
                )


@torch.inference_mode()
def test_streams_are_collapsed_and_mixed_as_in_the_golden(replay: Replay) -> None:
    kernels, pre = replay.model.kernels, None
    for spec, block in replay.blocks:
        name = f"L{spec.layer_id}"
        x = replay.input(f"{name}.resid.after_engram" if spec.has_engram else f"{name}.resid.in")
        if pre is None:
            pre = torch.zeros(x.shape[:2])
            pre[:, 0] = 1.0
        mixes = {key: torch.from_numpy(replay.golden(f"{name}.{key}")) for key in mix_names()}
        replay.check(block.attn_norm(kernels.mhc_collapse(x, pre)), f"{name}.attn.in")
        middle = kernels.mhc_apply(x, replay.input(f"{name}.attn.out"), mixes["attn.post"], mixes["attn.comb"])
        replay.check(middle, f"{name}.resid.mid")
        x = replay.input(f"{name}.resid.mid")
        replay.check(block.ffn_norm(kernels.mhc_collapse(x, mixes["attn.pre"])), f"{name}.ffn.in")
        after = kernels.mhc_apply(x, replay.input(f"{name}.ffn.out"), mixes["ffn.post"], mixes["ffn.comb"])
        last = spec.layer_id == replay.model.config.num_layers - 1
        replay.check(after, "final.resid" if last else f"L{spec.layer_id + 1}.resid.in")
        pre = mixes["ffn.pre"]


def mix_names() -> list[str]:
    return [f"{sub_layer}.{part}" for sub_layer in ("attn", "ffn") for part in ("pre", "post", "comb")]


@torch.inference_mode()
def test_engram_opens_the_golden_gates_and_adds_the_golden_values(replay: Replay) -> None:
    for spec, block in replay.blocks:
        if block.engram is None:
            continue
        name = f"L{spec.layer_id}"
        out = block.engram(replay.input(f"{name}.resid.in"), replay.step, spec.layer_id)
        # The gate is a square root of a dot product that may cancel: sqrt keeps 2^-19 of the scale as 2^-9 at worst.
        np.testing.assert_allclose(
            replay.recorded(f"{name}.engram.gate"), replay.golden(f"{name}.engram.gate"), rtol=0, atol=2.0**-9
        )
        replay.check(out, f"{name}.resid.after_engram")


@torch.inference_mode()
def test_the_head_reads_the_collapsed_normed_residual(replay: Replay) -> None:
    kernels, backbone = replay.model.kernels, replay.model.backbone
    hidden = kernels.mhc_collapse(replay.input("final.resid"), torch.from_numpy(replay.golden("final.pre")))
    replay.check(hidden, "final.hidden")
    normed = backbone.norm(replay.input("final.hidden"))
    replay.check(normed, "final.norm")
    logits = backbone.head(replay.input("final.norm")).numpy()
    golden = replay.case.arrays["logits_fp32" if replay.prefix else "logits"]
    np.testing.assert_allclose(logits, golden, rtol=2.0**-19, atol=2.0**-19 * np.abs(golden).max())
