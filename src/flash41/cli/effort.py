"""The option --effort, which several commands share."""

from typing import Annotated

import typer

from flash41.cli import options

Effort = Annotated[
    str | None,
    typer.Option("--effort", help="Reasoning effort with --thinking: low, high, max or 1 to 100. [default: high]"),
]

EFFORTS = ("low", "high", "max")
MOST_EFFORT = 100


def known_effort(text: str) -> str | int | None:
    """The effort that a text names, or None where it names none."""
    if text in EFFORTS:
        return text
    if options.INTEGER.fullmatch(text) and 1 <= int(text) <= MOST_EFFORT:
        return int(text)
    return None


def effort_of(text: str | None) -> str | int | None:
    """The effort of the option; a usage error says what it may be."""
    if text is None:
        return None
    effort = known_effort(text)
    if effort is None:
        message = f"got {text!r}, expected {', '.join(EFFORTS)} or a number from 1 to {MOST_EFFORT}"
        raise typer.BadParameter(message, param_hint="--effort")
    return effort
