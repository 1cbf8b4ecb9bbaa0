import pytest

from flash41.cli.sections import Section, markdown, print_sections

SECTIONS = (
    Section(title="Facts", facts=(("name", "a_b"), ("length", "3"))),
    Section(title="Table", headers=("part", "", "n"), rows=(("x|y", "1", "2"),), right=("n",), notes=("all of *it*",)),
    Section(title="Strip", lines=("0 1  2", "", "W  F")),
)


def test_text_has_headings_facts_tables_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(SECTIONS)
    assert capsys.readouterr().out == (
        "\nFacts\n  name    a_b\n  length  3\n"
        "\nTable\n  part     n\n  x|y   1  2\n  all of *it*\n"
        "\nStrip\n  0 1  2\n\n  W  F\n"
    )


def test_markdown_has_the_same_and_no_sign_of_the_text_means_anything() -> None:
    assert markdown("model_type <x>", SECTIONS) == (
        "# model\\_type \\<x\\>\n\n"
        "## Facts\n\n|  |  |\n|---|---|\n| name | a\\_b |\n| length | 3 |\n\n"
        "## Table\n\n| part |  | n |\n|---|---|---:|\n| x\\|y | 1 | 2 |\n\nall of \\*it\\*\n\n"
        "## Strip\n\n```text\n0 1  2\n\nW  F\n```\n"
    )


def test_a_line_break_ends_no_cell() -> None:
    (row,) = [line for line in markdown("t", [Section(title="s", facts=(("a", "b\nc"),))]).splitlines() if "b" in line]
    assert row == "| a | b c |"
