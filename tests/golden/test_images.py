"""Golden cases with pictures: patches and integers equal, rows of the tower, logits, traces."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flash41.config.run import Profile
from flash41.tools.traces import trace
from flash41.tools.tracing import TraceWish, save_trace
from helpers.feeding import Feeder
from helpers.golden_judge import (
    CHECKPOINT,
    CLOSE_MARGIN,
    Array,
    Case,
    distance,
    load_case,
    manifest,
    module_faults,
    relative_rows,
    t1_faults,
    t2_faults,
    trace_faults,
)
from helpers.models import Models
from helpers.picturing import golden_pictures, pictured

CASES = ("image_one", "images_two")
POINTS = {"bf16": np.float32, "float32": np.float32, "int32": np.int32}

Traced = Callable[[str, Profile], dict[str, Array]]


@pytest.fixture(scope="module")
def traced(models: Models) -> Traced:
    """The trace of a case under a profile, computed once."""
    kept: dict[tuple[str, Profile], dict[str, Array]] = {}

    def run(name: str, profile: Profile) -> dict[str, Array]:
        if (name, profile) not in kept:
            case = load_case(name)
            ids = case.arrays["prompt_ids"].tolist()
            kept[name, profile] = trace(models(CHECKPOINT, profile), ids, pictures=golden_pictures(case))
        return kept[name, profile]

    return run


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return load_case(request.param)


@pytest.fixture
def one_order_of_sums(models: Models) -> None:
    """Bits are claimed for the reference backend; another one adds in another order."""
    if models.kernels.name != "reference":
        pytest.skip("another order of additions may fall on the other side of a tie")


def numbers(case: Case) -> range:
    return range(sum(name.endswith("/rgb") for name in case.arrays))


def test_the_cases_are_those_with_pictures() -> None:
    assert tuple(entry["case"] for entry in manifest()["cases"] if "image0/rgb" in entry["arrays"]) == CASES


def test_patches_grids_and_spans_are_equal(case: Case, traced: Traced) -> None:
    got = traced(case.name, Profile.VENDOR)
    for number in numbers(case):
        for name in ("patches", "grid", "start", "types"):
            key = f"image{number}/{name}"
            assert got[key].dtype == POINTS[case.declared[key][0]], key
            assert np.array_equal(got[key], case.arrays[key]), key


def test_ids_are_the_golden_ones(case: Case, traced: Traced) -> None:
    assert len(traced(case.name, Profile.VENDOR)["logits"]) == len(case.ids)
    spans = [(int(case.arrays[f"image{k}/start"][0]), len(case.arrays[f"image{k}/types"])) for k in numbers(case)]
    for start, length in spans:
        assert set(case.ids[start : start + length]) == {511}


def test_fp32_rows_of_the_tower_agree_to_the_last_bits(case: Case, traced: Traced) -> None:
    for number in numbers(case):
        got, expected = (
            traced(case.name, Profile.FP32)[f"image{number}/image.rows"],
            case.arrays[f"fp32/image{number}/rows"],
        )
        assert module_faults(got, expected, exact=True) == []


def test_vendor_rows_of_the_tower_are_within_a_few_ties(case: Case, traced: Traced) -> None:
    for number in numbers(case):
        key = f"image{number}/image.rows"
        # Five modules deep a moved ulp has moved others; on the whole a row stays within two BF16 ulps.
        assert relative_rows(traced(case.name, Profile.VENDOR)[key], case.arrays[key]).max() < 2.0**-6


@pytest.mark.usefixtures("one_order_of_sums")
def test_vendor_rows_of_the_tower_are_equal(case: Case, traced: Traced) -> None:
    # Every store is where the other implementation has it, and no sum of these fell on the other side of a tie.
    for number in numbers(case):
        key = f"image{number}/image.rows"
        assert np.array_equal(traced(case.name, Profile.VENDOR)[key], case.arrays[key])


@pytest.mark.usefixtures("one_order_of_sums")
def test_vendor_points_of_the_tower_are_equal_and_those_of_the_last_picture(case: Case, traced: Traced) -> None:
    names = [name for name in case.arrays if name.startswith("trace/vision.")]
    assert len(names) == 4
    for name in names:
        assert np.array_equal(traced(case.name, Profile.VENDOR)[name], case.arrays[name]), name


def test_fp32_logits_are_far_sharper_than_t1_asks(case: Case, traced: Traced) -> None:
    logits, expected = traced(case.name, Profile.FP32)["logits"], case.arrays["logits_fp32"]
    assert t1_faults(distance(logits, expected)) == []
    assert relative_rows(logits, expected).max() < 2.0**-19


def test_vendor_logits_are_inside_t2(case: Case, traced: Traced) -> None:
    found = distance(traced(case.name, Profile.VENDOR)["logits"], case.arrays["logits"])
    assert case.noise is not None
    assert t2_faults(found, case.noise, len(case.ids)) == [], found


def test_greedy_answers_are_the_golden_ones_where_they_are_not_close(case: Case, models: Models) -> None:
    # Fed with the golden tokens, so that a close step does not end the comparison.
    model = models(CHECKPOINT, Profile.VENDOR)
    prompt = pictured(model, case.arrays["prompt_ids"].tolist(), golden_pictures(case))
    feeder = Feeder(model, 1, len(case.ids) + 6)
    feeder.images[0], feeder.rows = prompt.images, prompt.rows
    logits = feeder.feed({0: prompt.ids})[0][-1]
    behind = []
    for token in case.arrays["greedy"].tolist():
        behind.append(float(logits.max() - logits[token]))
        logits = feeder.feed({0: [token]})[0][-1]
    assert len(behind) == 6
    assert max(behind) < CLOSE_MARGIN
    assert sum(margin == 0 for margin in behind) >= 5


@pytest.mark.usefixtures("one_order_of_sums")
def test_vendor_traces_have_the_golden_integers_and_first_layers(case: Case, traced: Traced) -> None:
    assert trace_faults(traced(case.name, Profile.VENDOR), case) == []


def test_fp32_traces_have_the_golden_integers(case: Case, traced: Traced) -> None:
    got = traced(case.name, Profile.FP32)
    names = [
        name.removeprefix("fp32/")
        for name, (dtype, _) in case.declared.items()
        if name.startswith("fp32/trace/") and dtype == "int32"
    ]
    assert len(names) >= 10 + 4 + 1 + 2
    assert [name for name in names if not np.array_equal(got[name], case.arrays[f"fp32/{name}"])] == []


def test_engram_rows_are_equal_and_gates_are_shut_on_pictures(case: Case, traced: Traced) -> None:
    got = traced(case.name, Profile.VENDOR)
    is_image = np.array(case.ids) == 511
    for layer_id in (1, 4):
        rows, gate = got[f"trace/L{layer_id}.engram.rows"], got[f"trace/L{layer_id}.engram.gate"]
        assert np.array_equal(rows, case.arrays[f"trace/L{layer_id}.engram.rows"])
        assert not gate[is_image].any()
        assert (gate[~is_image] > 0).all()


def test_a_trace_has_exactly_the_points_of_the_fully_traced_case(traced: Traced) -> None:
    got = {name for name in traced("image_one", Profile.VENDOR) if name.startswith("trace/")}
    assert got == {name for name in load_case("image_one").arrays if name.startswith("trace/")}


def test_image_rows_stand_where_embeddings_would(traced: Traced) -> None:
    expected = load_case("image_one").arrays["trace/embed"]
    assert np.array_equal(traced("image_one", Profile.VENDOR)["trace/embed"], expected)


def test_the_command_gives_the_same_from_files(case: Case, traced: Traced, models: Models, tmp_path: Path) -> None:
    paths = []
    for number in numbers(case):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(case.arrays[f"image{number}/rgb"]).save(paths[-1])
    wish = TraceWish(ids=case.arrays["prompt_ids"].tolist(), images=paths, profile="fp32", backend=models.kernels.name)
    save_trace(CHECKPOINT, wish, tmp_path / "out.npz", force=False)
    expected = traced(case.name, Profile.FP32)
    with np.load(tmp_path / "out.npz", allow_pickle=False) as found:
        assert set(found) == set(expected)
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
