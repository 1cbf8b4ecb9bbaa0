"""The drafter's own decisions: what it computes of a forward, where block rows stand, what it leaves alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flash41.cache.blocks import DraftView
from flash41.cache.views import Span
from flash41.config.run import Profile
from flash41.engine.load import LoadedModel
from flash41.errors import ProtocolError
from flash41.model.drafter import Drafter
from flash41.model.rounding import as_tensor
from flash41.tools.traces import Recorder
from helpers.drafting import DraftingFeeder
from helpers.golden_judge import CHECKPOINT, load_case
from helpers.models import Models, fresh_model

IDS = load_case("odd_25").ids
ANCHOR = 77


@pytest.fixture(params=[Profile.VENDOR, Profile.FP32], ids=lambda profile: profile.value)
def model(request: pytest.FixtureRequest, models: Models) -> LoadedModel:
    return models(CHECKPOINT, request.param)


def drafter_of(model: LoadedModel) -> Drafter:
    assert model.drafter is not None
    return model.drafter


def watched(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[tuple[Tensor, ...]]:
    """The tensors a method is called with."""
    method: Callable[..., object] = getattr(owner, name)
    calls: list[tuple[Tensor, ...]] = []

    def record(*arguments: Tensor) -> object:
        calls.append(arguments)
        return method(*arguments)

    monkeypatch.setattr(owner, name, record)
    return calls


def test_a_context_row_is_the_window_row_of_the_same_input(model: LoadedModel) -> None:
    # The stage that reads contexts has no other way to make rows than a layer has.
    stage, recorder = drafter_of(model).stages[1], Recorder()
    runner = model.runner(1, 40, drafts=True)
    runner.store.view([Span(slot=0, start=0, length=9, offset=0)])
    runner.draft({0: ANCHOR}, probe=recorder)
    seen = recorder.joined()
    block = torch.from_numpy(seen["mtp1.attn.in"]).to(model.dtype)
    angles = model.backbone._rope.angles(torch.arange(9, 14), 0)
    with torch.inference_mode():
        rows = as_tensor(stage.attn.context_row(block, angles), model.dtype)
    assert torch.equal(rows.float(), torch.from_numpy(seen["mtp1.attn.window_row"]))


def test_only_rows_that_rings_keep_are_projected(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = watched(monkeypatch, drafter_of(model).entrance, "forward")
    feeder = DraftingFeeder(model, 2, 64)
    feeder.feed({0: IDS, 1: IDS[:4]})
    ring = model.config.attention.window + model.config.dspark.block_size
    assert [len(taps) for (taps,) in calls] == [ring + 4]
    feeder.feed({1: IDS[4:6]})
    assert [len(taps) for (taps,) in calls] == [ring + 4, 2]


def test_the_first_row_is_the_anchor_and_the_others_are_noise_right_behind_the_newest_position(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models(CHECKPOINT, Profile.VENDOR)
    drafter = drafter_of(model)
    seen = []
    step = drafter._step

    def record(*arguments: object) -> object:
        seen.append(step(*arguments).batch)  # type: ignore[arg-type]
        return step(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(drafter, "_step", record)
    feeder = DraftingFeeder(model, 3, 64)
    feeder.feed({0: IDS, 2: IDS[:4]})
    feeder.draft({2: ANCHOR, 0: 5})
    noise = model.config.dspark.noise_token_id
    (batch,) = seen
    assert batch.ids.tolist() == [ANCHOR, *[noise] * 4, 5, *[noise] * 4]
    assert batch.positions.tolist() == [4, 5, 6, 7, 8, 25, 26, 27, 28, 29]


def test_drafting_changes_neither_the_caches_nor_a_later_draft(model: LoadedModel) -> None:
    plain, drafting = DraftingFeeder(model, 1, 64), DraftingFeeder(model, 1, 64)
    for feeder in (plain, drafting):
        feeder.feed({0: IDS[:11]})
    first, second = (drafting.draft({0: ANCHOR})[0] for _ in range(2))
    assert torch.equal(first.logits, second.logits)
    other = drafting.draft({0: ANCHOR + 1})[0]
    assert not torch.equal(first.logits, other.logits)
    assert torch.equal(drafting.feed({0: IDS[11:]})[0], plain.feed({0: IDS[11:]})[0])
    assert torch.equal(drafting.draft({0: ANCHOR})[0].logits, plain.draft({0: ANCHOR})[0].logits)


def test_a_slot_without_a_position_cannot_be_drafted_for(model: LoadedModel) -> None:
    runner = model.runner(2, 16, drafts=True)
    with pytest.raises(ProtocolError, match=r"slots to draft for: got \[1\]"):
        runner.draft({1: ANCHOR})


def test_a_runner_without_rings_for_stages_neither_feeds_nor_drafts(models: Models) -> None:
    runner = models(CHECKPOINT, Profile.VENDOR).runner(1, 16)
    assert len(runner.store.windows) == 10
    with pytest.raises(AssertionError, match="this runner has no drafter"):
        runner.draft({0: ANCHOR})


def test_every_choice_is_made_from_what_is_reported(model: LoadedModel) -> None:
    feeder = DraftingFeeder(model, 1, 64)
    feeder.feed({0: IDS})
    drafts = feeder.draft({0: ANCHOR}, choose=lambda _, logits: logits.topk(2).indices[:, 1])[0]
    assert torch.equal(drafts.ids, drafts.logits.topk(2).indices[..., 1])


def test_the_view_of_a_block_names_its_rows(models: Models) -> None:
    model = models(CHECKPOINT, Profile.VENDOR)
    feeder = DraftingFeeder(model, 2, 64)
    feeder.feed({0: IDS, 1: IDS[:3]})
    view = DraftView(feeder.runner.store, [1, 0], 5)
    assert [(span.slot, span.start, span.offset) for span in view.spans] == [(1, 3, 0), (0, 25, 5)]
    assert view.context(10).shape == (3 + 8, 64)


def test_a_drafter_of_zeros_still_proposes(models: Models) -> None:
    model = fresh_model(Profile.FP32)
    heads = drafter_of(model).heads
    heads.markov_embed = torch.zeros_like(heads.markov_embed)
    feeder = DraftingFeeder(model, 1, 64)
    feeder.feed({0: IDS})
    drafts = feeder.draft({0: ANCHOR})[0]
    assert torch.equal(drafts.logits, drafts.base_logits)
