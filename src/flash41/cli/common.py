"""What several commands print with: numbers for people, JSON for programs, tables, errors.

A table is drawn by rich on a terminal and is plain aligned text in a pipe; in neither is a number ever cut or wrapped.
"""

import codecs
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TextIO

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
COUNT_UNITS = ("", "K", "M", "B", "T")
WIDEST = 1000
"""Characters no table exceeds."""
RED = "\x1b[31m"
RESET = "\x1b[0m"


def human_bytes(count: int) -> str:
    """Bytes with a binary unit and two decimals: ``475.24 GiB``; exact below 1 KiB."""
    return _human(count, 1024, BYTE_UNITS)


def human_count(count: int) -> str:
    """A number with a decimal unit (K, M, B for billion, T) and two decimals: ``763.21 B``; exact below 1,000."""
    return _human(count, 1000, COUNT_UNITS)


def _human(count: int, step: int, units: Sequence[str]) -> str:
    value, unit = float(count), 0
    # Compared as it will be printed, so that 1023.999 KiB is written as 1.00 MiB.
    while round(value, 2) >= step and unit < len(units) - 1:
        value /= step
        unit += 1
    return (f"{value:.2f}" if unit else str(count)) + f" {units[unit]}".rstrip()


def print_json(value: object) -> None:
    """One JSON object on standard output: two spaces of indentation, keys sorted, text as it is."""
    typer.echo(to_json(value, indent=2, sort_keys=True))


def to_json(value: object, **layout: Any) -> str:
    """JSON whose text is as it is where standard output can carry it, else escaped."""
    return json.dumps(value, ensure_ascii=not _carries_unicode(sys.stdout), allow_nan=False, **layout)


def _carries_unicode(stream: TextIO) -> bool:
    try:
        return codecs.lookup(stream.encoding).name.startswith("utf")
    except (AttributeError, LookupError, TypeError):
        return False


def print_error(message: str) -> None:
    """``error: MESSAGE`` on standard error, the word in red on a terminal."""
    word = f"{RED}error:{RESET}" if sys.stderr.isatty() else "error:"
    sys.stderr.write(f"{word} {message}\n")


def print_heading(title: str) -> None:
    """A title with an empty line above it, bold on a terminal."""
    typer.echo("\n" + (typer.style(title, bold=True) if sys.stdout.isatty() else title))


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and values, one pair per line, values below each other."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        typer.echo(f"  {name.ljust(width)}  {value}")


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table with the columns named in `right` aligned to the right; a last row named ``total`` stands out."""
    if sys.stdout.isatty():
        _print_drawn(headers, rows, right)
        return
    for line in _plain(headers, rows, right):
        typer.echo(line)


def _plain(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = [
            cell.rjust(width) if header in right else cell.ljust(width)
            for header, cell, width in zip(headers, row, widths, strict=True)
        ]
        yield ("  " + "  ".join(cells)).rstrip()


def _print_drawn(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row), style="bold" if row[0] == "total" else None)
    # A console of the table's own width: on a narrower terminal lines may run over, but no digit is lost.
    Console(width=Console(width=WIDEST).measure(table).maximum).print(table)
