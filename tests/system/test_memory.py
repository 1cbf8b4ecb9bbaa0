"""What a forward reads of its caches: what was written and is selected, and nothing else.  spec: fixtures.md F1, F7."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from flash41.config.run import PoolDtype, PoolFormat, Profile
from flash41.engine.load import LoadedModel
from flash41.engine.runner import Runner
from flash41.tools.traces import trace
from helpers.feeding import Feeder, one_shot
from helpers.golden_judge import CHECKPOINT, Array, load_case
from helpers.models import Models

Traces = Callable[[str, Profile], dict[str, Array]]

IDS = load_case("candidate_drop").ids[:40]


@pytest.fixture
def model(models: Models) -> LoadedModel:
    return models(CHECKPOINT, Profile.VENDOR, PoolFormat(main=PoolDtype.BF16, index=PoolDtype.BF16))


def poison(runner: Runner) -> None:
    """NaN in every row of every slot."""
    store = runner.store
    for buffer in (*store.windows, *store.main.values(), *store.index.values()):
        buffer.write(torch.arange(buffer.num_rows), torch.full((buffer.num_rows, buffer.codec.channels), torch.nan))
    for members in store.members.values():
        for ring in members:
            ring.fill_(torch.nan)


def test_nothing_is_read_before_it_is_written(model: LoadedModel) -> None:
    feeder = Feeder(model, 3, 64)
    poison(feeder.runner)
    requests = {2: IDS, 0: IDS[:1], 1: IDS[:12]}
    first = feeder.feed({slot: ids[:11] for slot, ids in requests.items()})
    second = feeder.feed({2: IDS[11:], 1: IDS[11:12]})
    expected = one_shot(model, IDS)
    assert torch.equal(torch.cat((first[2], second[2])), expected)
    assert torch.equal(first[0], expected[:1])
    assert torch.equal(torch.cat((first[1], second[1])), expected[:12])


def test_rows_that_no_layer_selected_are_not_read(model: LoadedModel) -> None:
    traced = trace(model, IDS)
    feeder = Feeder(model)
    feeder.feed({0: IDS[:-1]})
    for owner, scorers in ((2, [2]), (4, [4]), (6, [6, 8])):
        read = {int(row) for scorer in scorers for row in traced[f"trace/L{scorer}.index.selected"][-1]}
        num_rows = (len(IDS) - 1) // (2 if owner < 6 else 1)
        unread = torch.tensor([row for row in range(num_rows) if row not in read])
        assert len(unread) > 5
        feeder.runner.store.main[owner].write(unread, torch.full((len(unread), 64), torch.nan))
    assert np.array_equal(feeder.feed({0: IDS[-1:]})[0].numpy(), traced["logits"][-1:])


def test_rows_that_were_selected_are_read(model: LoadedModel) -> None:
    # The control of the test above: the same poison on a row that the last query selected.
    row = int(trace(model, IDS, points=("L2.index.selected",))["trace/L2.index.selected"][-1, 0])
    feeder = Feeder(model)
    feeder.feed({0: IDS[:-1]})
    feeder.runner.store.main[2].write(torch.tensor([row]), torch.full((1, 64), torch.nan))
    assert feeder.feed({0: IDS[-1:]})[0].isnan().all()


@pytest.mark.parametrize("chunks", [(9, 17, 8, 7, 1, 33, 75), (150 - 24, 24)], ids=str)
def test_a_ring_that_wraps_many_times_keeps_its_bits(
    chunks: tuple[int, ...], models: Models, golden_traces: Traces
) -> None:
    got = Feeder(models(CHECKPOINT, Profile.VENDOR)).feed_chunks(load_case("long_wrap").ids, chunks)
    assert np.array_equal(got.numpy(), golden_traces("long_wrap", Profile.VENDOR)["logits"])
