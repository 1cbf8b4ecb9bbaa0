from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from flash41.config.run import Profile
from flash41.engine.load import LoadedModel
from flash41.engine.plan import PlannedImage, PlannedSpan, StepPlan
from flash41.engine.runner import Runner
from flash41.engram.hashing import rows_for_span
from flash41.errors import CapacityError, CheckpointError, ProtocolError, RequestError
from flash41.tools.traces import Recorder
from helpers.golden_judge import CHECKPOINT, load_case
from helpers.models import Models

LENGTH = 12


@pytest.fixture(scope="module")
def model(models: Models) -> LoadedModel:
    return models(CHECKPOINT, Profile.VENDOR)


@pytest.fixture(scope="module")
def ids() -> tuple[int, ...]:
    return tuple(load_case("odd_25").ids[:LENGTH])


def span(ids: Sequence[int], start: int = 0, end: int = LENGTH, *, slot: int = 0, samples: bool = True) -> PlannedSpan:
    return PlannedSpan(
        request_id=slot,
        slot=slot,
        start=start,
        ids=tuple(ids[start:end]),
        history=tuple(ids[max(0, start - 3) : start]),
        samples=samples,
    )


def plan(*spans: PlannedSpan) -> StepPlan:
    return StepPlan(spans=spans)


def run(runner: Runner, *spans: PlannedSpan) -> torch.Tensor:
    return runner.run(runner.stage(plan(*spans))).logits


def test_a_plan_becomes_rows_span_after_span(model: LoadedModel, ids: tuple[int, ...]) -> None:
    runner = model.runner(3, 32)
    staged = runner.stage(
        plan(span(ids, 4, 5, slot=2), span(ids, 2, 6, slot=0, samples=False), span(ids, 0, 3, slot=1))
    )
    batch = staged.batch
    assert batch.ids.tolist() == [*ids[4:5], *ids[2:6], *ids[0:3]]
    assert batch.positions.tolist() == [4, 2, 3, 4, 5, 0, 1, 2]
    assert batch.logit_rows.tolist() == [0, 7]
    assert {batch.ids.dtype, batch.positions.dtype, batch.logit_rows.dtype} == {torch.int64}
    assert [(one.slot, one.start, one.length, one.offset) for one in staged.spans] == [
        (2, 4, 1, 0),
        (0, 2, 4, 1),
        (1, 0, 3, 5),
    ]
    assert staged.all_logits().batch.logit_rows.tolist() == list(range(8))
    assert runner.store.cursors == [0, 0, 0]


def test_a_step_inside_a_prompt_has_no_logits(model: LoadedModel, ids: tuple[int, ...]) -> None:
    runner = model.runner(1, 32)
    assert run(runner, span(ids, 0, 5, samples=False)).shape == (0, model.config.vocab_size)
    assert run(runner, span(ids, 5, 9)).shape == (1, model.config.vocab_size)


@pytest.mark.parametrize("borders", [(0, 12), (0, 1, 12), (0, 3, 4, 9, 12), tuple(range(13))], ids=str)
def test_engram_rows_are_those_of_the_whole_request_for_any_cut(
    borders: tuple[int, ...], model: LoadedModel, ids: tuple[int, ...]
) -> None:
    runner = model.runner(1, 32)
    compressed = model.token_map.compress(ids)
    cuts = list(pairwise(borders))
    staged = [runner.stage(plan(span(ids, start, end))) for start, end in cuts]
    assert set(model.tables) == {1, 4}
    for layer_id, (table_hash, table) in model.tables.items():
        expected = rows_for_span(table_hash, compressed, 0, LENGTH, model.token_map.pad)
        parts = [one.batch.engram[layer_id] for one in staged]
        assert np.array_equal(torch.cat([part.row_ids for part in parts]).numpy(), expected)
        assert torch.equal(torch.cat([part.values for part in parts]), table.gather(expected))


def test_engram_rows_do_not_look_into_the_neighbour(model: LoadedModel, ids: tuple[int, ...]) -> None:
    runner = model.runner(2, 32)
    together = runner.stage(plan(span(ids, slot=0), span(ids, 0, 5, slot=1))).batch.engram
    alone = runner.stage(plan(span(ids, 0, 5, slot=1))).batch.engram
    for layer_id, rows in alone.items():
        assert torch.equal(together[layer_id].row_ids[LENGTH:], rows.row_ids)


