import sys

import pytest

from flash41.cli.loading import SHOWN_BYTES, loading_bar


def test_nothing_is_told_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with loading_bar() as keywords:
        assert keywords == {}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("count", "shown"), [(SHOWN_BYTES - 1, False), (SHOWN_BYTES, True)])
def test_a_terminal_shows_a_bar_where_reading_takes_a_while(
    count: int, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with loading_bar() as keywords:
        for done in (count // 2, count):
            keywords["loading"](done, count)
    assert ("weights" in capsys.readouterr().err) is shown
