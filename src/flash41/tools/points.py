"""Names of the points a trace of the text model can hold, known from the configuration alone.

    embed, L<layer>.<point> of every layer, dspark.taps, dspark.main_x, final.resid, final.pre, final.hidden, final.norm
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
VISION_ENDS = ("vision.norm", "vision.aligner")


def point_names(config: ModelConfig, images: bool = False) -> frozenset[str]:
    """Every point that a trace of this model can hold; `images` adds those of pictures."""
    names = {*ENDS}
    if images:
        names |= {*VISION_ENDS, *(f"vision.block{block_id}" for block_id in range(config.vision.num_layers))}
    for spec in topology(config).layers:
        names.update(f"L{spec.layer_id}.{point}" for point in _points(spec))
    return frozenset(names | {MAIN_X} if config.dspark.num_stages else names)


def check_points(patterns: Sequence[str], config: ModelConfig, images: bool = False) -> None:
    """Raises RequestError listing the patterns that match no point of the model."""
    names = point_names(config, images)
    idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    if idle:
        expected = f"patterns of points from embed over L0.* to L{config.num_layers - 1}.* and final.*"
        raise RequestError(complaint("points that match nothing", idle, expected))


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
