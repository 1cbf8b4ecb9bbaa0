"""Rules T1 to T15: what the layer lists must keep, evaluated in the order of the specification.

Each rule is a generator of messages, and `check_topology` raises the first message of all.  The official program has
none of these checks; a wrong list there reads another owner's rows in silence.  spec: config.md section 4.3.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from flash41.config.architecture import ModelConfig
from flash41.errors import ConfigError, complaint


def check_topology(config: ModelConfig) -> None:
    """Raises ConfigError for the first broken rule."""
    for fault in topology_faults(config):
        raise ConfigError(fault)


def topology_faults(config: ModelConfig) -> Iterator[str]:
    """Messages of the broken rules, in the order of the specification; only the first is sure to be meaningful.

    A rule may rely on the ones before it, so a caller stops at the first message.
    """
    yield from _ratios(config)
    yield from _layer_lists(config)
    yield from _sources(config)
    yield from _candidates(config)
    yield from owner_faults(
        config.attention.compress_ratios[: config.num_layers],
        config.attention.kv_source_layer_ids,
        config.attention.index_source_layer_ids,
    )
    yield from _taps(config)
    yield from _token_ids(config)
    yield from _draft_experts(config)
    yield from _candidate_owner(config)


def largest_at_or_below(sources: Sequence[int], layer_id: int) -> int | None:
    """The closed form of an owner: the largest listed source <= layer_id, or None.  spec: config.md section 5.1."""
    return max((source for source in sources if source <= layer_id), default=None)


def _is_int(value: object) -> bool:
    # Lists come from JSON unconverted, and a bool is an int to Python.
    return type(value) is int


def _ratios(config: ModelConfig) -> Iterator[str]:
    ratios, num_layers = config.attention.compress_ratios, config.num_layers
    expected = num_layers + config.dspark.num_stages
    if len(ratios) != expected:  # T1
        yield f"compress_ratios: got {len(ratios)} entries, expected {expected} (backbone + draft)"
    for index, ratio in enumerate(ratios):  # T2
        if not _is_int(ratio) or ratio not in (0, 1, 2):
            yield complaint(f"compress_ratios[{index}]", ratio, "0, 1 or 2")
    for index, ratio in enumerate(ratios[num_layers:], num_layers):  # T3
        if ratio != 0:
            reason = f"draft layer {index - num_layers} must be window-only"
            yield complaint(f"compress_ratios[{index}]", ratio, "0", reason)


def _layer_lists(config: ModelConfig) -> Iterator[str]:  # T4
    yield from _layer_list("kv_source_layer_ids", config.attention.kv_source_layer_ids, config.num_layers)
    yield from _layer_list("index_source_layer_ids", config.attention.index_source_layer_ids, config.num_layers)
    yield from _layer_list("engram_layer_ids", config.engram.layer_ids, config.num_layers)


def _layer_list(name: str, layer_ids: Sequence[int], num_layers: int) -> Iterator[str]:
    for index, layer_id in enumerate(layer_ids):
        if not _is_int(layer_id) or not 0 <= layer_id < num_layers:
            yield complaint(f"{name}[{index}]", layer_id, f"an int in [0, {num_layers})")
    if any(left >= right for left, right in pairwise(layer_ids)):
        yield complaint(name, list(layer_ids), "strictly ascending without duplicates")


def _sources(config: ModelConfig) -> Iterator[str]:
    attention = config.attention
    for layer_id in attention.kv_source_layer_ids:  # T5
        if layer_id not in attention.index_source_layer_ids:
            yield (
                f"kv_source_layer_ids: layer {layer_id} holds compressed KV but nobody scores it, "
                "expected it in index_source_layer_ids"
            )
    for layer_id in attention.index_source_layer_ids:  # T6
        if attention.compress_ratios[layer_id] == 0:
            yield f"index_source_layer_ids: layer {layer_id} is window-only, expected ratio 1 or 2"


def _candidates(config: ModelConfig) -> Iterator[str]:
    indexer, source = config.indexer, config.indexer.candidate_source_layer_id
    if source is None:
        return
    if source not in config.attention.index_source_layer_ids:  # T7
        yield complaint("candidate_source_layer_id", source, "-1 or an index source")
    blocks, size = indexer.candidate_blocks, indexer.candidate_block_size
    if blocks <= 0 or size <= 0:  # T8
        yield f"candidate_topk_blocks / candidate_block_size: got {blocks} / {size}, expected > 0"
    # T9: the newest block is always kept and may hold a single row (decision D9).
    guaranteed = blocks * size - (size - 1)
    if guaranteed < indexer.topk:
        yield (
            f"candidate blocks: got {guaranteed} guaranteed rows ({blocks} x {size} - {size - 1}), "
            f"expected >= index_topk {indexer.topk}"
        )


def owner_faults(ratios: Sequence[int], kv_sources: Sequence[int], index_sources: Sequence[int]) -> Iterator[str]:
    """Rules T10 and T11 over the backbone.  T5 implies T11; it stays for lists that no T5 has seen."""
    owned = [(layer_id, ratio) for layer_id, ratio in enumerate(ratios) if ratio]
    for layer_id, ratio in owned:  # T10
        owner = largest_at_or_below(kv_sources, layer_id)
        if owner is None or ratios[owner] != ratio:
            yield f"layer {layer_id}: no KV owner of ratio {ratio} at or before it"
    for layer_id, _ in owned:  # T11
        owner, scorer = (largest_at_or_below(sources, layer_id) for sources in (kv_sources, index_sources))
        if owner is not None and (scorer is None or scorer < owner):
            yield (
                f"layer {layer_id}: scorer {scorer} is older than KV owner {owner}, "
                "it would reuse another owner's selection"
            )


def _taps(config: ModelConfig) -> Iterator[str]:  # T13
    if config.dspark.num_stages and not config.dspark.target_layer_ids:
        yield complaint("dspark_target_layer_ids", [], "at least one layer", "the first draft stage reads it")
        return
    previous = -1
    for index, layer_id in enumerate(config.dspark.target_layer_ids):
        is_backbone = _is_int(layer_id) and 0 <= layer_id < config.num_layers
        if not is_backbone or layer_id <= previous or layer_id in config.engram.layer_ids:
            yield complaint(f"dspark_target_layer_ids[{index}]", layer_id, "a backbone layer without Engram, ascending")
            return
        previous = layer_id


def _token_ids(config: ModelConfig) -> Iterator[str]:  # T14
    # The rule names the first two; every other id with a meaning is looked up in the same tables.
    token_ids = {
        "dspark_noise_token_id": config.dspark.noise_token_id,
        "image_token_id": config.tokens.image,
        "bos_token_id": config.tokens.bos,
        "eos_token_id": config.tokens.eos,
        "pad_token_id": config.tokens.pad,
        "engram_pad_token_id": config.engram.pad_token_id,
    }
    for name, token_id in token_ids.items():
        if not 0 <= token_id < config.vocab_size:
            remedy = "and not negative" if token_id < 0 else None
            yield complaint(name, token_id, f"< vocab_size {config.vocab_size}", remedy)


def _draft_experts(config: ModelConfig) -> Iterator[str]:  # T15
    chosen, total = config.dspark.num_experts_per_token, config.dspark.num_experts
    if chosen > total:
        yield complaint("dspark_num_experts_per_tok", chosen, f"<= dspark_n_routed_experts {total}")


def _candidate_owner(config: ModelConfig) -> Iterator[str]:  # T12
    source, kv_sources = config.indexer.candidate_source_layer_id, config.attention.kv_source_layer_ids
    if source is None:
        return
    expected = largest_at_or_below(kv_sources, source)
    for layer_id in range(source, config.num_layers):
        owner = largest_at_or_below(kv_sources, layer_id)
        if config.attention.compress_ratios[layer_id] and owner != expected:
            yield f"layer {layer_id}: KV owner {owner} differs from the candidate source's owner {expected}"
