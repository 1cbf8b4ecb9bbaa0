import pytest
import torch

from flash41.cache.contiguous import ContiguousStore
from flash41.cache.rows import RowFormat, RowFormats
from flash41.cache.store import store_shape
from flash41.errors import ProtocolError
from flash41.model.attention import join
from flash41.model.batch import Selection, Selections
from flash41.numerics.scaled import quantize_fp8_32
from helpers.small_training import small_config
from training.model.attention import joined
from training.model.view import WholeView, values

LENGTH, SEQUENCES = 21, 2
FORMATS = RowFormats(window=RowFormat.FP32, main=RowFormat.FP32, index=RowFormat.FP32)


def rows(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def test_whole_sequences_show_what_a_store_of_fresh_requests_shows() -> None:
    config = small_config()
    ours = WholeView(SEQUENCES, LENGTH, config.attention.window)
    store = ContiguousStore(store_shape(config, SEQUENCES, LENGTH), FORMATS)
    theirs = store.view(ours.spans)
    width, total = config.attention.head_dim, LENGTH * SEQUENCES
    window = rows(total, width, 1)
    seen, expected = ours.window(0, window), theirs.window(0, window)
    assert torch.equal(seen.rows, expected.rows)
    assert torch.equal(seen.counts, expected.counts)
    assert torch.equal(seen.index, expected.index)
    first, second = config.attention.kv_source_layer_ids
    for owner, ratio in ((first, 2), (second, 1)):
        mine, other = ours.closed_groups(ratio), theirs.closed_groups(ratio)
        for name in ("last_rows", "row_ids", "positions"):
            assert torch.equal(getattr(mine, name), getattr(other, name))
        plane, keys = rows(len(mine.row_ids), width, 2), rows(len(mine.row_ids), config.indexer.head_dim, 3)
        for view in (ours, theirs):
            view.append_main(owner, plane)
            view.append_index(owner, keys)
        selected = torch.randint(0, LENGTH // ratio, (total, 3), generator=torch.Generator().manual_seed(4))
        assert torch.equal(ours.read_main(owner, selected), theirs.read_main(owner, selected))
        assert torch.equal(ours.read_index(owner, ours.spans), theirs.read_index(owner, ours.spans))
    members = (rows(total, width, 5), rows(total, width, 6))
    for mine, other in zip(ours.group_members(first, *members), theirs.group_members(first, *members), strict=True):
        assert torch.equal(mine, other)


def test_a_list_names_the_rows_that_the_engine_would_have_gathered() -> None:
    view = WholeView(SEQUENCES, LENGTH, 4)
    window = view.window(0, rows(LENGTH * SEQUENCES, 2, 1))
    view.append_main(1, rows(LENGTH * SEQUENCES, 2, 2))
    chosen = torch.full((LENGTH * SEQUENCES, 5), -1)
    for t, position in enumerate(view.positions.tolist()):
        few = sorted({position // 3, position // 2, position})
        chosen[t, : len(few)] = torch.tensor(few)
    selection = Selection(rows=chosen, width=3, counts=(chosen >= 0).sum(1))
    ours = joined(window, selection, len(window.rows) + view.plane_starts(1))
    theirs = join(window, selection, Selections())
    stack = torch.cat((window.rows, view.plane(1)))
    gathered = torch.cat((window.rows, view.read_main(1, chosen[:, :3]).flatten(0, 1)))
    assert torch.equal(ours.counts, theirs.counts)
    for t, count in enumerate(ours.counts.tolist()):
        assert torch.equal(stack[ours.index[t, :count]], gathered[theirs.index[t, :count]])


def test_codes_are_refused_where_values_are_expected() -> None:
    with pytest.raises(ProtocolError, match="rows of a training forward"):
        values(quantize_fp8_32(torch.zeros(1, 32)))


def test_sequences_are_only_scored_together() -> None:
    view = WholeView(SEQUENCES, LENGTH, 4)
    with pytest.raises(ProtocolError, match="all 2"):
        view.read_index(1, view.spans[:1])
