"""Traces of the model against those of the golden implementation, and the command that compares them."""

import json
from pathlib import Path

import numpy as np
import pytest

from flash41.config.run import Profile
from flash41.engine.load import load_model
from flash41.kernels.select import select_kernels
from flash41.tools.adapters.all import ADAPTERS
from flash41.tools.adapters.record import to_theirs
from flash41.tools.comparison.compare import compare
from flash41.tools.traces import trace
from helpers.command_line import invoke
from helpers.golden_judge import CHECKPOINT, load_case

CASES = ("bos_only", "candidate_drop", "even_26", "long_wrap", "odd_25", "text_prompt", "topk_cross", "window_cross")


def points(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix("trace/"): array for name, array in arrays.items() if name.startswith("trace/")}


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_another_implementation_of_the_model_does_not_diverge(backend: str) -> None:
    profile = Profile.VENDOR
    model = load_model(CHECKPOINT, profile, profile.default_pool, select_kernels(backend), drafts=True)
    for name in CASES:
        case = load_case(name)
        golden = points(dict(case.arrays))
        drafts = any(point.startswith("draft") for point in golden)
        found = compare(golden, points(trace(model, case.ids, draft=drafts)))
        assert found.first is None, (name, found.first)
        assert not found.only_ours, name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    ids = ",".join(map(str, load_case("odd_25").ids))
    for profile in ("vendor", "atom"):
        invoke("trace", CHECKPOINT, "--token-ids", ids, "--profile", profile, "--out", folder / f"{profile}.npz")
    return folder


def test_the_command_finds_nothing_between_a_trace_and_itself(files: Path) -> None:
    found = invoke("compare", files / "vendor.npz", files / "vendor.npz")
    assert found.exit_code == 0, found.output
    assert found.output.startswith("no divergence: ")


def test_the_command_names_the_module_and_the_profile_that_explains_it(files: Path) -> None:
    found = invoke("compare", files / "vendor.npz", files / "atom.npz", "--points")
    assert found.exit_code == 1
    assert found.output.startswith("first divergence: L0.attn.out\n")
    for part in (
        "sparse attention",
        "FP8 index plane",
        "--profile atom",
        "wo_a",
        "L9.ffn.out",
        "docs/math/attention.md",
    ):
        assert part in found.output, part


def test_the_command_prints_json(files: Path) -> None:
    found = invoke("compare", files / "vendor.npz", files / "atom.npz", "--json")
    document = json.loads(found.output)
    assert document["first"]["point"] == "L0.attn.out"
    assert document["first"]["status"] == "diverges"
    assert document["module"]["page"] == "attention.md"
    assert {one["layer"] for one in document["growth"]} == set(range(10))
    assert found.exit_code == 1


@pytest.mark.parametrize("engine", ADAPTERS)
def test_a_file_under_another_engines_names_is_understood(engine: str, files: Path, tmp_path: Path) -> None:
    with np.load(files / "vendor.npz") as stored:
        ours = {name.removeprefix("trace/"): stored[name] for name in stored.files if name.startswith("trace/")}
        np.savez(tmp_path / "theirs.npz", logits=stored["logits"], **to_theirs(ADAPTERS[engine], ours))
    found = invoke("compare", files / "vendor.npz", tmp_path / "theirs.npz", "--json")
    document = json.loads(found.output)
    assert (found.exit_code, document["first"]) == (0, None)
    assert len(document["points"]) > 40


def test_a_file_that_is_no_trace_is_one_clear_error(files: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "b.npz"
    wrong.write_text("nothing")
    found = invoke("compare", files / "vendor.npz", wrong)
    assert "b.npz" in str(found.exception)


def test_prove_shows_that_every_broken_mechanism_is_noticed() -> None:
    found = invoke("prove", CHECKPOINT, "--tokens", "36", "--json")
    proofs = {one["name"]: one for one in json.loads(found.output)["proofs"]}
    assert found.exit_code == 0
    assert proofs.pop("nothing (the model in chunks)")["passed"] is True
    idle = {name for name, one in proofs.items() if one["passed"] is None}
    assert idle == {"rotary table without YaRN"}
    assert all(one["passed"] for name, one in proofs.items() if name not in idle)
    assert len(proofs) > 15


def test_prove_refuses_what_contradicts_itself() -> None:
    assert invoke("prove", CHECKPOINT, "--tokens", "9", "--token-ids", "1,2").exit_code == 2
    assert "tokens" in str(invoke("prove", CHECKPOINT, "--tokens", "1").exception)
