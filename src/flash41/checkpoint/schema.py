"""Every tensor a checkpoint of a given config holds: name, shape, dtype, and what it is for.

The schema is generated from the config alone, for any widths; the files must match it exactly.  The release has 96,085
tensors.  The order is the order of the files: embedding, backbone layers, final norm, head, draft stages, vision.

    X.weight F8_E4M3 [N, K]    X.scale F8_E8M0 [ceil(N/32), ceil(K/32)]    dense
    X.weight I8 [N, K/2]       X.scale F8_E8M0 [N, ceil(K/32)]             routed experts, K counts channels
    X.weight F8_E4M3 [R, K]    X.scale F8_E8M0 [R, ceil(K/32)]             Engram rows

Knows nothing of files and tensors.  spec: checkpoint.md sections 1 to 3.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flash41.checkpoint.stored import CutRule, Layout, Scope, StoredDtype, Subsystem, TensorSpec
from flash41.config.architecture import ModelConfig

TILE = 32
"""Rows and channels of a dense weight that share one scale; channels of an expert or Engram row that do."""

PIXEL_CHANNELS = 3
"""Colours of a pixel."""

IMAGE_VECTORS = ("image_start", "image_end", "image_newline")
"""Embeddings of the image delimiters; there is no padding vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A tensor of one block, named inside it."""

    suffix: str
    layout: Layout


def schema(config: ModelConfig) -> dict[str, TensorSpec]:
    """All tensors by name, in file order.

    spec: checkpoint.md sections 1 to 3.
    """
    return {spec.name: spec for spec in _specs(config, every_expert=True)}


def kinds(config: ModelConfig) -> list[tuple[TensorSpec, int]]:
    """The schema with one expert of each layer for all of them: its tensors, and how many of the kind there are.

    What only counts does not need the names of ninety thousand tensors.
    """
    num_experts = {Scope.BACKBONE: config.moe.num_experts, Scope.DRAFT: config.dspark.num_experts}
    return [
        (spec, 1 if spec.expert_id is None else num_experts[spec.scope]) for spec in _specs(config, every_expert=False)
    ]


def kind_name(name: str) -> str:
    """The name under which `kinds` has a tensor: that of the first expert for every expert's."""
    before, experts, after = name.partition(".ffn.experts.")
    return f"{before}{experts}0.{after.partition('.')[2]}" if experts else name


def _specs(config: ModelConfig, *, every_expert: bool) -> list[TensorSpec]:
    """Tensors in file order, of all experts or of the first of each block."""

    def experts(prefix: str, scope: Scope, block_id: int, count: int) -> Iterator[TensorSpec]:
        return _experts(prefix, config, scope, block_id, count if every_expert else 1)

    specs = _named("", [_plain("embed.weight", _vocabulary(config), Subsystem.EMBED, cut=CutRule.AXIS0)])
    for layer_id in range(config.num_layers):
        prefix = f"layers.{layer_id}."
        parts = _common(config, Scope.BACKBONE, config.moe.num_experts)
        parts += _selection(config, layer_id) + _engram(config, layer_id)
        specs += _named(prefix, parts, layer_id)
        specs += experts(prefix, Scope.BACKBONE, layer_id, config.moe.num_experts)
    specs += _named("", [_plain("norm.weight", (config.hidden_size,), Subsystem.FINAL_NORM)])
    specs += _named("", [_plain("head.weight", _vocabulary(config), Subsystem.HEAD, cut=CutRule.AXIS0)])
    for stage_id in range(config.dspark.num_stages):
        prefix = f"mtp.{stage_id}."
        parts = _common(config, Scope.DRAFT, config.dspark.num_experts) + _draft_ends(config, stage_id)
        specs += _named(prefix, parts, stage_id)
        specs += experts(prefix, Scope.DRAFT, stage_id, config.dspark.num_experts)
    return specs + _vision(config)


