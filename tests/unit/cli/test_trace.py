from pathlib import Path

import numpy as np
import pytest

from flash41.cli.main import run
from flash41.config.run import Profile
from flash41.engine.load import load_model
from flash41.errors import ConfigError, Flash41Error, RequestError
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.traces import trace
from helpers.command_line import invoke
from helpers.golden_judge import CHECKPOINT, Array
from helpers.image_files import encoded, pattern

IDS = (0, 5, 300, 7, 5)
TEXT = "0,5,300,7,5"


def saved(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize(
    ("options", "profile", "points"),
    [
        ((), Profile.VENDOR, ("*",)),
        (("--draft",), Profile.VENDOR, ("*",)),
        (("--chunks", "2,1"), Profile.VENDOR, ("*",)),
        (("--points", "L2.*", "--points", "final.norm", "--profile", "fp32"), Profile.FP32, ("L2.*", "final.norm")),
    ],
    ids=["plain", "draft", "chunks", "points"],
)
def test_the_file_holds_logits_and_every_point_asked_for(
    options: tuple[str, ...], profile: Profile, points: tuple[str, ...], tmp_path: Path, tiny_directory: Path
) -> None:
    out = tmp_path / "t.npz"
    command = ("trace", tiny_directory, "--token-ids", TEXT, "--out", out, "--backend", "reference")
    result = invoke(*command, *options)
    assert result.exit_code == 0, result.exception
    model = load_model(tiny_directory, profile, profile.default_pool, ReferenceKernels(), drafts=True)
    expected, found = trace(model, IDS, points=points, draft="--draft" in options), saved(out)
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name
    assert result.output == f"{out}: logits of 5 tokens and {len(expected) - 2} trace points\n"


def test_a_file_like_another_engines_has_its_names(tmp_path: Path, tiny_directory: Path) -> None:
    out = tmp_path / "t.npz"
    command = ("trace", tiny_directory, "--token-ids", TEXT, "--out", out)
    result = invoke(*command, "--like", "transformers", "--points", "L2.attn.in", "--points", "final.norm")
    assert result.exit_code == 0, result.exception
    assert result.output == f"{out}: logits of 5 tokens and 2 trace points\n"
    assert set(saved(out)) == {"logits", "model.layers.2.attn_norm.output", "model.norm.output"}


def test_an_image_takes_the_place_of_its_placeholder(tmp_path: Path) -> None:
    for name, size in (("a.png", (60, 45)), ("b.png", (200, 50))):
        (tmp_path / name).write_bytes(encoded(pattern(*size)))
    images = ("--image", tmp_path / "a.png", "--image", tmp_path / "b.png")
    out = tmp_path / "t.npz"
    ids = ("--token-ids", "0,511,511,7", "--points", "vision.*")
    result = invoke("trace", CHECKPOINT, *ids, *images, "--out", out)
    assert result.exit_code == 0, result.exception
    assert result.output == f"{out}: logits of 26 tokens and 4 trace points\n"
    assert saved(out)["image1/start"].tolist() == [11]


def test_an_image_without_a_placeholder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(pattern(60, 45)))
    result = invoke("trace", CHECKPOINT, "--token-ids", "0", "--image", tmp_path / "a.png", "--out", tmp_path / "t.npz")
    assert isinstance(result.exception, RequestError)
    assert "placeholders of images (id 511): got 0" in str(result.exception)


def test_a_target_is_replaced_only_by_force(tmp_path: Path, tiny_directory: Path) -> None:
    out = tmp_path / "t.npz"
    out.write_text("precious")
    command = ("trace", tiny_directory, "--token-ids", "0", "--points", "embed", "--out", out)
    assert "expected a name that does not exist yet" in str(invoke(*command).exception)
    assert out.read_text() == "precious"
    assert invoke(*command, "--force").exit_code == 0
    assert set(saved(out)) == {"ids", "logits", "trace/embed"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("--token-ids", "0,1024"), RequestError, "token ids: got [1024], expected integers from 0 to 1023"),
        (("--token-ids", "0", "--chunks", "0"), RequestError, "chunks: got [0], expected lengths of at least 1"),
        (("--token-ids", "0", "--like", "x"), RequestError, "engine: got 'x', expected one of vllm, sglang"),
        (("--token-ids", "0", "--profile", "x"), ConfigError, "profile: got 'x', expected one of"),
        (("--token-ids", "0", "--kv-cache-dtype", "fp32"), ConfigError, "kv_cache_dtype: got 'fp32'"),
    ],
    ids=str,
)
def test_what_a_user_can_cause_is_an_error_and_no_file(
    arguments: tuple[str, ...], error: type[Flash41Error], message: str, tmp_path: Path, tiny_directory: Path
) -> None:
    result = invoke("trace", tiny_directory, *arguments, "--out", tmp_path / "t.npz")
    assert type(result.exception) is error
    assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_such_an_error_is_one_line_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", str(tmp_path), "--token-ids", "0", "--out", str(tmp_path / "t.npy")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: output file: got '{tmp_path}/t.npy', expected a name that ends in .npz\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "t.npz"), "Missing option '--token-ids'"),
        (("--token-ids", "0"), "Missing option '--out'"),
        (("--token-ids", "a", "--out", "t.npz"), "got 'a', expected integers separated by commas"),
        (("--token-ids", "0", "--chunks", "1.5", "--out", "t.npz"), "got '1.5', expected integers"),
        (("--token-ids", "", "--out", "t.npz"), "got '', expected at least one integer"),
    ],
    ids=str,
)
def test_wrong_usage_ends_with_status_2(arguments: tuple[str, ...], message: str, tiny_directory: Path) -> None:
    result = invoke("trace", tiny_directory, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
