"""A report as titled sections, printed as text or as Markdown: the same numbers in both.

A section holds facts (a name and a value), a table, or lines that must not be broken.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import typer

from flash41.cli.common import print_facts, print_heading, print_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a report; empty parts are not shown."""

    title: str
    """Heading."""
    facts: Sequence[tuple[str, str]] = ()
    """Names and values."""
    headers: Sequence[str] = ()
    """Columns of the table; several may have no name."""
    rows: Sequence[Sequence[str]] = ()
    """Cells of the table."""
    right: Sequence[str] = ()
    """Headers of the columns that end flush."""
    lines: Sequence[str] = ()
    """Text whose columns stand below each other."""
    notes: Sequence[str] = ()
    """Sentences at the end."""


def print_sections(sections: Iterable[Section]) -> None:
    """Writes sections to standard output as text."""
    for section in sections:
        print_heading(section.title)
        if section.facts:
            print_facts(section.facts)
        if section.rows:
            print_table(section.headers, section.rows, right=section.right)
        for line in (*section.lines, *section.notes):
            typer.echo(f"  {line}".rstrip())


def markdown(title: str, sections: Iterable[Section]) -> str:
    """The sections as a Markdown document with a title, ending with a newline."""
    parts = [f"# {_escaped(title)}"]
    for section in sections:
        parts.append(f"## {_escaped(section.title)}")
        if section.facts:
            parts.append("\n".join(_table(("", ""), section.facts, ())))
        if section.rows:
            parts.append("\n".join(_table(section.headers, section.rows, section.right)))
        if section.lines:
            parts.append("\n".join(["```text", *section.lines, "```"]))
        parts += [_escaped(note) for note in section.notes]
    return "\n\n".join(parts) + "\n"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str]) -> Iterator[str]:
    yield _row(headers)
    yield "|" + "|".join("---:" if header in right else "---" for header in headers) + "|"
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    """Text whose signs mean nothing to Markdown; a new line would end a cell."""
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split("\n"))
