from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flash41.checkpoint.reader import MappedShards
from flash41.config.run import PoolDtype, PoolFormat, Profile
from flash41.errors import CapacityError, ConfigError, Flash41Error, KernelError, RequestError
from flash41.tools.adapters.all import ADAPTERS
from flash41.tools.adapters.record import to_ours
from flash41.tools.traces import trace
from flash41.tools.tracing import TraceWish, save_trace
from helpers.golden_judge import CHECKPOINT, Array
from helpers.image_files import encoded, pattern
from helpers.models import Models

IDS = (0, 5, 300, 7, 5, 300, 7, 42)
WISH = TraceWish(ids=IDS, points=("L0.*",))


def saved(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize(
    ("values", "profile", "pool"),
    [
        ({}, Profile.VENDOR, None),
        ({"chunks": (3, 1)}, Profile.VENDOR, None),
        ({"profile": "fp32", "points": ("L2.*", "final.*")}, Profile.FP32, None),
        ({"draft": True, "points": ("draft.*", "mtp0.*")}, Profile.VENDOR, None),
        (
            {"profile": "atom", "kv_cache_dtype": "fp4", "index_cache_dtype": "fp4"},
            Profile.ATOM,
            PoolFormat(main=PoolDtype.FP4, index=PoolDtype.FP4),
        ),
    ],
    ids=["plain", "chunks", "fp32", "draft", "pools"],
)
def test_the_file_holds_what_the_trace_gives(
    values: dict[str, Any],
    profile: Profile,
    pool: PoolFormat | None,
    tmp_path: Path,
    models: Models,
    tiny_directory: Path,
) -> None:
    wish = TraceWish(ids=IDS, backend="reference", **values)
    count = save_trace(tiny_directory, wish, tmp_path / "out.npz", force=False)
    expected = trace(models(tiny_directory, profile, pool), IDS, points=wish.points, draft=wish.draft)
    found = saved(tmp_path / "out.npz")
    assert set(found) == set(expected)
    assert count == len(expected) - 2 > 3
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert np.array_equal(found[name], array), name
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def test_a_file_like_another_engines_holds_what_that_engine_shows(tmp_path: Path, tiny_directory: Path) -> None:
    wish = TraceWish(ids=IDS, draft=True)
    save_trace(tiny_directory, wish, tmp_path / "ours.npz", force=False)
    count = save_trace(tiny_directory, replace(wish, like="transformers"), tmp_path / "theirs.npz", force=False)
    ours, theirs = saved(tmp_path / "ours.npz"), saved(tmp_path / "theirs.npz")
    back, unknown = to_ours(ADAPTERS["transformers"], theirs)
    assert unknown == ()
    assert count == len(theirs) - 1 == len(back) - 1 > 100
    assert np.array_equal(theirs["logits"], ours["logits"])
    for point, array in back.items():
        assert np.array_equal(array, ours["logits" if point == "logits" else f"trace/{point}"]), point


def test_what_a_picture_became_keeps_its_name(tmp_path: Path) -> None:
    Image.fromarray(pattern(60, 45)).save(tmp_path / "a.png")
    wish = TraceWish(ids=(0, 511), points=("vision.*",), images=(tmp_path / "a.png",), like="sglang")
    count = save_trace(CHECKPOINT, wish, tmp_path / "out.npz", force=False)
    names = {name for name in saved(tmp_path / "out.npz") if not name.startswith("image0/")}
    assert names >= {"logits", "vision.blocks.0.output", "vision.norm.output", "aligner.output"}
    assert count == len(names) - 1


def test_progress_is_passed_on(tmp_path: Path, tiny_directory: Path) -> None:
    seen: list[tuple[int, int]] = []
    wish = TraceWish(ids=IDS, chunks=(5, 2), points=())
    assert save_trace(tiny_directory, wish, tmp_path / "out.npz", False, lambda *done: seen.append(done)) == 0
    assert seen == [(5, 8), (7, 8), (8, 8)]


def test_an_existing_file_is_replaced_only_by_force(tmp_path: Path, tiny_directory: Path) -> None:
    out = tmp_path / "out.npz"
    out.write_text("precious")
    with pytest.raises(RequestError, match=r"output file: got '.*out.npz', expected a name that does not exist yet"):
        save_trace(tiny_directory, WISH, out, force=False)
    assert out.read_text() == "precious"
    save_trace(tiny_directory, WISH, out, force=True)
    assert "logits" in saved(out)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: MappedShards, name: str) -> None:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(MappedShards, "tensor", refuse)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"ids": ()}, RequestError, r"token ids: got \[\], expected at least one"),
        ({"ids": (0, 1024)}, RequestError, r"token ids: got \[1024\], expected integers from 0 to 1023"),
        ({"ids": (3,) * (2**20 + 1)}, RequestError, r"number of token ids: got 1048577, expected at most .* 1048576"),
        ({"chunks": (2, 0)}, RequestError, r"chunks: got \[2, 0\], expected lengths of at least 1"),
        ({"profile": "exact"}, ConfigError, r"profile: got 'exact', expected one of vendor, atom, fp32, demo"),
        ({"kv_cache_dtype": "fp8"}, ConfigError, r"kv_cache_dtype: got 'fp8', expected 'bf16' or 'fp4'"),
        ({"threads": 0}, ConfigError, r"threads: got 0, expected > 0"),
        (
            {"points": ("draft.ids",)},
            RequestError,
            r"\['draft.ids'\] match points of a draft block, which was not asked",
        ),
        (
            {"draft": True, "profile": "atom", "kv_cache_dtype": "fp4"},
            ConfigError,
            r"'fp4', expected 'bf16' with DSpark",
        ),
        ({"backend": "cuda"}, KernelError, r"backend: got 'cuda'"),
        ({"like": "vlm"}, RequestError, r"engine: got 'vlm', expected one of vllm, sglang, transformers, llama.cpp"),
        (
            {"like": "vllm", "points": ("embed", "L*.index.scores")},
            RequestError,
            r"points that match nothing: got \['L\*.index.scores'\], expected points that vllm shows",
        ),
    ],
)
def test_a_wish_is_refused_before_a_weight_is_read(
    values: dict[str, Any], error: type[Flash41Error], message: str, tmp_path: Path, tiny_directory: Path
) -> None:
    wish = TraceWish(**{"ids": IDS, **values})
    with pytest.raises(error, match=message):
        save_trace(tiny_directory, wish, tmp_path / "out.npz", force=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.npy", r"output file: got '.*out.npy', expected a name that ends in .npz"),
        ("out", r"expected a name that ends in .npz"),
        ("nowhere/out.npz", r"output folder: got '.*nowhere', expected an existing folder"),
        ("folder.npz", r"output file: got '.*folder.npz', expected a file \(a folder is never replaced\)"),
    ],
)
def test_a_target_that_cannot_be_made_is_refused_before_a_weight_is_read(
    name: str, message: str, tmp_path: Path, tiny_directory: Path
) -> None:
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(RequestError, match=message):
        save_trace(tiny_directory, WISH, tmp_path / name, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npz"]


@pytest.mark.usefixtures("no_weights")
@pytest.mark.usefixtures("no_weights")
def test_a_folder_that_refuses_files_is_named_before_a_weight_is_read(
    tmp_path: Path, tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != tmp_path)
    with pytest.raises(RequestError, match=r"output folder: got '.*', expected an existing folder that can be written"):
        save_trace(tiny_directory, WISH, tmp_path / "out.npz", force=False)


def test_images_are_read_from_files_and_kept_in_order(tmp_path: Path) -> None:
    for name, size in (("a.png", (60, 45)), ("b.jpg", (200, 50))):
        Image.fromarray(pattern(*size)).save(tmp_path / name)
    wish = TraceWish(ids=(0, 511, 5, 511), points=("embed",), images=(tmp_path / "a.png", tmp_path / "b.jpg"))
    assert save_trace(CHECKPOINT, wish, tmp_path / "out.npz", force=False) == 1
    found = saved(tmp_path / "out.npz")
    assert found["logits"].shape == (1 + 10 + 1 + 14, 512)
    assert [found[f"image{number}/start"].tolist() for number in (0, 1)] == [[1], [12]]


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("content", "ids", "error", "message"),
    [
        (None, (511,), RequestError, r"image .*picture: got .*No such file.*, expected a file that can be read"),
        (b"<svg/>", (511,), RequestError, r"picture: image: got .*, expected one of png, jpeg, webp and gif"),
        (b"", (511,), RequestError, r"picture: image: got 'no bytes'"),
        (encoded(pattern(60, 45)), (0,), RequestError, r"placeholders of images \(id 511\): got 0, expected one"),
        (encoded(pattern(60, 45)), (511, 511), RequestError, r"placeholders of images \(id 511\): got 2"),
        (encoded(pattern(60, 45)), (*[3] * (2**20 - 9), 511), RequestError, r"number of token ids: got 1048577"),
    ],
    ids=["missing", "svg", "empty", "no placeholder", "two placeholders", "too long"],
)
def test_an_image_is_refused_before_a_weight_is_read(
    content: bytes | None, ids: tuple[int, ...], error: type[Flash41Error], message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "picture").write_bytes(content)
    wish = TraceWish(ids=ids, images=(tmp_path / "picture",))
    with pytest.raises(error, match=message):
        save_trace(CHECKPOINT, wish, tmp_path / "out.npz", force=False)
    assert not (tmp_path / "out.npz").exists()


def test_the_tower_is_opened_only_for_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    tensor = MappedShards.tensor

    def noted(shards: MappedShards, name: str) -> torch.Tensor:
        read.append(name)
        return tensor(shards, name)

    monkeypatch.setattr(MappedShards, "tensor", noted)
    save_trace(CHECKPOINT, TraceWish(ids=(0, 511), points=()), tmp_path / "out.npz", force=False)
    assert not any(name.startswith(("vision.", "aligner.", "image_")) for name in read)


def test_a_directory_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: expected a file"):
        save_trace(tmp_path / "nowhere", WISH, tmp_path / "out.npz", force=False)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npz"
    out.write_text("precious")

    def fail(file: Any, **_: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(CapacityError, match=r"writing .*out.npz: got .*No space left on device"):
        save_trace(tiny_directory, WISH, out, force=True)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_threads_are_set_when_asked_for(tmp_path: Path, tiny_directory: Path) -> None:
    before = torch.get_num_threads()
    try:
        save_trace(tiny_directory, TraceWish(ids=(0,), points=(), threads=2), tmp_path / "out.npz", force=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
