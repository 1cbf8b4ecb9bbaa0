"""Rules between the values of one model: N5 and N8 to N14, G1 for its widths, and a few divisions the model needs.

Every message is collected; a rule whose operands another rule refuses stays silent.  The rules of single keys live in
the reader, the rules of the layer lists in `topology_rules`.  spec: config.md sections 4.2 and 4.8.
"""

from collections.abc import Iterator

from flash41.config.architecture import ModelConfig
from flash41.config.keys import ROPE_SCALING, TEXT, VISION, Key, keys
from flash41.config.primes import table_rows
from flash41.errors import complaint

MAX_HASH_COLUMNS = 4096
"""Columns of all Engram tables together (the release has 48); bounds the search for their moduli."""

MAX_VOCABULARY = 1 << 24
"""Rows of the embedding (the release has 129,280); the token map lists every id."""

MAX_TENSORS = 2_000_000
"""Tensors of experts and vision blocks (the release has 94,720); bounds what a schema lists."""
TENSORS_PER_EXPERT = 6
TENSORS_PER_VISION_BLOCK = 8


def model_faults(config: ModelConfig) -> list[str]:
    """Messages of every broken rule, in the order of their ids."""
    sizes = list(_sizes(config))
    if sizes:
        # Divisors and moduli below rely on positive sizes.
        return [*sizes, *_draft_stages(config), *_engram_counts(config)]
    return [
        *_attention(config),
        *_draft_stages(config),
        *_engram_counts(config),
        *_engram_rows(config),
        *_widths(config),
        *_vision(config),
        *_extents(config),
    ]


def _value(config: ModelConfig, key: Key) -> int | float | None:
    record = config if key.record is None else getattr(config, key.record)
    value: int | float | None = getattr(record, key.field)
    return value


def _sizes(config: ModelConfig) -> Iterator[str]:  # N5
    for section in (TEXT, ROPE_SCALING, VISION):
        for key in keys(section):
            value = _value(config, key) if key.above is not None else None
            if value is not None and key.above is not None and value <= key.above:
                yield complaint(section.label(key.name), value, f"> {key.above}")


def _attention(config: ModelConfig) -> Iterator[str]:
    attention, rope, moe = config.attention, config.rope, config.moe
    if attention.num_heads % attention.o_groups:  # N8
        yield complaint("num_attention_heads", attention.num_heads, f"a multiple of o_groups {attention.o_groups}")
    if moe.num_experts_per_token > moe.num_experts:  # N9; the draft stages' pair is T15
        yield complaint("num_experts_per_tok", moe.num_experts_per_token, f"<= n_routed_experts {moe.num_experts}")
    narrower = min(attention.head_dim, config.indexer.head_dim)
    if rope.head_dim <= 0 or rope.head_dim % 2 or rope.head_dim > narrower:  # N10
        reason = "rotary channels must fit both heads"
        yield complaint("qk_rope_head_dim", rope.head_dim, f"even, > 0 and <= {narrower}", reason)
    if rope.yarn_beta_fast <= rope.yarn_beta_slow:
        label = ROPE_SCALING.label("beta_fast")
        yield complaint(label, rope.yarn_beta_fast, f"> beta_slow {rope.yarn_beta_slow}", "the ramp has a direction")


def _draft_stages(config: ModelConfig) -> Iterator[str]:  # N11
    if config.dspark.num_stages < 0:
        yield complaint("num_nextn_predict_layers", config.dspark.num_stages, ">= 0")


def _engram_counts(config: ModelConfig) -> Iterator[str]:
    engram = config.engram
    if len(engram.layer_ids) != len(engram.table_rows):  # N12
        expected = f"{len(engram.layer_ids)} (one per entry of engram_layer_ids)"
        yield f"engram_num_embeddings: got {len(engram.table_rows)} sizes, expected {expected}"
    for index, num_rows in enumerate(engram.table_rows):  # N13
        if num_rows <= 0:
            yield complaint(f"engram_num_embeddings[{index}]", num_rows, "> 0")


def _engram_rows(config: ModelConfig) -> Iterator[str]:  # N14
    engram = config.engram
    if list(_engram_counts(config)) or not engram.table_rows:
        return
    num_columns = engram.num_columns * len(engram.table_rows)
    if num_columns > MAX_HASH_COLUMNS:
        yield complaint("engram hash columns", num_columns, f"<= {MAX_HASH_COLUMNS}", "tables x orders x heads")
        return
    expected = table_rows(engram.vocab_size, engram.num_heads, engram.max_ngram, len(engram.table_rows))
    for index, (num_rows, rows) in enumerate(zip(engram.table_rows, expected, strict=True)):
        if num_rows != rows:
            reason = f"sum of {engram.num_columns} primes from engram_vocab_size"
            yield complaint(f"engram_num_embeddings[{index}]", num_rows, str(rows), reason)


def _widths(config: ModelConfig) -> Iterator[str]:  # G1
    attention = config.attention
    widths = {
        "hidden_size": config.hidden_size,
        "head_dim": attention.head_dim,
        "q_lora_rank": attention.q_lora_rank,
        "o_lora_rank": attention.o_lora_rank,
        "index_head_dim": config.indexer.head_dim,
        "moe_intermediate_size": config.moe.intermediate_size,
        "engram_head_dim": config.engram.head_dim,
    }
    for name, width in widths.items():
        if width % 32:
            yield complaint(name, width, "a positive multiple of 32")


def _extents(config: ModelConfig) -> Iterator[str]:
    if config.vocab_size > MAX_VOCABULARY:
        yield complaint("vocab_size", config.vocab_size, f"<= {MAX_VOCABULARY}")
    num_experts = config.num_layers * config.moe.num_experts + config.dspark.num_stages * config.dspark.num_experts
    count = TENSORS_PER_EXPERT * num_experts + TENSORS_PER_VISION_BLOCK * config.vision.num_layers
    if count > MAX_TENSORS:
        yield complaint("tensors of experts and vision blocks", count, f"<= {MAX_TENSORS}", "layers x experts x 6")


def _vision(config: ModelConfig) -> Iterator[str]:
    vision = config.vision
    # A head is four equal parts: pairs of halves, angles of rows and of columns.  spec: vision.md section 4.
    if vision.hidden_size % (4 * vision.num_heads):
        expected = f"a multiple of 4 * num_attention_heads {vision.num_heads}"
        yield complaint("vision_config.hidden_size", vision.hidden_size, expected)
