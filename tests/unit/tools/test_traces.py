from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flash41.config.run import Profile
from flash41.engine.load import LoadedModel, load_model
from flash41.errors import RequestError
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.traces import Only, Recorder, check_ids, split, trace
from helpers.golden_judge import CHECKPOINT, Array
from helpers.models import Models
from helpers.picturing import drawn

IDS = tuple(np.random.default_rng(5).integers(3, 1000, 23).tolist())
LARGE = 2**31


def recorded(*pieces: Tensor, point: str = "L0.attn.out") -> Array:
    recorder = Recorder()
    for piece in pieces:
        recorder(point, piece)
    return recorder.joined()[point]


# Recording and joining.


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float32, np.float32),
        (torch.bfloat16, np.float32),
        (torch.float64, np.float32),
        (torch.int64, np.int32),
        (torch.int32, np.int32),
        (torch.bool, np.int32),
    ],
)
def test_values_are_kept_as_float32_and_integers_as_int32(dtype: torch.dtype, expected: type) -> None:
    found = recorded(torch.tensor([[0, 1], [1, 0]], dtype=dtype))
    assert found.dtype == expected
    assert found.tolist() == [[0, 1], [1, 0]]


def test_integers_beyond_32_bits_keep_64_whichever_chunk_has_them() -> None:
    small, large = torch.tensor([[-1, 5]]), torch.tensor([[0, LARGE]])
    for pieces in ((small, large), (large, small)):
        found = recorded(*pieces)
        assert found.dtype == np.int64
        assert sorted(found.flatten().tolist()) == [-1, 0, 5, LARGE]
    assert recorded(torch.tensor([[LARGE - 1]])).dtype == np.int32


def test_what_is_recorded_does_not_change_with_the_tensor_it_came_from() -> None:
    for value in (torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.int32), torch.tensor([[0, 0]])):
        recorder = Recorder()
        recorder("x", value)
        value += 1
        assert recorder.joined()["x"].tolist() == [[0, 0]], value.dtype


def test_a_chunk_without_rows_leaves_nothing() -> None:
    recorder = Recorder()
    recorder("L2.compress.latent", torch.zeros(0, 4))
    assert recorder.joined() == {}


def test_what_grows_with_the_context_is_padded_with_not_visible() -> None:
    scores = recorded(torch.tensor([[1.0]]), torch.tensor([[2.0, 3.0]]), point="L6.index.scores")
    assert scores.tolist() == [[1.0, -np.inf], [2.0, 3.0]]
    blocks = recorded(torch.tensor([[0]]), torch.tensor([[0, 1]]), point="L6.index.candidates")
    assert blocks.tolist() == [[0, -1], [0, 1]]
    assert (scores.dtype, blocks.dtype) == (np.float32, np.int32)


def test_points_are_kept_by_patterns() -> None:
    recorder = Recorder(("L2.*", "embed"))
    for point in ("embed", "L2.attn.out", "L2.index.selected", "L12.attn.out", "L20.attn.out", "final.norm"):
        recorder(point, torch.zeros(1, 1))
    assert set(recorder.joined()) == {"embed", "L2.attn.out", "L2.index.selected"}


# Chunks.


@pytest.mark.parametrize(
    ("length", "chunks", "expected"),
    [
        (5, None, [5]),
        (5, [], [5]),
        (5, [5], [5]),
        (5, [9], [5]),
        (13, [5, 1, 7], [5, 1, 7]),
        (20, [5, 1, 7], [5, 1, 7, 7]),
        (14, [5, 1, 3], [5, 1, 3, 3, 2]),
        (3, [1], [1, 1, 1]),
    ],
)
def test_chunks_are_the_given_lengths_the_last_one_repeated(
    length: int, chunks: list[int] | None, expected: list[int]
) -> None:
    assert split(length, chunks) == expected


@given(length=st.integers(1, 60), chunks=st.lists(st.integers(1, 20), max_size=5))
def test_chunks_cover_the_ids(length: int, chunks: list[int]) -> None:
    lengths = split(length, chunks)
    assert sum(lengths) == length
    assert all(size > 0 for size in lengths)


@pytest.mark.parametrize("chunks", [[0], [3, -1]])
def test_empty_chunks_are_refused(chunks: list[int]) -> None:
    with pytest.raises(RequestError, match=r"chunks: got \[.*\], expected lengths of at least 1"):
        split(5, chunks)


