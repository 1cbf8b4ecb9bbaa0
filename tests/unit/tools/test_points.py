import pytest

from flash41.config.run import Profile
from flash41.errors import RequestError
from flash41.tools.points import check_points, draft_point_names, point_names
from flash41.tools.traces import trace
from helpers.config_documents import release_config, tiny_config
from helpers.golden_judge import CHECKPOINT
from helpers.models import Models, second_config
from helpers.picturing import drawn


def test_they_are_the_points_of_a_trace_of_every_mode(models: Models) -> None:
    model = models(CHECKPOINT, Profile.FP32)
    found = {name.removeprefix("trace/") for name in trace(model, [0, 5, 6, 7])} - {"logits", "ids"}
    assert found == point_names(tiny_config())


def test_a_model_without_a_mechanism_has_no_point_of_it() -> None:
    names = point_names(second_config())
    assert "L2.engram.rows" in names
    assert not any(name.startswith("L0.engram") for name in names)
    assert {name for name in names if name.endswith("index.key")} == {"L0.index.key", "L3.index.key"}
    assert {name for name in names if name.endswith("index.candidates")} == {"L3.index.candidates"}


def test_patterns_that_match_nothing_are_listed() -> None:
    check_points(("*", "L39.*", "L20.index.candidates", "final.n?rm"), release_config())
    with pytest.raises(RequestError) as caught:
        check_points(("embed", "L40.*", "", "logits"), release_config())
    assert str(caught.value) == (
        "points that match nothing: got ['L40.*', '', 'logits'], "
        "expected patterns of points from embed over L0.* to L39.* and final.*"
    )


def test_a_draft_adds_the_points_of_its_block(models: Models) -> None:
    model = models(CHECKPOINT, Profile.FP32)
    found = {name.removeprefix("trace/") for name in trace(model, [0, 5, 6, 7], draft=True)} - {"logits", "ids"}
    assert (
        found == point_names(tiny_config(), draft=True) == point_names(tiny_config()) | draft_point_names(tiny_config())
    )
    assert {name.split(".")[0] for name in draft_point_names(tiny_config())} == {"mtp0", "mtp1", "mtp2", "draft"}


def test_every_stage_has_points_and_no_other() -> None:
    stages = {name.split(".")[0] for name in draft_point_names(second_config())}
    assert stages == {"mtp0", "draft"}


def test_points_of_a_draft_need_a_draft() -> None:
    check_points(("mtp2.router.ids", "draft.*", "dspark.*"), release_config(), draft=True)
    with pytest.raises(RequestError) as caught:
        check_points(("embed", "mtp2.*", "x"), release_config())
    assert str(caught.value).endswith(
        "L39.* and final.* (['mtp2.*'] match points of a draft block, which was not asked for)"
    )
    with pytest.raises(
        RequestError, match=r"got \['mtp3\.\*'\], expected .* to L39\.\* final\.\*, mtp<s>\.\* and draft\.\*$"
    ):
        check_points(("mtp3.*",), release_config(), draft=True)


def test_pictures_add_the_points_of_the_tower(models: Models) -> None:
    model = models(CHECKPOINT, Profile.FP32)
    found = trace(model, [0, 511, 6, 7], pictures=[drawn(60, 45)])
    names = {name.removeprefix("trace/") for name in found if name.startswith("trace/")}
    assert names == point_names(tiny_config(), images=True)
    assert names - point_names(tiny_config()) == {"vision.block0", "vision.block1", "vision.norm", "vision.aligner"}


def test_points_of_the_tower_match_only_with_pictures() -> None:
    check_points(("vision.*",), tiny_config(), images=True)
    with pytest.raises(RequestError, match=r"points that match nothing: got \['vision.\*'\]"):
        check_points(("vision.*",), tiny_config())
