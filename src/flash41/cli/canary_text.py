"""The canary's findings as tables."""

from collections.abc import Mapping
from typing import Any

import typer

from flash41.cli.common import print_heading, print_table

LENGTHS = ("to 256", "to 1,024", "to 4,096", "longer")
"""Columns of prompt lengths in tokens, as they are told apart by the scores."""


def print_canary(found: Mapping[str, Any]) -> None:
    """Everything that was measured."""
    notes = [f"profile {found['profile']}"]
    notes += [f"without {', '.join(found['without'])}"] if found["without"] else []
    notes += [f"approximate: {', '.join(found['approximate'])}"] if "approximate" in found else []
    typer.echo(f"{sum(found['asked'].values()):,} questions in {found['seconds']:.1f} s, {', '.join(notes)}")
    _print_scores(found)
    for family, reasons in found["left_out"].items():
        for reason, count in reasons.items():
            typer.echo(f"  {family}: {count} not asked: {reason}")
    if "ablations" in found:
        _print_ablations(found["scores"], found["ablations"], found["chance"])
    if "perplexities" in found:
        _print_perplexities(found["perplexities"])
    if "drafts" in found:
        _print_drafts(found["drafts"])


def _print_scores(found: Mapping[str, Any]) -> None:
    headers = ("family", "needs", "right", "score", "chance", *LENGTHS)
    rows = [
        (
            family,
            found["needs"][family],
            f"{found['right'][family]} of {found['asked'][family]}",
            _percent(found["scores"].get(family)),
            _percent(found["chance"][family]),
            *(_part(count) for count in found["by_length"][family]),
        )
        for family in found["asked"]
    ]
    print_table(headers, rows, right=headers[2:])


def _print_ablations(
    scores: Mapping[str, float], ablations: Mapping[str, Mapping[str, float]], chance: Mapping[str, float]
) -> None:
    """Families in columns: a score, and how far it is from the whole model's."""
    print_heading("Without one mechanism: score, and points gained or lost")
    headers = ("without", *scores)
    rows = [("(nothing)", *map(_percent, scores.values()))]
    rows += [
        (name, *(_changed(found.get(family), scores[family]) for family in scores)) for name, found in ablations.items()
    ]
    rows.append(("(chance)", *(_percent(chance[family]) for family in scores)))
    print_table(headers, rows, right=headers[1:])


def _print_perplexities(perplexities: Mapping[str, Mapping[str, float]]) -> None:
    print_heading("Perplexity of the right answers")
    headers = ("family", *perplexities)
    names = list(next(iter(perplexities.values())))
    rows = [(name, *(f"{found[name]:.4f}" for found in perplexities.values())) for name in names]
    print_table(headers, rows, right=headers[1:])


def _print_drafts(drafts: Mapping[str, Any]) -> None:
    print_heading("Drafts, one request at a time")
    share, per_step = drafts["accepted_share"], drafts["tokens_per_step"]
    headers = ("answers", "accepted", "by position", "tokens/step", "over off", "answers are")
    row = (
        str(drafts["answers"]),
        _percent(share),
        " ".join(f"{part:.0%}" for part in drafts["by_position"]),
        "-" if per_step is None else f"{per_step:.2f}",
        f"{drafts['speedup']:.2f}",
        "equal" if drafts["equal"] else "DIFFERENT",
    )
    print_table(headers, [row], right=("answers", "accepted", "tokens/step", "over off"))


def _percent(score: float | None) -> str:
    return "-" if score is None else f"{score:.1%}"


def _part(count: Mapping[str, int]) -> str:
    return f"{count['right']}/{count['asked']}" if count["asked"] else ""


def _changed(score: float | None, whole: float) -> str:
    if score is None:
        return "-"
    points = round(100 * (score - whole))
    return f"{score:.0%}" + (f" {points:+d}" if points else "  0")