@pytest.mark.parametrize("profile", [Profile.VENDOR, Profile.FP32])
def test_engram_values_have_the_dtype_of_activations(profile: Profile, models: Models, ids: tuple[int, ...]) -> None:
    loaded = models(CHECKPOINT, profile)
    staged = loaded.runner(1, 32).stage(plan(span(ids)))
    expected = torch.float32 if profile is Profile.FP32 else torch.bfloat16
    assert {rows.values.dtype for rows in staged.batch.engram.values()} == {expected}


def test_staging_ahead_changes_no_result(model: LoadedModel, ids: tuple[int, ...]) -> None:
    plain, ahead = model.runner(1, 32), model.runner(1, 32)
    expected = [run(plain, span(ids, start, start + 4)) for start in (0, 4, 8)]
    staged = [ahead.stage(plan(span(ids, start, start + 4))) for start in (0, 4, 8)]
    for one, logits in zip(staged, expected, strict=True):
        assert torch.equal(ahead.run(one).logits, logits)


def test_a_span_from_position_0_begins_an_empty_slot(model: LoadedModel, ids: tuple[int, ...]) -> None:
    runner = model.runner(1, 32)
    expected = run(runner, span(ids))
    assert runner.store.cursors == [LENGTH]
    run(runner, span(ids[::-1], 0, 7))
    assert runner.store.cursors == [7]
    assert torch.equal(run(runner, span(ids)), expected)


def test_a_span_that_does_not_begin_where_its_slot_ends_is_refused(model: LoadedModel, ids: tuple[int, ...]) -> None:
    runner = model.runner(1, 32)
    run(runner, span(ids, 0, 5))
    with pytest.raises(ProtocolError, match="slot 0: state position: got 5, expected 6"):
        run(runner, span(ids, 6, 8))


def test_a_request_longer_than_its_slot_is_refused(model: LoadedModel, ids: tuple[int, ...]) -> None:
    with pytest.raises(CapacityError, match="slot 0: request length: got 12, expected at most 11 positions"):
        run(model.runner(1, 11), span(ids))


def test_an_id_outside_the_vocabulary_is_refused_before_the_caches_are_touched(model: LoadedModel) -> None:
    runner = model.runner(1, 32)
    with pytest.raises(RequestError, match=rf"token ids: got \[{model.config.vocab_size}\]"):
        runner.stage(plan(span((0, model.config.vocab_size), 0, 2)))
    assert runner.store.cursors == [0]


def test_images_become_a_mask_and_rows_and_the_engram_reads_nothing_there(
    model: LoadedModel, ids: tuple[int, ...]
) -> None:
    image = PlannedImage(identity=b"i" * 32, start=3, num_rows=4)
    rows = {image.identity: torch.arange(4.0).view(4, 1).expand(4, 128).to(torch.bfloat16)}
    runner = model.runner(2, 32)
    pictured = replace(span(ids, 5, 9), images=(image,))
    batch = runner.stage(plan(span(ids, 0, 2, slot=1), pictured), rows).batch
    assert batch.image_mask is not None
    assert batch.image_rows is not None
    assert batch.image_mask.tolist() == [False, False, True, True, False, False]
    assert batch.image_rows[:, 0].tolist() == [2, 3]
    for layer_id in (1, 4):
        values = batch.engram[layer_id].values
        assert not values[2:4].any()
        assert values[[0, 1, 4, 5]].any(1).all()


def test_a_step_behind_an_image_has_no_mask_but_its_n_grams_are_cut(model: LoadedModel, ids: tuple[int, ...]) -> None:
    image = PlannedImage(identity=b"i" * 32, start=3, num_rows=4)
    runner = model.runner(1, 32)
    behind = runner.stage(plan(replace(span(ids, 8, 10), images=(image,)))).batch
    assert behind.image_mask is None
    assert behind.image_rows is None
    cut = runner.stage(plan(replace(span(ids, 8, 10), history=ids[7:8]))).batch
    assert torch.equal(behind.engram[1].row_ids, cut.engram[1].row_ids)
    assert not torch.equal(behind.engram[1].row_ids, runner.stage(plan(span(ids, 8, 10))).batch.engram[1].row_ids)