def test_ids_are_checked_against_the_vocabulary() -> None:
    check_ids([0, 9], 10)
    with pytest.raises(RequestError, match=r"token ids: got \[\], expected at least one"):
        check_ids([], 10)
    with pytest.raises(RequestError, match=r"token ids: got \[10, -1\], expected integers from 0 to 9"):
        check_ids([3, 10, -1], 10)


# Whole traces.


@pytest.fixture(scope="module")
def model(models: Models, tiny_directory: Path) -> LoadedModel:
    return models(tiny_directory, Profile.VENDOR)


@pytest.fixture(scope="module")
def whole(model: LoadedModel) -> dict[str, Array]:
    return trace(model, IDS)


@pytest.mark.parametrize("chunks", [(1,), (5, 1, 7), (22, 1)], ids=str)
def test_chunks_join_to_the_trace_of_one_forward(
    chunks: tuple[int, ...], model: LoadedModel, whole: dict[str, Array]
) -> None:
    found = trace(model, IDS, chunks)
    assert set(found) == set(whole)
    for name, expected in whole.items():
        assert found[name].dtype == expected.dtype, name
        assert np.array_equal(found[name], expected), name


def test_a_trace_has_logits_of_every_token_and_the_points_of_every_layer(
    model: LoadedModel, whole: dict[str, Array]
) -> None:
    assert whole["logits"].shape == (len(IDS), model.config.vocab_size)
    assert whole["ids"].tolist() == list(IDS)
    assert all(name in ("ids", "logits") or name.startswith("trace/") for name in whole)
    layers = {name.split("/")[1].split(".")[0] for name in whole if name.startswith("trace/L")}
    assert layers == {f"L{layer_id}" for layer_id in range(model.config.num_layers)}
    for point in ("embed", "dspark.taps", "dspark.main_x", "final.resid", "final.norm", "L0.engram.rows"):
        assert len(whole[f"trace/{point}"]) == len(IDS), point


def test_integer_points_are_int32_and_all_others_float32(whole: dict[str, Array]) -> None:
    integers = {name for name, values in whole.items() if values.dtype == np.int32 and name != "ids"}
    assert whole["ids"].dtype == np.int32
    assert {values.dtype for values in whole.values()} == {np.dtype(np.int32), np.dtype(np.float32)}
    suffixes = {".".join(name.split(".")[1:]) for name in integers}
    assert suffixes == {"engram.rows", "index.selected", "index.candidates", "router.ids"}


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (("L2.index.*", "embed"), {"embed", "L2.index.q", "L2.index.selected"}),
        (("dspark.main_x",), {"dspark.main_x"}),
        (("nothing",), set()),
    ],
)
def test_only_matching_points_are_kept_and_they_are_the_same(
    points: tuple[str, ...], expected: set[str], model: LoadedModel, whole: dict[str, Array]
) -> None:
    found = trace(model, IDS, points=points)
    assert {f"trace/{point}" for point in expected} <= set(found)
    kept = {name for name in found if name not in ("ids", "logits")}
    assert {name.split("/")[1].split(".")[0] for name in kept} == {point.split(".")[0] for point in expected}
    for name, values in found.items():
        assert np.array_equal(values, whole[name]), name


def test_the_draft_input_is_the_projection_of_the_taps(model: LoadedModel, whole: dict[str, Array]) -> None:
    assert model.drafter is not None
    taps = torch.from_numpy(whole["trace/dspark.taps"]).to(model.dtype)
    assert np.array_equal(model.drafter.entrance(taps).float().numpy(), whole["trace/dspark.main_x"])


def test_progress_counts_tokens(model: LoadedModel) -> None:
    seen: list[tuple[int, int]] = []
    trace(model, IDS[:6], (4, 1), ("embed",), lambda done, total: seen.append((done, total)))
    assert seen == [(4, 6), (5, 6), (6, 6)]


def test_ids_outside_the_vocabulary_are_refused(model: LoadedModel) -> None:
    with pytest.raises(RequestError, match=r"token ids: got \[1024\]"):
        trace(model, [0, 1024])


def test_a_model_without_its_draft_tensors_traces_all_but_the_draft_input(tiny_directory: Path) -> None:
    profile = Profile.VENDOR
    loaded = load_model(tiny_directory, profile, profile.default_pool, ReferenceKernels())
    assert set(trace(loaded, IDS[:2], points=("embed",))) == {"ids", "logits", "trace/embed"}
    for wish in ({}, {"points": ("dspark.main_x",)}, {"points": ("embed",), "draft": True}):
        with pytest.raises(RequestError, match=r"draft stages: got 'not loaded', expected a model loaded with its"):
            trace(loaded, IDS[:2], **wish)  # type: ignore[arg-type]


