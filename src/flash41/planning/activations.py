"""An upper estimate of what a forward holds beside weights and caches, from shapes alone.

A step of T rows over N requests of at most C tokens, on one of P ranks; b bytes an element (2, or 4 in profile fp32):

    residual     T S D (3b + 16)                     streams before and after a sub-layer, and as FP64 in its mixing
    queries      T (H/P + 1) d (4b + 16)             heads before and after their rotation, the output, as FP64 in bands
    rows         T K (2 d b + 8) + (N W + T) 2 d b   selected rows, which a backend may gather and stack below windows
    lists        T (W + K) 8 (scorers + 4)           row numbers of each query, kept for every scorer of the forward
    index keys   N ceil(C / r) (dI (b + 1) + 24)     keys of whole requests, for the owner with the smallest ratio r
    scores       40 min(T N', B)                     a band of FP32 scores with masks and order; N' rows, B = 2^25
    experts      T (E 8 + (k + 1) (3 F + D) 8)       router logits, inner and outer rows of the chosen experts
    Engram       T L (columns 16 + width (b + 8))    row numbers and gathered rows of all tables
    logits       R (V 4 + D 8),  R = N (1 + g)       one row per request and draft
    scratch      384 MiB                             bands and decoded weights of the kernels

The terms are added although not all are alive at once, and each is rounded up to what a backend may do: the sum is no
measurement.  A test holds it against what a step of the compiled kernels really takes.  Integers only.
"""

from dataclasses import dataclass

from flash41.config.architecture import ModelConfig
from flash41.planning.pictures import INNER_BYTES, LOGIT_BYTES, ROWS_PER_BAND, VECTORS, encoder_bytes

SCORES_PER_BAND = 1 << 25
"""Scores that a scorer holds at a time (`model.indexer`)."""
SCRATCH_BYTES = 384 << 20
"""Bands of gathered keys and head scores, and weights that the reference backend keeps decoded (256 MiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One part of the estimate."""

    name: str
    """What it is for."""
    formula: str
    """How it follows from the shapes."""
    num_bytes: int
    """At most this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What decides the size of a step."""

    rows: int
    """Rows of one forward."""
    requests: int
    """Requests side by side."""
    context: int
    """Tokens of the longest request."""
    draft_tokens: int
    """Drafts per request and step, 0 without drafting."""
    element_bytes: int
    """Bytes of an activation."""
    ranks: int
    """Ranks that share the heads."""


def activation_terms(config: ModelConfig, step: StepShape) -> tuple[Term, ...]:
    """The terms of the estimate, of which each is at least 0."""
    attention, indexer, moe, engram = config.attention, config.indexer, config.moe, config.engram
    # A step has at least a row for every request it computes.
    rows, requests = step.rows, min(step.requests, step.rows)
    b, d, hidden = step.element_bytes, attention.head_dim, config.hidden_size
    selected = min(indexer.topk, step.context)
    ratios = [attention.compress_ratios[owner] for owner in attention.kv_source_layer_ids]
    visible = -(-step.context // min(ratios)) if ratios else 0
    scorers = len(attention.index_source_layer_ids)
    chosen = moe.num_experts_per_token + 1
    logit_rows = requests * (1 + step.draft_tokens)
    table = len(engram.layer_ids) * (16 * engram.num_columns + engram.width * (b + 8))
    # A band is never narrower than one row of every request.
    band = min(rows * visible, max(SCORES_PER_BAND, requests * visible))
    sizes = {
        "residual streams": ("T S D (3b + 16)", rows * config.mhc.streams * hidden * (3 * b + 16)),
        "queries": ("T (H/P + 1) d (4b + 16)", rows * (attention.num_heads // step.ranks + 1) * d * (4 * b + 16)),
        "gathered rows": (
            "T K (2 d b + 8) + (N W + T) 2 d b",
            rows * selected * (2 * d * b + 8) + (requests * attention.window + rows) * 2 * d * b,
        ),
        "row lists": ("T (W + K) 8 (scorers + 4)", rows * (attention.window + selected) * 8 * (scorers + 4)),
        "index keys": ("N ceil(C/r) (dI (b + 1) + 24)", requests * visible * (indexer.head_dim * (b + 1) + 24)),
        "index scores": ("40 min(T ceil(C/r), 2^25)", 40 * band),
        "experts": (
            "T (E 8 + (k + 1)(3 F + D) 8)",
            rows * (8 * moe.num_experts + chosen * (3 * moe.intermediate_size + hidden) * 8),
        ),
        "Engram rows": ("T tables (columns 16 + width (b + 8))", rows * table),
        "logits": ("N (1 + g)(4 V + 8 D)", logit_rows * (4 * config.vocab_size + 8 * hidden)),
        "kernel scratch": ("384 MiB", SCRATCH_BYTES),
    }
    return tuple(Term(name=name, formula=formula, num_bytes=size) for name, (formula, size) in sizes.items())


def encoder_term(config: ModelConfig, element_bytes: int) -> Term:
    """What encoding the largest picture holds: vectors of its patches, a band of logits, a band of inner rows."""
    vision = config.vision
    patches = vision.max_image_tokens * vision.downsample_ratio**2
    return Term(
        name="image encoder",
        formula=f"patches {VECTORS} C b + {LOGIT_BYTES} min(patches^2, 4 Mi) + {ROWS_PER_BAND} * {2 * INNER_BYTES} M",
        num_bytes=encoder_bytes(vision, patches, element_bytes),
    )