def test_an_image_that_nobody_encoded_is_refused(model: LoadedModel, ids: tuple[int, ...]) -> None:
    image = PlannedImage(identity=b"i" * 32, start=3, num_rows=4)
    with pytest.raises(ProtocolError, match=r"rows of image 69696969.* at position 3: got 'none'"):
        model.runner(1, 32).stage(plan(replace(span(ids), images=(image,))))


class Gate:
    """A guard that can be closed."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.is_closed = False

    def __call__(self) -> None:
        self.num_calls += 1
        if self.is_closed:
            raise CheckpointError("closed")


def test_staging_and_running_ask_the_guard_before_they_touch_anything(model: LoadedModel, ids: tuple[int, ...]) -> None:
    gate, plain = Gate(), model.runner(1, 32)
    runner = Runner(model.backbone, plain.store, model.tables, model.token_map, model.dtype, gate)
    run(runner, span(ids, 0, 5))
    assert gate.num_calls == 2
    staged = [runner.stage(plan(span(ids, start, end))) for start, end in ((5, 6), (0, 3))]
    gate.is_closed = True
    for one in staged:
        with pytest.raises(CheckpointError, match="closed"):
            runner.run(one)
    with pytest.raises(CheckpointError, match="closed"):
        runner.stage(plan(span(ids, 5, 6)))
    assert runner.store.cursors == [5]
    gate.is_closed = False
    assert torch.equal(runner.run(staged[0]).logits, run(plain, span(ids, 0, 6)))


def test_a_probe_changes_no_result(model: LoadedModel, ids: tuple[int, ...]) -> None:
    runner, probe = model.runner(1, 32), Recorder()
    expected = run(runner, span(ids))
    assert torch.equal(runner.run(runner.stage(plan(span(ids))), probe).logits, expected)
    assert "L8.index.selected" in probe.pieces


def test_a_forward_that_feeds_draft_stages_gives_the_same_logits(model: LoadedModel, ids: tuple[int, ...]) -> None:
    plain, drafting = model.runner(2, 32), model.runner(2, 32, drafts=True)
    for cut in (span(ids, 0, 7), span(ids, 7, 8), span(ids, 8)):
        assert torch.equal(run(drafting, cut), run(plain, cut))


def test_drafts_come_in_the_order_of_their_anchors(model: LoadedModel, ids: tuple[int, ...]) -> None:
    runner = model.runner(3, 32, drafts=True)
    run(runner, span(ids, slot=2), span(ids, 0, 4, slot=0))
    forwards, backwards = runner.draft({0: 5, 2: 6}), runner.draft({2: 6, 0: 5})
    assert torch.equal(forwards.logits, backwards.logits.flip(0))
    assert forwards.ids.shape == forwards.confidence.shape == (2, model.config.dspark.block_size)


def test_a_request_that_took_rows_back_goes_on_where_it_stands(model: LoadedModel, ids: tuple[int, ...]) -> None:
    runner, plain = model.runner(1, 32, drafts=True), model.runner(1, 32)
    run(runner, span(ids, 0, 10))
    runner.store.rewind(0, 6)
    run(plain, span(ids, 0, 6))
    assert torch.equal(run(runner, span(ids, 6)), run(plain, span(ids, 6)))


def test_files_that_changed_are_noticed_before_a_draft(
    model: LoadedModel, ids: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = model.runner(1, 32, drafts=True)
    run(runner, span(ids))

    def changed() -> None:
        raise CheckpointError("changed while in use")

    monkeypatch.setattr(runner, "_guard", changed)
    with pytest.raises(CheckpointError, match="changed while in use"):
        runner.draft({0: 5})


def test_every_row_from_the_anchor_on_has_logits(model: LoadedModel, ids: tuple[int, ...]) -> None:
    runner = model.runner(2, LENGTH, drafts=True)
    whole = run(runner, replace(span(ids, 0, 9), num_drafts=8))
    assert whole.shape[0] == 9
    run(runner, span(ids, 0, 4, slot=1))
    verified = run(runner, replace(span(ids, 4, 9, slot=1), num_drafts=2))
    assert torch.equal(verified, whole[6:])
    runner.keep(1, 7)
    assert torch.equal(run(runner, span(ids, 7, 9, slot=1)), whole[8:])
