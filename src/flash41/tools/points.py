"""Names of the points a trace of the text model can hold, known from the configuration alone.

    embed, L<layer>.<point> of every layer, dspark.taps, dspark.main_x, final.resid, final.pre, final.hidden, final.norm
    and of a draft block    mtp<stage>.<point> of every stage, draft.hidden, draft.base_logits, draft.logits, draft.ids,
                            draft.confidence
    with pictures: vision.block<block>, vision.norm, vision.aligner

A point of closed groups (latent, main_row, key) is absent from the trace of a prompt that closes none.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from flash41.config.architecture import ModelConfig
from flash41.config.topology import LayerSpec, topology
from flash41.errors import RequestError, complaint

MIXES = ("attn.pre", "attn.post", "attn.comb", "ffn.pre", "ffn.post", "ffn.comb")
EVERY_LAYER = (
    "resid.in",
    "attn.in",
    "attn.q",
    "attn.window_row",
    "attn.out",
    "resid.mid",
    "ffn.in",
    "router.logits",
    "router.ids",
    "router.weights",
    "ffn.out",
    *MIXES,
)
ENGRAM = ("engram.rows", "engram.gate", "resid.after_engram")
OWNER = ("attn.latent", "attn.main_row", "index.key")
SCORER = ("index.q", "index.weights", "index.scores", "index.selected")
ENDS = ("embed", "dspark.taps", "final.resid", "final.pre", "final.hidden", "final.norm")
MAIN_X = "dspark.main_x"
STAGE = ("context_row", "attn.in", "resid.mid", "resid.out", "router.logits", "router.ids", "router.weights")
DRAFT = ("draft.hidden", "draft.base_logits", "draft.logits", "draft.ids", "draft.confidence")
VISION_ENDS = ("vision.norm", "vision.aligner")


def point_names(config: ModelConfig, draft: bool = False, images: bool = False) -> frozenset[str]:
    """Every point that a trace of this model can hold; `draft` adds those of a draft block, `images` of pictures."""
    names = {*ENDS, *(draft_point_names(config) if draft else ())}
    if images:
        names |= {*VISION_ENDS, *(f"vision.block{block_id}" for block_id in range(config.vision.num_layers))}
    for spec in topology(config).layers:
        names.update(f"L{spec.layer_id}.{point}" for point in _points(spec))
    return frozenset(names | {MAIN_X} if config.dspark.num_stages else names)


def draft_point_names(config: ModelConfig) -> frozenset[str]:
    """Every point that the trace of a draft block holds."""
    stages = range(config.dspark.num_stages)
    return frozenset({*DRAFT, *(f"mtp{stage}.{point}" for stage in stages for point in STAGE)})


def check_points(patterns: Sequence[str], config: ModelConfig, draft: bool = False, images: bool = False) -> None:
    """Raises RequestError listing the patterns that match no point of the trace."""
    names = point_names(config, draft, images)
    idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    if idle:
        ends = "final.*, mtp<s>.* and draft.*" if draft else "and final.*"
        expected = f"patterns of points from embed over L0.* to L{config.num_layers - 1}.* {ends}"
        late = [pattern for pattern in idle if any(fnmatchcase(name, pattern) for name in draft_point_names(config))]
        remedy = f"{late} match points of a draft block, which was not asked for" if late else None
        raise RequestError(complaint("points that match nothing", idle, expected, remedy))


def _points(spec: LayerSpec) -> tuple[str, ...]:
    points: tuple[str, ...] = EVERY_LAYER
    for present, more in (
        (spec.has_engram, ENGRAM),
        (spec.writes_plane, OWNER),
        (spec.scores, SCORER),
        (spec.produces_candidates, ("index.candidates",)),
    ):
        points += more if present else ()
    return points
