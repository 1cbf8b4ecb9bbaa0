"""Two trace files laid beside each other, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from flash41.errors import RequestError
from flash41.tools.comparison.files import align, num_tokens, read_ids, read_trace

ROWS = np.arange(12.0, dtype=np.float32).reshape(4, 3) + 1


def test_points_are_read_by_their_names_and_logits_too(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **{"trace/embed": ROWS, "logits": ROWS, "image0/grid": np.arange(3)})
    assert set(read_trace(path)) == {"embed", "logits"}


def test_only_the_wanted_points_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **{"trace/embed": ROWS, "trace/final.norm": ROWS, "logits": ROWS})
    assert set(read_trace(path, lambda point: point == "embed")) == {"embed", "logits"}


def test_ids_are_read_where_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **{"trace/embed": ROWS, "ids": np.arange(4)})
    found = read_ids(path)
    assert found is not None
    assert found.tolist() == [0, 1, 2, 3]
    assert "ids" not in read_trace(path)
    np.savez(path, **{"trace/embed": ROWS})
    assert read_ids(path) is None


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00", b"text"])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"a\.npz"):
        read_trace(path)


def test_a_missing_file_and_arrays_of_no_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="a file that exists"):
        read_trace(tmp_path / "none.npz")
    path = tmp_path / "a.npz"
    np.savez(path, other=ROWS)
    with pytest.raises(RequestError, match="other"):
        read_trace(path)
    np.savez(path, **{"trace/embed": np.array(["x"])})
    with pytest.raises(RequestError, match="embed"):
        read_trace(path)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **{"trace/embed": np.array([{}], dtype=object)})
    with pytest.raises(RequestError, match=r"a\.npz"):
        read_trace(path)


def test_what_only_one_has_is_listed() -> None:
    found = align({"embed": ROWS, "L0.attn.in": ROWS}, {"embed": ROWS, "L0.attn.out": ROWS, "mine": ROWS})
    assert list(found.pairs) == ["embed"]
    assert (found.only_ours, found.only_theirs) == (("L0.attn.in",), ("L0.attn.out", "mine"))


def test_traces_of_different_prompts_are_refused() -> None:
    with pytest.raises(RequestError, match="tokens of the traces"):
        align({"embed": ROWS}, {"embed": ROWS[:3]})
    with pytest.raises(RequestError, match="rows of embed that differ: got 4"):
        align({"embed": ROWS}, {"embed": -ROWS})
    with pytest.raises(RequestError, match="points of the second trace"):
        align({"embed": ROWS}, {"other": ROWS})


def test_flattened_heads_are_read_as_heads() -> None:
    heads = np.arange(24.0).reshape(4, 2, 3)
    pair = align({"embed": ROWS, "L0.attn.q": heads}, {"embed": ROWS, "L0.attn.q": heads.reshape(4, 6)}).pairs[
        "L0.attn.q"
    ]
    assert np.array_equal(pair.theirs, heads)
    assert pair.note == "shape (4, 6) read as (4, 2, 3)"


def test_shapes_that_do_not_fit_are_told() -> None:
    found = align({"embed": ROWS, "L0.attn.q": ROWS}, {"embed": ROWS, "L0.attn.q": ROWS[:, :2]})
    assert found.misfits == {"L0.attn.q": "shapes (4, 3) and (4, 2)"}


def test_a_point_of_the_last_rows_only_is_laid_at_the_end() -> None:
    pair = align({"embed": ROWS, "L9.attn.in": ROWS}, {"embed": ROWS, "L9.attn.in": ROWS[2:]}).pairs["L9.attn.in"]
    assert pair.skipped_rows == 2
    assert np.array_equal(pair.ours, pair.theirs)


def test_selections_of_other_widths_are_padded_with_nothing() -> None:
    found = align(
        {"embed": ROWS, "L0.index.selected": np.zeros((4, 3), int), "L0.index.scores": ROWS},
        {"embed": ROWS, "L0.index.selected": np.zeros((4, 1), int), "L0.index.scores": ROWS[:, :2]},
    ).pairs
    assert found["L0.index.selected"].theirs.tolist() == [[0, -1, -1]] * 4
    assert found["L0.index.scores"].theirs[:, 2].tolist() == [-np.inf] * 4


def test_a_prompt_is_as_long_as_its_longest_point() -> None:
    assert num_tokens({"L0.attn.latent": ROWS[:2], "embed": ROWS, "draft.ids": np.zeros(9)}) == 4
    with pytest.raises(RequestError, match="points of a trace"):
        num_tokens({"draft.ids": np.zeros(9)})