# Drafts.


def test_a_probe_may_pass_on_the_points_of_a_list_only() -> None:
    recorder = Recorder(("mtp0.*",))
    only = Only(recorder, {"mtp0.attn.in", "draft.ids"})
    assert only.active
    for point in ("mtp0.attn.in", "mtp0.attn.q", "draft.ids"):
        only(point, torch.zeros(1, 1))
    assert set(recorder.joined()) == {"mtp0.attn.in"}


@pytest.mark.parametrize("chunks", [(1,), (5, 1, 7)], ids=str)
def test_a_draft_is_the_same_behind_any_chunks_and_changes_nothing_before_it(
    chunks: tuple[int, ...], model: LoadedModel, whole: dict[str, Array]
) -> None:
    drafted = trace(model, IDS, draft=True)
    for name, expected in whole.items():
        assert np.array_equal(drafted[name], expected), name
    found = trace(model, IDS, chunks, ("draft.*", "mtp*"), draft=True)
    assert set(found) == {
        name for name in drafted if name in ("ids", "logits") or name.startswith(("trace/draft", "trace/mtp"))
    }
    for name, values in found.items():
        assert np.array_equal(values, drafted[name]), name


def test_a_traced_block_has_a_row_for_each_of_its_tokens_and_the_context_of_the_window(model: LoadedModel) -> None:
    config = model.config
    for length in (1, 3, len(IDS)):
        found = trace(model, IDS[:length], points=("draft.*", "mtp*"), draft=True)
        for name, values in found.items():
            rows = min(length, config.attention.window) if name.endswith("context_row") else config.dspark.block_size
            assert name in ("ids", "logits") or len(values) == rows, name
        assert found["trace/draft.ids"].shape == found["trace/draft.confidence"].shape == (config.dspark.block_size,)
        assert np.array_equal(found["trace/draft.logits"].argmax(1), found["trace/draft.ids"])


# Pictures.


@pytest.fixture(scope="module")
def golden_model(models: Models) -> LoadedModel:
    return models(CHECKPOINT, Profile.FP32)


def test_a_picture_is_described_beside_the_trace(golden_model: LoadedModel) -> None:
    first, second = drawn(60, 45), drawn(200, 50)
    found = trace(golden_model, [0, 511, 9, 511], points=("embed",), pictures=[first, second])
    assert set(found) == {"ids", "logits", "trace/embed"} | {
        f"image{number}/{name}" for number in (0, 1) for name in ("grid", "start", "types", "patches", "image.rows")
    }
    assert found["image0/grid"].tolist() == [98, 84, 6, 7, 2, 3, 10]
    assert found["image1/grid"].tolist() == [210, 56, 4, 15, 2, 5, 14]
    assert [found[f"image{number}/start"].tolist() for number in (0, 1)] == [[1], [12]]
    assert found["image1/types"].tolist() == [0, *[1, 1, 1, 1, 1, 2] * 2, 3]
    assert found["image1/patches"].shape == (60, 588)
    for number, start, length in ((0, 1, 10), (1, 12, 14)):
        assert np.array_equal(found["trace/embed"][start : start + length], found[f"image{number}/image.rows"])


def test_points_of_the_tower_are_those_of_the_last_picture(golden_model: LoadedModel) -> None:
    first, second = drawn(60, 45), drawn(200, 50)
    both = trace(golden_model, [511, 511], points=("vision.*",), pictures=[first, second])
    alone = trace(golden_model, [511], points=("vision.*",), pictures=[second])
    assert both["trace/vision.norm"].shape == (60, 64)
    for name in ("block0", "block1", "norm", "aligner"):
        assert np.array_equal(both[f"trace/vision.{name}"], alone[f"trace/vision.{name}"])


def test_progress_counts_the_positions_of_pictures(golden_model: LoadedModel) -> None:
    seen: list[tuple[int, int]] = []
    trace(
        golden_model,
        [0, 511],
        [6],
        points=(),
        progress=lambda *done: seen.append(done),
        pictures=[drawn(60, 45)],
    )
    assert seen == [(6, 11), (11, 11)]


def test_placeholders_without_their_pictures_are_refused(golden_model: LoadedModel) -> None:
    with pytest.raises(
        RequestError, match=r"placeholders of images \(id 511\): got 0, expected one for each of 1 images"
    ):
        trace(golden_model, [0, 5], pictures=[drawn(60, 45)])