def _named(prefix: str, parts: Iterable[_Part], block_id: int | None = None) -> list[TensorSpec]:
    return [
        TensorSpec(name=prefix + part.suffix, layout=part.layout, block_id=block_id, expert_id=None) for part in parts
    ]


def _plain(
    suffix: str,
    shape: tuple[int, ...],
    subsystem: Subsystem,
    *,
    scope: Scope = Scope.BACKBONE,
    dtype: StoredDtype = StoredDtype.BF16,
    cut: CutRule = CutRule.REPLICATED,
) -> _Part:
    return _Part(suffix=suffix, layout=Layout(shape=shape, dtype=dtype, cut=cut, scope=scope, subsystem=subsystem))


def _scaled(
    prefix: str,
    shape: tuple[int, int],
    subsystem: Subsystem,
    *,
    scope: Scope = Scope.BACKBONE,
    cut: CutRule = CutRule.REPLICATED,
    codes: StoredDtype = StoredDtype.F8_E4M3,
    group_rows: int = TILE,
) -> list[_Part]:
    """The pair ``prefix.weight``, ``prefix.scale`` of a logical [rows, channels]."""
    rows, channels = shape
    stored = (rows, -(-channels // 2)) if codes is StoredDtype.I8 else shape
    grid = (-(-rows // group_rows), -(-channels // TILE))
    return [
        _plain(f"{prefix}.weight", stored, subsystem, scope=scope, cut=cut, dtype=codes),
        _plain(f"{prefix}.scale", grid, subsystem, scope=scope, cut=cut, dtype=StoredDtype.F8_E8M0),
    ]


def _vocabulary(config: ModelConfig) -> tuple[int, int]:
    return (config.vocab_size, config.hidden_size)


def _common(config: ModelConfig, scope: Scope, num_experts: int) -> list[_Part]:
    """What every layer and draft stage has, routed experts apart."""
    hidden = config.hidden_size
    parts = [
        _plain("attn_norm.weight", (hidden,), Subsystem.ATTENTION_NORM, scope=scope),
        _plain("ffn_norm.weight", (hidden,), Subsystem.MOE_NORM, scope=scope),
        *_mhc(config, scope, "hc_attn", Subsystem.ATTENTION_MHC),
        *_mhc(config, scope, "hc_ffn", Subsystem.MOE_MHC),
        *_attention(config, scope),
        _plain("ffn.gate.weight", (num_experts, hidden), Subsystem.GATE, scope=scope),
    ]
    for bias in ("ffn.gate.bias", "ffn.gate.bias_vl"):
        parts.append(_plain(bias, (num_experts,), Subsystem.GATE, scope=scope, dtype=StoredDtype.F32))
    inner = config.moe.intermediate_size
    for matrix, shape, cut in (
        ("w1", (inner, hidden), CutRule.SHARED_AXIS0),
        ("w3", (inner, hidden), CutRule.SHARED_AXIS0),
        ("w2", (hidden, inner), CutRule.SHARED_AXIS1),
    ):
        parts += _scaled(f"ffn.shared_experts.{matrix}", shape, Subsystem.SHARED, scope=scope, cut=cut)
    return parts


def _mhc(config: ModelConfig, scope: Scope, prefix: str, subsystem: Subsystem) -> list[_Part]:
    """Gates of n streams: n in, n out and n x n mixing coefficients, three learned scales."""
    streams = config.mhc.streams
    num_gates = (2 + streams) * streams
    shapes = {"fn": (num_gates, streams * config.hidden_size), "base": (num_gates,), "scale": (3,)}
    return [
        _plain(f"{prefix}_{leaf}", shape, subsystem, scope=scope, dtype=StoredDtype.F32)
        for leaf, shape in shapes.items()
    ]


def _attention(config: ModelConfig, scope: Scope) -> list[_Part]:
    attention, hidden = config.attention, config.hidden_size
    heads = attention.num_heads * attention.head_dim
    outputs = attention.o_groups * attention.o_lora_rank
    parts = [
        _plain(
            "attn.attn_sink",
            (attention.num_heads,),
            Subsystem.ATTENTION,
            scope=scope,
            dtype=StoredDtype.F32,
            cut=CutRule.AXIS0,
        ),
        _plain("attn.q_norm.weight", (attention.q_lora_rank,), Subsystem.ATTENTION, scope=scope),
        _plain("attn.kv_norm.weight", (attention.head_dim,), Subsystem.ATTENTION, scope=scope),
    ]
    for matrix, shape, cut in (
        ("wq_a", (attention.q_lora_rank, hidden), CutRule.REPLICATED),
        ("wq_b", (heads, attention.q_lora_rank), CutRule.AXIS0),
        ("wkv", (attention.head_dim, hidden), CutRule.REPLICATED),
        ("wo_a", (outputs, heads // attention.o_groups), CutRule.AXIS0),
        ("wo_b", (hidden, outputs), CutRule.AXIS1),
    ):
        parts += _scaled(f"attn.{matrix}", shape, Subsystem.ATTENTION, scope=scope, cut=cut)
    return parts


def _selection(config: ModelConfig, layer_id: int) -> list[_Part]:
    """Compressor and index keys of a KV source, index queries of an index source."""
    attention, indexer, hidden = config.attention, config.indexer, config.hidden_size
    latent = (attention.head_dim, hidden)
    parts: list[_Part] = []
    if layer_id in attention.kv_source_layer_ids:
        parts.append(_plain("attn.compressor.wkv.weight", latent, Subsystem.COMPRESSOR))
        if attention.compress_ratios[layer_id] > 1:  # one token a row needs no weights to fold with
            parts.append(_plain("attn.compressor.wgate.weight", latent, Subsystem.COMPRESSOR))
        parts.append(_plain("attn.compressor.norm.weight", (attention.head_dim,), Subsystem.COMPRESSOR))
        key_shape = (indexer.head_dim, attention.head_dim)
        parts.append(_plain("attn.indexer.wk.weight", key_shape, Subsystem.INDEXER))
        parts.append(_plain("attn.indexer.k_norm.weight", (indexer.head_dim,), Subsystem.INDEXER))
    if layer_id in attention.index_source_layer_ids:
        queries = (indexer.num_heads * indexer.head_dim, attention.q_lora_rank)
        parts += _scaled("attn.indexer.wq_b", queries, Subsystem.INDEXER, cut=CutRule.INDEX_HEADS)
        head_weights = (indexer.num_heads, hidden)
        parts.append(
            _plain("attn.indexer.weights_proj.weight", head_weights, Subsystem.INDEXER, cut=CutRule.INDEX_HEADS)
        )
    return parts


def _engram(config: ModelConfig, layer_id: int) -> list[_Part]:
    """The six tensors of an Engram layer: its table, the projection of what is gathered, two gate norms."""
    engram, streams, hidden = config.engram, config.mhc.streams, config.hidden_size
    if layer_id not in engram.layer_ids:
        return []
    rows = (engram.table_rows[engram.layer_ids.index(layer_id)], engram.head_dim)
    projection = ((streams + 1) * hidden, engram.width)  # one key per stream, one value
    return [
        *_scaled("engram.embed", rows, Subsystem.ENGRAM_TABLE, cut=CutRule.TABLE_ROWS, group_rows=1),
        *_scaled("engram.wkv", projection, Subsystem.ENGRAM_PROJECTION),
        _plain("engram.q_weight", (streams, hidden), Subsystem.ENGRAM_NORM),
        _plain("engram.k_weight", (streams, hidden), Subsystem.ENGRAM_NORM),
    ]


def _experts(prefix: str, config: ModelConfig, scope: Scope, block_id: int, num_experts: int) -> Iterator[TensorSpec]:
    hidden, inner = config.hidden_size, config.moe.intermediate_size
    parts: list[_Part] = []
    for matrix, shape, cut in (
        ("w1", (inner, hidden), CutRule.EXPERT_AXIS0),
        ("w3", (inner, hidden), CutRule.EXPERT_AXIS0),
        ("w2", (hidden, inner), CutRule.EXPERT_AXIS1),
    ):
        parts += _scaled(matrix, shape, Subsystem.ROUTED, scope=scope, cut=cut, codes=StoredDtype.I8, group_rows=1)
    for expert_id in range(num_experts):
        for part in parts:
            name = f"{prefix}ffn.experts.{expert_id}.{part.suffix}"
            yield TensorSpec(name=name, layout=part.layout, block_id=block_id, expert_id=expert_id)


def _draft_ends(config: ModelConfig, stage_id: int) -> list[_Part]:
    """What only the first draft stage has (its input) and only the last (its output)."""
    dspark, hidden = config.dspark, config.hidden_size
    parts: list[_Part] = []
    if stage_id == 0:
        taps = (hidden, len(dspark.target_layer_ids) * hidden)
        parts += _scaled("main_proj", taps, Subsystem.MAIN_PROJECTION, scope=Scope.DRAFT)
        parts.append(_plain("main_norm.weight", (hidden,), Subsystem.MAIN_PROJECTION, scope=Scope.DRAFT))
    if stage_id == dspark.num_stages - 1:
        parts.append(_plain("norm.weight", (hidden,), Subsystem.FINAL_NORM, scope=Scope.DRAFT))
        markov = (config.vocab_size, dspark.markov_rank)
        for table in ("markov_head.embed.weight", "markov_head.head.weight"):
            parts.append(_plain(table, markov, Subsystem.MARKOV, scope=Scope.DRAFT, cut=CutRule.AXIS0))
        confidence = (1, hidden + dspark.markov_rank)
        parts.append(_plain("confidence_head.proj.weight", confidence, Subsystem.CONFIDENCE, scope=Scope.DRAFT))
    return parts


def _vision(config: ModelConfig) -> list[TensorSpec]:
    """Tower, aligner and the three delimiter vectors."""
    vision, hidden = config.vision, config.hidden_size
    width, inner = vision.hidden_size, vision.intermediate_size
    folded = width * vision.downsample_ratio**2
    ends: dict[str, tuple[int, ...]] = {
        "aligner.w1.weight": (hidden, folded),
        "aligner.w1.bias": (hidden,),
        "aligner.w2.weight": (hidden, hidden),
        "aligner.w2.bias": (hidden,),
        "vision.patch_embed.proj.weight": (width, PIXEL_CHANNELS * vision.patch_size**2),
        "vision.patch_embed.proj.bias": (width,),
        "vision.norm.weight": (width,),
    }
    block: dict[str, tuple[int, ...]] = {
        "norm1.weight": (width,),
        "norm2.weight": (width,),
        "attn.wqkv.weight": (3 * width, width),
        "attn.wqkv.bias": (3 * width,),
        "attn.wo.weight": (width, width),
        "attn.wo.bias": (width,),
        "mlp.w1.weight": (2 * inner, width),  # gate rows, then up rows
        "mlp.w2.weight": (width, inner),
    }
    specs = _named("", (_vision_part(name, (hidden,), Subsystem.IMAGE_VECTOR) for name in IMAGE_VECTORS))
    specs += _named("", (_vision_part(name, shape, Subsystem.VISION) for name, shape in ends.items()))
    parts = [_vision_part(name, shape, Subsystem.VISION) for name, shape in block.items()]
    for block_id in range(vision.num_layers):
        specs += _named(f"vision.blocks.{block_id}.", parts, block_id)
    return specs


def _vision_part(suffix: str, shape: tuple[int, ...], subsystem: Subsystem) -> _Part:
    return _plain(suffix, shape, subsystem, scope=Scope.VISION)
