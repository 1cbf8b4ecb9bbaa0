"""Which trace point is computed from which: the order of a forward, and the module between two points.

    embed -> L0.resid.in -> ... -> L0.ffn.out -> L1.resid.in -> ... -> final.norm -> logits -> mtp0 ... -> draft.logits

Names alone decide, so that traces of any configuration, and traces that lack points, can be ordered.  A point that is
missing hands its part on: whoever would have read it is held against what it was computed from.
spec: attention.md, mhc.md, moe.md, engram.md, dspark.md.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

LAYER = re.compile(r"(L|mtp|vision\.block)(\d+)\.?(.*)")

STREAMS = ("resid.in", "resid.after_engram")
OF_LAYER: Mapping[str, tuple[str, ...]] = {
    "resid.in": ("<ffn.out", "<resid.mid", "<ffn.post", "<ffn.comb"),
    "engram.rows": (),
    "engram.gate": ("resid.in", "engram.rows"),
    "resid.after_engram": ("resid.in", "engram.rows", "engram.gate"),
    "attn.pre": STREAMS,
    "attn.post": STREAMS,
    "attn.comb": STREAMS,
    "attn.in": (*STREAMS, "<ffn.pre"),
    "attn.q": ("attn.in",),
    "attn.window_row": ("attn.in",),
    "attn.latent": ("attn.in",),
    "attn.main_row": ("attn.latent",),
    "index.key": ("attn.latent",),
    "index.q": ("attn.in",),
    "index.weights": ("attn.in",),
    "index.scores": ("index.q", "index.weights", "~index.key"),
    "index.candidates": ("index.scores",),
    "index.selected": ("index.scores", "~index.candidates"),
    "attn.out": ("attn.q", "attn.window_row", "~attn.main_row", "~index.selected"),
    "resid.mid": (*STREAMS, "attn.out", "attn.post", "attn.comb"),
    "ffn.pre": ("resid.mid",),
    "ffn.post": ("resid.mid",),
    "ffn.comb": ("resid.mid",),
    "ffn.in": ("resid.mid", "attn.pre"),
    "router.logits": ("ffn.in",),
    "router.ids": ("router.logits",),
    "router.weights": ("router.logits", "router.ids"),
    "ffn.out": ("ffn.in", "router.ids", "router.weights"),
}
"""What each point of a layer is computed from, in the order of the forward; `<` the layer before, `~` the newest so far
(an owner's plane, a scorer's selection)."""

BEHIND: Mapping[str, tuple[str, ...]] = {
    "dspark.taps": ("<resid.in", "<resid.after_engram"),
    "dspark.main_x": ("dspark.taps",),
    "final.resid": ("<ffn.out", "<resid.mid", "<ffn.post", "<ffn.comb"),
    "final.pre": ("<ffn.pre",),
    "final.hidden": ("final.resid", "final.pre"),
    "final.norm": ("final.hidden",),
    "logits": ("final.norm",),
}
"""The points behind the last layer."""

OF_STAGE: Mapping[str, tuple[str, ...]] = {
    "context_row": ("dspark.main_x",),
    "attn.in": ("<resid.out",),
    "resid.mid": ("attn.in", "context_row"),
    "router.logits": ("resid.mid",),
    "router.ids": ("router.logits",),
    "router.weights": ("router.logits", "router.ids"),
    "resid.out": ("resid.mid", "router.ids", "router.weights"),
}
OF_DRAFT: Mapping[str, tuple[str, ...]] = {
    "draft.hidden": ("<resid.out",),
    "draft.base_logits": ("draft.hidden",),
    "draft.logits": ("draft.base_logits",),
    "draft.ids": ("draft.logits",),
    "draft.confidence": ("draft.hidden",),
}
VISION_ENDS = ("vision.norm", "vision.aligner")

SELECTIONS = ("index.selected", "index.candidates", "router.ids")
"""Points that choose: sets of numbers, compared as sets and with the scores that decided."""
EXACT = ("engram.rows",)
"""Integers that no rounding can change."""
OVER_CONTEXT = ("attn.latent", "attn.main_row", "index.key", "index.scores", *SELECTIONS[:2], "attn.out")
"""Points whose rows depend on earlier rows of what they are computed from."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a point stands in the forward."""

    order: tuple[int, int, int]
    """Sorts points in the order of the forward."""
    kind: str
    """Its name without the number of the layer, stage or block: ``attn.q``."""
    layer: int | None = None
    """Number of its layer."""


