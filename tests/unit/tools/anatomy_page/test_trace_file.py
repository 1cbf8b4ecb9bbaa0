"""A trace as the page needs it, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flash41.errors import RequestError
from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.trace_file import MOST_FAULTS, TraceFile, is_drawn, read_trace_file
from helpers.golden_judge import CHECKPOINT
from helpers.traced_files import Arrays, save, scripted_trace

GOLDEN = CHECKPOINT.parents[1] / "tiny-a" / "text_prompt.npz"


def read(path: Path, anatomy: Anatomy) -> TraceFile:
    return read_trace_file(path, anatomy.config, anatomy.topology)


def test_everything_that_is_drawn_is_read_and_nothing_else(tmp_path: Path, tiny: Anatomy) -> None:
    arrays = scripted_trace(tiny.config, 12)
    path = save(tmp_path / "t.npz", arrays | {"trace/L0.attn.q": np.zeros((12, 4, 64)), "image0/grid": np.arange(3)})
    found = read(path, tiny)
    assert found.num_tokens == 12
    assert {f"trace/{point}" for point in found.points} - {"trace/logits"} == set(arrays) - {"ids", "logits"}
    assert found.ids is not None
    assert found.ids.tolist() == arrays["ids"].tolist()
    assert found.missing == ()


def test_what_a_partial_trace_lacks_is_named(tiny: Anatomy) -> None:
    found = read(GOLDEN, tiny)
    assert found.num_tokens == 44
    assert "attn.comb of 10 of 10 layers" in found.missing
    assert not any(missing.startswith("index.selected") for missing in found.missing)


@pytest.mark.parametrize("point", ["L2.index.scores", "L10.router.ids", "draft.ids"])
def test_drawn_points_are_known_by_name(point: str) -> None:
    assert is_drawn(point)


@pytest.mark.parametrize(
    "point", ["L2.attn.q", "embed", "Lx.router.ids", "mtp0.router.ids", "router.ids", "L.router.ids"]
)
def test_other_points_stay_on_disk(point: str) -> None:
    assert not is_drawn(point)


def widen(arrays: Arrays) -> None:
    arrays["trace/L3.attn.comb"] = np.zeros((12, 3, 3), np.float32)


def shorten(arrays: Arrays) -> None:
    arrays["trace/L3.router.weights"] = arrays["trace/L3.router.weights"][:5]


def exceed(arrays: Arrays) -> None:
    arrays["trace/L3.router.ids"] = np.full((12, 3), 16, np.int32)


def invent(arrays: Arrays) -> None:
    arrays["trace/L3.index.scores"] = np.zeros((12, 4), np.float32)


def fraction(arrays: Arrays) -> None:
    arrays["trace/L2.index.selected"] = np.zeros((12, 8), np.float32)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (widen, r"shape of L3\.attn\.comb: got \(12, 3, 3\), expected \[12, 4, 4\]"),
        (shorten, r"shape of L3\.router\.weights: got \(5, 3\), expected \[12, 3\]"),
        (exceed, r"values of L3\.router\.ids: .*integers below 16"),
        (invent, r"point L3\.index\.scores"),
        (fraction, r"values of L2\.index\.selected"),
    ],
)
def test_a_trace_of_another_model_is_refused(
    damage: Callable[[Arrays], None], words: str, tmp_path: Path, tiny: Anatomy
) -> None:
    arrays = scripted_trace(tiny.config, 12)
    damage(arrays)
    with pytest.raises(RequestError, match=words):
        read(save(tmp_path / "t.npz", arrays), tiny)


def test_misfits_are_named_together_and_counted(tmp_path: Path, tiny: Anatomy, release: Anatomy) -> None:
    path = save(tmp_path / "t.npz", scripted_trace(tiny.config, 4))
    with pytest.raises(RequestError) as refused:
        read(path, release)
    assert str(refused.value).count("expected") >= MOST_FAULTS
    assert str(refused.value).endswith("more are not listed")


def test_a_file_with_nothing_to_draw_is_refused(tmp_path: Path, tiny: Anatomy) -> None:
    with pytest.raises(RequestError):
        read(save(tmp_path / "t.npz", {"trace/embed": np.zeros((4, 128), np.float32)}), tiny)


def test_ids_of_another_length_are_left_out(tmp_path: Path, tiny: Anatomy) -> None:
    arrays = scripted_trace(tiny.config, 6)
    arrays["ids"] = np.arange(9)
    assert read(save(tmp_path / "t.npz", arrays), tiny).ids is None
