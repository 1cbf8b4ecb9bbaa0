"""The layers of a model as a strip of text, one character each, and as a table of index groups.

Numbers are read from top to bottom, so that layer 14 is a 1 above a 4:

                      1111111111
    layer   01234567890123456789
    mode    WWFUUUUUFUUUUUFUUUUU
                          111111
    KV owner  222222888888444444

Knows nothing of terminals: whoever prints it decides on colours.  spec: config.md section 5.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flash41.config.topology import LayerMode, LayerSpec, Topology

MODE_LETTERS = {LayerMode.WINDOW: "W", LayerMode.FULL: "F", LayerMode.REINDEX: "I", LayerMode.REUSE: "U"}
"""The cell of a layer in the row of modes."""

LEGEND = (
    "W  WINDOW: only the layer's own window of positions",
    "F  FULL: writes a plane of compressed rows and selects from it",
    "I  REINDEX: selects anew from an earlier layer's plane",
    "U  REUSE: reads the rows an earlier layer selected",
    "C  its scores choose the candidate blocks; c is bounded by them",
    "E  an Engram table in front",
    "T  its input feeds the drafter",
)
"""What the letters mean."""

NONE = "."
"""The cell of a layer that has nothing to show in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripRow:
    """One line of the strip."""

    label: str
    """What it shows; empty for the upper digits of a number."""
    layers: str
    """One character per backbone layer."""
    drafts: str
    """One character per draft stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexGroup:
    """A maximal run of layers that read the same rows."""

    start: int
    """First layer."""
    size: int
    """Number of layers."""
    ratio: int
    """Tokens per compressed row; 0 = window only."""
    kv_owner: int | None
    """Layer whose plane they read, None for WINDOW."""
    topk_owner: int | None
    """Layer whose selection they use, None for WINDOW."""
    modes: tuple[LayerMode, ...]
    """Mode of each layer, in order."""
    is_draft: bool
    """Whether these are the draft stages."""

    @property
    def summary(self) -> str:
        """Modes in words, as in ``FULL + 5 REUSE``."""
        counts = Counter(self.modes)
        return " + ".join(mode.value if count == 1 else f"{count} {mode.value}" for mode, count in counts.items())


def strip(topology: Topology) -> tuple[StripRow, ...]:
    """Layer numbers, modes, ratios, owners, candidates, Engram tables and taps of all layers."""
    return (
        *_numbers("layer", topology, lambda layer: layer.layer_id),
        _row("mode", topology, lambda layer: MODE_LETTERS[layer.mode]),
        *_numbers("ratio", topology, lambda layer: layer.ratio),
        *_numbers("KV owner", topology, lambda layer: layer.kv_owner),
        *_numbers("top-k owner", topology, lambda layer: layer.topk_owner),
        _row("candidates", topology, _candidates),
        _row("Engram", topology, lambda layer: "E" if layer.has_engram else NONE),
        _row("tap", topology, lambda layer: "T" if layer.is_tap else NONE),
    )


def index_groups(topology: Topology) -> tuple[IndexGroup, ...]:
    """The index groups in order, the draft stages last."""
    return tuple(
        IndexGroup(
            start=group[0].layer_id,
            size=len(group),
            ratio=group[0].ratio,
            kv_owner=group[0].kv_owner,
            topk_owner=group[0].topk_owner,
            modes=tuple(layer.mode for layer in group),
            is_draft=group[0].is_draft,
        )
        for group in topology.groups()
    )


def _candidates(layer: LayerSpec) -> str:
    if layer.produces_candidates:
        return "C"
    return "c" if layer.bounded_by_candidates else NONE


def _row(label: str, topology: Topology, cell: Callable[[LayerSpec], str]) -> StripRow:
    layers, drafts = ("".join(map(cell, part)) for part in (topology.layers, topology.drafts))
    return StripRow(label=label, layers=layers, drafts=drafts)


def _numbers(label: str, topology: Topology, value: Callable[[LayerSpec], int | None]) -> list[StripRow]:
    """As many rows as the largest number has digits; the label stands at the lowest digits."""
    layers, drafts = ([value(layer) for layer in part] for part in (topology.layers, topology.drafts))
    height = max((len(str(number)) for number in (*layers, *drafts) if number is not None), default=1)
    columns = [_digits(layers, height), _digits(drafts, height)]
    return [
        StripRow(
            label=label if place == height - 1 else "",
            layers="".join(digits[place] for digits in columns[0]),
            drafts="".join(digits[place] for digits in columns[1]),
        )
        for place in range(height)
    ]


def _digits(numbers: Sequence[int | None], height: int) -> list[str]:
    return [(NONE if number is None else str(number)).rjust(height) for number in numbers]