def place(point: str) -> Place:
    """Where a point stands; names nobody knows come last, in alphabetical order of the caller."""
    found = LAYER.fullmatch(point)
    if found is not None:
        what, number, suffix = found[1], int(found[2]), found[3]
        if what == "L":
            return Place((2, number, _index(OF_LAYER, suffix)), suffix, number)
        if what == "mtp":
            return Place((4, number, _index(OF_STAGE, suffix)), suffix)
        return Place((0, number, 0), "vision.block")
    if point == "embed":
        return Place((1, 0, 0), point)
    if point in VISION_ENDS:
        return Place((0, 1 << 30, VISION_ENDS.index(point)), point)
    if point in OF_DRAFT:
        return Place((5, 0, _index(OF_DRAFT, point)), point)
    return Place((3, 0, _index(BEHIND, point)), point)


def ordered(points: Collection[str]) -> list[str]:
    """Points in the order of the forward."""
    return sorted(points, key=lambda point: (place(point).order, point))


def sources(point: str, present: Collection[str]) -> tuple[str, ...]:
    """The nearest points among `present` that a point is computed from."""
    found: dict[str, None] = {}
    _collect(point, present, found, set())
    return tuple(found)


def _collect(point: str, present: Collection[str], found: dict[str, None], seen: set[str]) -> None:
    for source in _direct(point, present):
        if source in seen:
            continue
        seen.add(source)
        if source in present:
            found[source] = None
        else:
            _collect(source, present, found, seen)


def _direct(point: str, present: Collection[str]) -> list[str]:
    """What a point is computed from, whether present or not."""
    found = LAYER.fullmatch(point)
    if point in VISION_ENDS:
        return [f"vision.block{_last(present, 'vision.block')}", VISION_ENDS[0]][: VISION_ENDS.index(point) + 1][-1:]
    if found is None:
        wanted = BEHIND.get(point, OF_DRAFT.get(point, ()))
        last = _last(present, "mtp" if point in OF_DRAFT else "L") + 1
        return [_resolved(name, "mtp" if point in OF_DRAFT else "L", last, present) for name in wanted]
    what, number, suffix = found[1], int(found[2]), found[3]
    if what == "vision.block":
        return [f"vision.block{number - 1}"] if number else []
    if what == "L" and number == 0 and suffix == "resid.in":
        return ["embed"]
    wanted = (OF_LAYER if what == "L" else OF_STAGE).get(suffix, ())
    names = [_resolved(name, what, number, present) for name in wanted]
    return [name for name in names if name]


def _resolved(name: str, what: str, number: int, present: Collection[str]) -> str:
    """The full name of a table's entry; empty where there is no layer before."""
    if name in BEHIND or name in OF_DRAFT:
        return name
    if name.startswith("<"):
        return f"{what}{number - 1}.{name[1:]}" if number else ""
    if name.startswith("~"):
        newest = [layer for layer in range(number + 1) if f"L{layer}.{name[1:]}" in present]
        return f"L{newest[-1]}.{name[1:]}" if newest else ""
    return f"{what}{number}.{name}"


def _last(present: Collection[str], what: str) -> int:
    numbers = [int(found[2]) for point in present if (found := LAYER.fullmatch(point)) is not None and found[1] == what]
    return max(numbers, default=-1)


def _index(table: Mapping[str, object], key: str) -> int:
    return list(table).index(key) if key in table else len(table)
