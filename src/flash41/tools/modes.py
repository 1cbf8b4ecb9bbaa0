"""What the layers of each attention mode add in weights, write, and score: the table of modes of any model.

    FULL     4 layers   writes both planes   scores its whole plane      10,715,776 or 8,094,336 parameters more
    REINDEX  4 layers   writes no plane      scores 2048 x 8 rows        5,406,720 more

spec: config.md section 5.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerMode, LayerSpec, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRow:
    """The backbone layers of one mode."""

    mode: LayerMode
    """Which."""
    layer_ids: tuple[int, ...]
    """Its layers, ascending."""
    writes_planes: bool
    """Whether they write a main plane and an index plane."""
    scores: bool
    """Whether they select rows themselves."""
    most_scored_rows: int | None
    """Rows they score at most; None for every visible row, 0 where they score none."""
    extra_parameters: tuple[int, ...]
    """Weights beyond those of every layer, each count once, descending."""

    @property
    def score_width(self) -> str:
        """What they score, in words."""
        if not self.scores:
            return "the group's selection" if self.mode is LayerMode.REUSE else "-"
        return "the whole context" if self.most_scored_rows is None else f"{self.most_scored_rows:,} rows"

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {
            "num_layers": len(self.layer_ids),
            "layer_ids": list(self.layer_ids),
            "writes_main_plane": self.writes_planes,
            "writes_index_plane": self.writes_planes,
            "scores": self.scores,
            "most_scored_rows": self.most_scored_rows,
            "score_width": self.score_width,
            "extra_parameters": list(self.extra_parameters),
        }


def mode_rows(layers: Topology, config: ModelConfig, extra_by_layer: Mapping[int, int]) -> tuple[ModeRow, ...]:
    """One row per mode, in the order of the modes; a mode without layers has a row too."""
    return tuple(
        _row(mode, [spec for spec in layers.layers if spec.mode is mode], config, extra_by_layer) for mode in LayerMode
    )


def _row(mode: LayerMode, specs: list[LayerSpec], config: ModelConfig, extra_by_layer: Mapping[int, int]) -> ModeRow:
    scores = mode in (LayerMode.FULL, LayerMode.REINDEX)
    most: int | None = None if scores else 0
    if specs and all(spec.bounded_by_candidates for spec in specs) and mode is LayerMode.REINDEX:
        most = config.indexer.candidate_blocks * config.indexer.candidate_block_size
    return ModeRow(
        mode=mode,
        layer_ids=tuple(spec.layer_id for spec in specs),
        writes_planes=mode is LayerMode.FULL,
        scores=scores,
        most_scored_rows=most,
        extra_parameters=tuple(sorted({extra_by_layer.get(spec.layer_id, 0) for spec in specs}, reverse=True)),
    )
