import io
import json

import pytest

from flash41.cli.common import human_bytes, human_count, print_facts, print_json, print_table

HEADERS = ("name", "count")
ROWS = [("a", "1"), ("longer", "1,000,000"), ("total", "1,000,001")]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (510_286_023_000, "475.24 GiB"),
        (2**40, "1.00 TiB"),
        (5000 * 2**40, "5000.00 TiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1.00 K"), (999_999, "1.00 M"), (763_205_315_794, "763.21 B"), (10**12, "1.00 T")],
)
def test_counts_for_people(count: int, text: str) -> None:
    assert human_count(count) == text


def test_json_is_sorted_and_keeps_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": [1, None], "a": "\u00e9"})
    text = capsys.readouterr().out
    assert text.startswith('{\n  "a": "\u00e9",\n  "b"')
    assert json.loads(text) == {"a": "\u00e9", "b": [1, None]}


def test_a_number_that_json_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"a": float("nan")})


def test_facts_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts([("a", "1"), ("long", "2")])
    assert capsys.readouterr().out == "  a     1\n  long  2\n"


def test_a_table_in_a_pipe_is_plain_and_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADERS, ROWS, right=("count",))
    assert capsys.readouterr().out.splitlines() == [
        "  name        count",
        "  a               1",
        "  longer  1,000,000",
        "  total   1,000,001",
    ]


def test_a_table_on_a_narrow_terminal_keeps_every_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "10")
    print_table(HEADERS, ROWS, right=("count",))
    lines = terminal.getvalue().splitlines()
    assert len({line.count("\u2502") for line in lines[3:-1]}) == 1
    assert any("1,000,000" in line and "longer" in line for line in lines)
