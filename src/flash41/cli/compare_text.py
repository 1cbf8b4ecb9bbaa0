"""A comparison as text: the verdict first, then what leads to it."""

from collections.abc import Iterator

import typer

from flash41.cli.common import print_facts, print_heading, print_table
from flash41.tools.comparison.compare import GROWTH, Comparison, LayerGrowth
from flash41.tools.comparison.fingerprint import Fingerprint
from flash41.tools.comparison.judge import PointResult, Status

MOST_NAMES = 6
DIFFERENT = ("tie", "follows", "unknown", "real")
"""Verdicts on selections, as columns."""
POINTS = ("point", "status", "median", "worst", "rows beyond", "note")


def print_comparison(found: Comparison, *, every_point: bool) -> None:
    """Everything a reader needs to go on; `every_point` adds the table of all points."""
    _print_verdict(found)
    if found.hints:
        print_heading("What may explain it")
        for hint in found.hints:
            typer.echo(f"  {hint.convention}\n    seen: {hint.evidence}\n    next: {hint.remedy}")
    if found.growth:
        print_heading("Median error, layer by layer")
        print_table(("layer", *GROWTH, *DIFFERENT), [_layer(one) for one in found.growth], right=(*GROWTH, *DIFFERENT))
        typer.echo(
            "  last columns: selections that differ by a tie, by scores that differ, for unknown or real reasons"
        )
    print_heading("Both traces")
    print_facts(list(_facts(found)))
    if every_point:
        print_heading("Every point, in the order of the forward")
        print_table(POINTS, [_point(one) for one in found.points], right=POINTS[2:5])


def _print_verdict(found: Comparison) -> None:
    first, module = found.first, found.module
    if first is None or module is None:
        count = len(found.points)
        typer.echo(f"no divergence: {count} points of {found.num_tokens} tokens agree as far as roundings allow")
        return
    typer.echo(f"first divergence: {first.point}")
    facts = [("what", module.what)]
    if first.status is Status.MISFIT:
        facts.append(("shapes", first.note))
    else:
        facts.append(("rows", f"{first.num_beyond} of {first.num_rows}, the first is row {first.first_row}"))
        facts.append(("error", f"median {_number(first.median)}, worst {_number(first.worst)}"))
    if first.verdicts is not None:
        facts.append(("selections", ", ".join(f"{count} {name}" for name, count in first.verdicts.items())))
    if first.note and first.status is not Status.MISFIT:
        facts.append(("note", first.note))
    if module.tensors:
        facts.append(("tensors", module.tensors))
    if module.source:
        facts.append(("read", f"src/flash41/{module.source}, docs/math/{module.page}"))
    print_facts(facts)


def _facts(found: Comparison) -> Iterator[tuple[str, str]]:
    counts = {status: sum(one.status is status for one in found.points) for status in Status}
    yield "points", ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    for name, points in (("only in the first", found.only_ours), ("only in the second", found.only_theirs)):
        if points:
            more = f" and {len(points) - MOST_NAMES} more" if len(points) > MOST_NAMES else ""
            yield name, ", ".join(points[:MOST_NAMES]) + more
    for name, one in zip(("roundings, first", "roundings, second"), found.roundings, strict=True):
        yield name, _roundings(one)
    if found.logits is not None:
        logits = found.logits
        yield "logits", f"median error {_number(logits.median)}, same best token in {logits.top1:.1%} of rows"
        if logits.top1 < 1:
            yield "clearest other token", f"margin {logits.worst_margin:.3f} in the first trace"


def _roundings(found: Fingerprint) -> str:
    names = {
        "stores": "results",
        "window": "window rows",
        "main": "compressed rows",
        "key": "index keys",
        "scores": "scores",
    }
    seen = [f"{name} {getattr(found, field)}" for field, name in names.items() if getattr(found, field) is not None]
    return ", ".join(seen) or "no point that shows them"


def _layer(one: LayerGrowth) -> tuple[str, ...]:
    errors = [_number(one.errors[name]) if name in one.errors else "" for name in GROWTH]
    return (str(one.layer), *errors, *(str(one.selections.get(name, "")) for name in DIFFERENT))


def _point(one: PointResult) -> tuple[str, ...]:
    beyond = f"{one.num_beyond} of {one.num_rows}" if one.num_beyond else ""
    return (one.point, one.status.value, _number(one.median), _number(one.worst), beyond, one.note)


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"
