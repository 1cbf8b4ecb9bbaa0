import json
from pathlib import Path
from typing import Any

import pytest

from flash41.errors import CapacityError, RequestError
from flash41.tools.batch_output import open_output, partial_of

IDS = ("batch_req_1", "batch_req_2", "batch_req_3")


def result(number: int, error: dict[str, str] | None = None) -> dict[str, Any]:
    return {"id": f"batch_req_{number}", "custom_id": str(number), "response": {}, "error": error}


def text(*results: dict[str, Any]) -> str:
    return "".join(json.dumps(one) + "\n" for one in results)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("calls\n")
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_results_lie_beside_the_output_until_all_are_there(source: Path, target: Path) -> None:
    output = open_output(source, target, IDS, force=False)
    output.begin()
    output.append(result(1))
    output.append(result(2))
    assert (target.exists(), partial_of(target).read_text()) == (False, text(result(1), result(2)))
    output.finish()
    assert (target.read_text(), partial_of(target).exists()) == (text(result(1), result(2)), False)
    assert sorted(path.name for path in target.parent.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_an_interrupted_run_is_continued_without_its_broken_last_line(source: Path, target: Path) -> None:
    for cut in (0, 1, 10, 30):
        partial_of(target).write_text(text(result(1)) + text(result(2))[:cut])
        output = open_output(source, target, IDS, force=False)
        assert set(output.done) == {"batch_req_1"}
        output.begin()
        output.append(result(2))
        assert partial_of(target).read_text() == text(result(1), result(2))


def test_an_output_and_a_partial_one_are_joined(source: Path, target: Path) -> None:
    target.write_text(text(result(1)))
    partial_of(target).write_text(text(result(1), result(3, {"code": "x", "message": "y"})))
    output = open_output(source, target, IDS, force=False)
    assert (set(output.done), output.num_failed) == ({"batch_req_1", "batch_req_3"}, 1)


@pytest.mark.parametrize(
    "foreign", ["my notes", "my notes\n", "{}\n", '{"id": "batch_req_9", "error": null}\n', '{"id": "batch_req_1"}\n']
)
@pytest.mark.parametrize("partial", [False, True])
def test_a_foreign_file_is_kept_unless_forced(source: Path, target: Path, foreign: str, partial: bool) -> None:
    place = partial_of(target) if partial else target
    place.write_text(foreign)
    with pytest.raises(RequestError, match=place.name):
        open_output(source, target, IDS, force=False)
    assert place.read_text() == foreign
    output = open_output(source, target, IDS, force=True)
    assert set(output.done) == set()
    output.begin()
    output.finish()
    assert target.read_text() == ""


def test_the_input_is_never_the_output(source: Path, target: Path) -> None:
    target.hardlink_to(source)
    for path in (source, target):
        with pytest.raises(RequestError, match="other than the input"):
            open_output(source, path, IDS, force=True)
    assert source.read_text() == "calls\n"


def test_a_target_that_cannot_be_made_is_refused(source: Path, target: Path) -> None:
    target.mkdir()
    with pytest.raises(RequestError, match="a file or nothing"):
        open_output(source, target, IDS, force=True)
    with pytest.raises(RequestError, match="output folder"):
        open_output(source, target / "nowhere" / "out", IDS, force=False)


def test_a_file_system_that_refuses_is_a_lack_of_capacity(source: Path, target: Path) -> None:
    output = open_output(source, target, IDS, force=False)
    partial_of(target).mkdir()
    with pytest.raises(CapacityError, match="writing"):
        output.begin()
    with pytest.raises(CapacityError, match="writing"):
        output.append(result(1))
    partial_of(target).rmdir()
    with pytest.raises(CapacityError, match="writing"):
        output.finish()


def test_text_stays_readable_and_half_a_character_is_escaped(source: Path, target: Path) -> None:
    output = open_output(source, target, IDS, force=False)
    output.begin()
    output.append({**result(1), "custom_id": "é"})
    output.append({**result(2), "custom_id": "é\ud800"})
    first, second = partial_of(target).read_text(encoding="utf-8").splitlines()
    assert '"é"' in first
    assert json.loads(second)["custom_id"] == "é\ud800"
    assert set(open_output(source, target, IDS, force=False).done) == {"batch_req_1", "batch_req_2"}
