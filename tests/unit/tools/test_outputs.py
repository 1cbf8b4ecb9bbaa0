from pathlib import Path

import pytest

from flash41.errors import ConfigError
from flash41.tools.outputs import check_target, write_whole


def test_a_file_is_written_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.json", "text", force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "text"


def test_nothing_is_replaced_unless_that_is_asked_for(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("mine")
    with pytest.raises(ConfigError, match="--force replaces a file"):
        write_whole(target, "text", force=False)
    assert target.read_text() == "mine"
    write_whole(target, "text", force=True)
    assert target.read_text() == "text"


def test_a_folder_is_never_replaced_and_one_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="something there"):
        check_target(tmp_path, force=True)
    with pytest.raises(ConfigError, match="expected a folder that exists"):
        check_target(tmp_path / "no" / "a.json", force=False)
