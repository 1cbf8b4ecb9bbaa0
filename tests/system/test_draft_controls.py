"""One mechanism of the drafter is left out or replaced at a time, and the golden block must reject it.

Profile fp32 against the golden block behind 30 tokens.  Each control breaks one thing and leaves the target as it is,
so what is rejected is the draft; a wrong draft costs speed and shows in no text, which is why this judge must be sharp.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flash41.cache.blocks import DraftView
from flash41.cache.views import Span
from flash41.config.run import Profile
from flash41.engine.load import LoadedModel
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.model.draft_heads import Choice, Drafts
from flash41.model.drafter import Drafter
from flash41.tools.traces import Recorder
from helpers.drafting import DraftingFeeder
from helpers.golden_judge import CHECKPOINT, distance, load_case, relative_rows, t1_faults
from helpers.models import Models, fresh_model

CASE = "fp32/n30/"
LOGITS, CONFIDENCE = {"base logits", "logits"}, {"confidence"}

Change = Callable[[Drafter, pytest.MonkeyPatch], None]


def faults(model: LoadedModel) -> set[str]:
    """What of the block is outside T1."""
    golden = load_case("dspark_drafts").arrays
    feeder = DraftingFeeder(model, 1, 64)
    feeder.feed({0: golden[f"{CASE}ids"].tolist()})
    drafts = feeder.draft({0: golden[f"{CASE}anchor"].item()})[0]
    found = {
        name
        for name, got, expected in (
            ("base logits", drafts.base_logits, "base_logits"),
            ("logits", drafts.logits, "draft_logits"),
        )
        if t1_faults(distance(got[0].numpy(), golden[f"{CASE}{expected}"]))
    }
    wrong = relative_rows(drafts.confidence[0].numpy(), golden[f"{CASE}confidence_logit"]) > 1e-3
    return found | ({"confidence"} if wrong else set())


def broken(monkeypatch: pytest.MonkeyPatch, change: Change) -> set[str]:
    model = fresh_model(Profile.FP32)
    assert model.drafter is not None
    change(model.drafter, monkeypatch)
    return faults(model)


def test_the_drafter_as_it_is_has_no_fault(models: Models) -> None:
    assert faults(models(CHECKPOINT, Profile.FP32)) == set()


# Taps and contexts.


def with_taps(drafter: Drafter, monkeypatch: pytest.MonkeyPatch, replace: Callable[[Tensor], Tensor]) -> None:
    feed = drafter.feed

    def fed(taps: Tensor, positions: Tensor, view: object) -> None:
        feed(replace(taps), positions, view)  # type: ignore[arg-type]

    monkeypatch.setattr(drafter, "feed", fed)


def test_taps_of_the_layers_outputs_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    # The predecessor's drafter reads what leaves the tapped layers: here the inputs of 8 and 9, and the last residual.
    model, outputs = fresh_model(Profile.FP32), Recorder(("L8.resid.in", "L9.resid.in", "final.resid"))
    probed = DraftingFeeder(model, 1, 64)
    probed.feed({0: load_case("dspark_drafts").arrays[f"{CASE}ids"].tolist()}, outputs)
    points = outputs.joined()
    taps = torch.cat(
        [torch.from_numpy(points[name]).mean(1) for name in ("L8.resid.in", "L9.resid.in", "final.resid")], 1
    )
    assert model.drafter is not None
    with_taps(model.drafter, monkeypatch, lambda _: taps)
    assert faults(model) == LOGITS | CONFIDENCE


def test_taps_in_another_order_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(drafter: Drafter, patch: pytest.MonkeyPatch) -> None:
        with_taps(drafter, patch, lambda taps: torch.cat(taps.chunk(3, 1)[::-1], 1))

    assert broken(monkeypatch, change) == LOGITS | CONFIDENCE


def test_taps_are_taken_behind_the_engram_of_a_layer() -> None:
    # No valid configuration taps a layer with a table, so the moment is shown on a backbone that is told to.
    model, seen = fresh_model(Profile.FP32), Recorder(("L1.resid.*",))
    model.backbone._tap_layer_ids = frozenset({1})
    span = PlannedSpan(request_id=0, slot=0, start=0, ids=tuple(load_case("odd_25").ids), history=(), samples=True)
    runner = model.runner(1, 32)
    taps = runner.run(runner.stage(StepPlan(spans=(span,))), seen).taps
    before, after = (torch.from_numpy(seen.joined()[f"L1.resid.{point}"]) for point in ("in", "after_engram"))
    assert torch.equal(taps, after.double().mean(1).float())
    assert not torch.allclose(taps, before.double().mean(1).float(), rtol=1e-2)


def test_contexts_rotated_by_the_table_of_compressed_layers_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(drafter: Drafter, _: pytest.MonkeyPatch) -> None:
        drafter._rope.window_frequencies = drafter._rope.compressed_frequencies

    assert broken(monkeypatch, change) == LOGITS | CONFIDENCE


def test_contexts_without_their_norm_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(drafter: Drafter, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(drafter.entrance, "main_norm", lambda x: x)

    assert broken(monkeypatch, change) == LOGITS | CONFIDENCE


# The block.


def with_lists(patch: pytest.MonkeyPatch, alter: Callable[[DraftView], None]) -> None:
    plan = DraftView._plan_window

    def planned(view: DraftView) -> None:
        plan(view)
        alter(view)

    patch.setattr(DraftView, "_plan_window", planned)


def test_a_causal_block_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def causal(view: DraftView) -> None:
        view._window_counts = view._window_counts - torch.arange(4, -1, -1)

    assert broken(monkeypatch, lambda _, patch: with_lists(patch, causal)) == LOGITS | CONFIDENCE


def test_a_window_without_the_newest_position_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def shortened(view: DraftView) -> None:
        view._window_index = torch.cat((view._window_index[:, :7], view._window_index[:, 8:]), 1)
        view._window_counts = view._window_counts - 1

    assert broken(monkeypatch, lambda _, patch: with_lists(patch, shortened)) == LOGITS | CONFIDENCE


def test_a_window_that_moves_from_row_to_row_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(view: DraftView) -> None:
        index = view._window_index
        rows = [torch.cat((index[row, row:], index[row, :row])) for row in range(5)]
        view._window_index = torch.stack(rows)
        view._window_counts = view._window_counts - torch.arange(5)

    assert broken(monkeypatch, lambda _, patch: with_lists(patch, moved)) == LOGITS | CONFIDENCE


def test_a_block_one_position_later_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    # Noise at the predicted positions, as other drafters place it.
    def later(view: DraftView) -> None:
        (span,) = view.spans
        view.spans = [Span(slot=span.slot, start=span.start + 1, length=span.length, offset=span.offset)]

    assert broken(monkeypatch, lambda _, patch: with_lists(patch, later)) == LOGITS | CONFIDENCE


def test_another_noise_token_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(drafter: Drafter, _: pytest.MonkeyPatch) -> None:
        drafter._noise_token_id += 1

    assert broken(monkeypatch, change) == LOGITS | CONFIDENCE


@pytest.mark.parametrize("width", [3, 7])
def test_another_width_changes_every_position(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = load_case("dspark_drafts").arrays
    model = fresh_model(Profile.FP32)
    assert model.drafter is not None
    model.drafter.block_size = width
    feeder = DraftingFeeder(model, 1, 64)
    feeder.feed({0: golden[f"{CASE}ids"].tolist()})
    drafts = feeder.draft({0: golden[f"{CASE}anchor"].item()})[0]
    rows = min(width, 5)
    errors = relative_rows(drafts.base_logits[0, :rows].numpy(), golden[f"{CASE}base_logits"][:rows])
    assert errors.min() > 1e-3


def test_one_expert_more_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(drafter: Drafter, _: pytest.MonkeyPatch) -> None:
        for stage in drafter.stages:
            stage.ffn._topk += 1

    assert broken(monkeypatch, change) == LOGITS | CONFIDENCE


def test_stages_in_another_order_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(drafter: Drafter, _: pytest.MonkeyPatch) -> None:
        drafter._blocks = (drafter._blocks[1], drafter._blocks[0], drafter._blocks[2])

    assert broken(monkeypatch, change) == LOGITS | CONFIDENCE


# The heads.


def with_heads(
    drafter: Drafter,
    patch: pytest.MonkeyPatch,
    call: Callable[[Callable[..., Drafts], Tensor, Tensor, Tensor, Choice], Drafts],
) -> None:
    heads = drafter.heads.forward

    def forward(anchors: Tensor, hidden: Tensor, base_logits: Tensor, choose: Choice) -> Drafts:
        return call(heads, anchors, hidden, base_logits, choose)

    patch.setattr(drafter.heads, "forward", forward)


def test_a_confidence_of_the_normed_state_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(drafter: Drafter, patch: pytest.MonkeyPatch) -> None:
        with_heads(
            drafter,
            patch,
            lambda heads, anchors, hidden, base, choose: heads(anchors, drafter.norm(hidden), base, choose),
        )

    assert broken(monkeypatch, change) == CONFIDENCE


def test_drafts_without_the_markov_term_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(drafter: Drafter, _: pytest.MonkeyPatch) -> None:
        drafter.heads.markov_head.weight = torch.zeros_like(drafter.heads.markov_head.weight)

    assert "logits" in broken(monkeypatch, change)


def test_a_markov_term_of_the_anchor_alone_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every draft after the first must follow the draft before it.
    def change(drafter: Drafter, patch: pytest.MonkeyPatch) -> None:
        def call(heads: Callable[..., Drafts], anchors: Tensor, hidden: Tensor, base: Tensor, _: Choice) -> Drafts:
            return heads(anchors, hidden, base, lambda _k, _logits: anchors)

        with_heads(drafter, patch, call)

    assert broken(monkeypatch, change) == {"logits", "confidence"}


def test_an_exchange_of_the_markov_tables_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(drafter: Drafter, _: pytest.MonkeyPatch) -> None:
        heads = drafter.heads
        heads.markov_embed, heads.markov_head.weight = heads.markov_head.weight, heads.markov_embed

    assert broken(monkeypatch, change) == {"logits", "confidence"}
