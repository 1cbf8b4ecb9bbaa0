import pytest
import torch

from flash41.cache.contiguous import ContiguousStore
from flash41.cache.rows import RowFormats
from flash41.cache.store_shape import store_shape
from flash41.errors import ProtocolError
from flash41.model.attention import join
from flash41.model.batch import Selection
from flash41.numerics.scaled import quantize_fp8_32
from flash41.numerics.stored_rows import RowFormat
from helpers.planes import read_index, read_main
from helpers.small_training import small_config
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
        assert torch.equal(read_main(ours, owner, selected), read_main(theirs, owner, selected))
        keys_of = [read_index(view, owner, ours.spans, LENGTH // ratio) for view in (ours, theirs)]
        assert torch.equal(*keys_of)
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
    lists = join(window, selection, view.main_numbers(1, chosen[:, :3]))
    stack, selected = torch.cat((window.rows, view.plane(1))), read_main(view, 1, chosen[:, :3])
    assert torch.equal(lists.counts, window.counts + selection.counts)
    for t, (near, far) in enumerate(zip(window.counts.tolist(), selection.counts.tolist(), strict=True)):
        expected = torch.cat((window.rows[window.index[t, :near]], selected[t, :far]))
        assert torch.equal(stack[lists.index[t, : near + far]], expected)


def test_codes_are_refused_where_values_are_expected() -> None:
    with pytest.raises(ProtocolError, match="rows of a training forward"):
        values(quantize_fp8_32(torch.zeros(1, 32)))


def test_sequences_are_only_scored_together() -> None:
    view = WholeView(SEQUENCES, LENGTH, 4)
    with pytest.raises(ProtocolError, match="all 2"):
        view.index_keys(1, view.spans[:1], 1)
