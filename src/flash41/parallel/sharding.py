"""How ranks divide a model: which tensors are cut, where, and which sizes admit it.  Integers only.

    wq_b [32768, 1280] over 4 ranks, AXIS0      rank 1 holds rows 8192 .. 16383
    experts 0 .. 383 over 4 ranks, EXPERT       rank 1 holds experts 96 .. 191, whole
    Engram rows 384006168 over 4 ranks, ROWS    ceil: 96001542 each, the last rank padded where rows run out

Project rule: indexer, compressor and router are replicated, so that all ranks pick bit-identical rows and experts.
Knows nothing of the model's records; sizes come in as numbers.  spec: checkpoint.md section 6, config.md section 4.7.
"""

import enum
import re
from dataclasses import dataclass

from flash41.errors import ConfigError, combined, complaint

SCALE_BLOCK = 32
"""Channels, or rows of a dense weight, that share a scale; no cut may divide them."""


class Cut(enum.Enum):
    """How one tensor is divided over the ranks of a group."""

    REPLICATED = "replicated"
    """Every rank holds it."""
    AXIS0 = "axis 0"
    """Equal parts of the output rows."""
    AXIS1 = "axis 1"
    """Equal parts of the input channels; partial products are summed in FP32."""
    VOCAB = "vocabulary"
    """Equal parts of the token ids, axis 0; rows are BF16 or FP32, no scale divides them."""
    EXPERT = "expert"
    """Whole tensors, by contiguous ranges of expert ids."""
    ROWS = "rows"
    """Ranges of ceil(rows / world) of axis 0; the last ones are padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelCounts:
    """The numbers of a model that ranks divide, named as in config.json."""

    num_attention_heads: int
    index_n_heads: int
    o_groups: int
    moe_intermediate_size: int
    vocab_size: int
    n_routed_experts: int
    dspark_n_routed_experts: int
    head_dim: int
    o_lora_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one rank holds of a tensor."""

    shape: tuple[int, ...]
    """Shape on the rank, padding included."""
    axis: int | None
    """Axis that is cut, None for a whole tensor."""
    start: int
    """First index along the axis."""
    stop: int
    """Index behind the last one that exists."""
    num_padded: int
    """Indices appended where the tensor has run out."""


def parallel_faults(counts: ParallelCounts, tp: int, ep: int) -> list[str]:
    """Messages of the rules P1 to P4 for tensor-parallel size `tp` and expert-parallel size `ep`, all of them."""
    faults = [
        complaint(name, size, ">= 1")  # P1
        for name, size in (("tensor_parallel_size", tp), ("expert_parallel_size", ep))
        if size < 1
    ]
    if faults:
        return faults
    return [*_count_faults(counts, tp, ep), *_block_faults(counts, tp, ep)]


def check_parallel(counts: ParallelCounts, tp: int, ep: int) -> None:
    """Raises one ConfigError with every broken rule of P1 to P4.  spec: config.md section 4.7."""
    faults = parallel_faults(counts, tp, ep)
    if faults:
        raise ConfigError(combined(faults))


def _count_faults(counts: ParallelCounts, tp: int, ep: int) -> list[str]:
    by_tensor = {  # P2; the vocabulary is no part of the rule's list, yet its cut has no padding
        "num_attention_heads": counts.num_attention_heads,
        "index_n_heads": counts.index_n_heads,
        "o_groups": counts.o_groups,
        "moe_intermediate_size": counts.moe_intermediate_size,
        "vocab_size": counts.vocab_size,
    }
    by_expert = {  # P3
        "n_routed_experts": counts.n_routed_experts,
        "dspark_n_routed_experts": counts.dspark_n_routed_experts,
    }
    return [
        *(_multiple(name, size, "tensor", tp) for name, size in by_tensor.items() if size % tp),
        *(_multiple(name, size, "expert", ep) for name, size in by_expert.items() if size % ep),
    ]


def _multiple(name: str, size: int, group: str, world: int) -> str:
    return complaint(name, size, f"a multiple of {group}-parallel size {world}")


def _block_faults(counts: ParallelCounts, tp: int, ep: int) -> list[str]:  # P4
    output_rows = counts.o_groups * counts.o_lora_rank
    cuts = [
        ("attn.wq_b", 0, counts.num_attention_heads * counts.head_dim),
        ("attn.wo_a", 0, output_rows),
        ("attn.wo_b", 1, output_rows),
    ]
    if ep == 1:
        # Without expert parallelism the experts themselves are cut; K of packed FP4 is counted in channels, not bytes.
        width = counts.moe_intermediate_size
        cuts += [("ffn.experts.w1", 0, width), ("ffn.experts.w2", 1, width), ("ffn.experts.w3", 0, width)]
    return [
        _crossing(name, size // tp, axis)
        for name, axis, size in cuts
        if size % tp == 0 and tp > 1 and (size // tp) % SCALE_BLOCK
    ]


def _crossing(name: str, position: int, axis: int) -> str:
    return f"{name}: cut at {position} along axis {axis}, expected a multiple of {SCALE_BLOCK}"


def shard(shape: tuple[int, ...], cut: Cut, rank: int, world: int, name: str = "tensor", block: int = 1) -> Shard:
    """What `rank` of `world` holds of a tensor of `shape`.

    `block` is the number of indices along the cut axis that must stay together: 32 where they share a scale, 16 for the
    bytes of packed FP4 channels, 1 for scales and unscaled tensors.  Raises ConfigError when an equal cut does not
    exist or would divide a block.
    """
    assert 0 <= rank < world, (rank, world)
    if cut in (Cut.REPLICATED, Cut.EXPERT):
        return Shard(shape=shape, axis=None, start=0, stop=shape[0] if shape else 1, num_padded=0)
    axis = 1 if cut is Cut.AXIS1 else 0
    size = shape[axis]
    if cut is Cut.ROWS:
        share = -(-size // world)
    else:
        if size % world:
            raise ConfigError(complaint(f"{name} axis {axis}", size, f"a multiple of {world} ranks"))
        share = size // world
        if world > 1 and share % block:
            raise ConfigError(f"{name}: cut at {share} along axis {axis}, expected a multiple of {block}")
    start, stop = min(rank * share, size), min((rank + 1) * share, size)
    return Shard(
        shape=(*shape[:axis], share, *shape[axis + 1 :]),
        axis=axis,
        start=start,
        stop=stop,
        num_padded=share - (stop - start),
    )


def expert_range(num_experts: int, rank: int, world: int) -> range:
    """Ids of the experts that `rank` of `world` holds, contiguous.  Raises ConfigError when shares are not equal."""
    assert 0 <= rank < world, (rank, world)
    if num_experts % world:
        raise ConfigError(_multiple("n_routed_experts", num_experts, "expert", world))
    share = num_experts // world
    return range(rank * share, (rank + 1) * share)


_BLOCK_PREFIX = re.compile(r"(?:layers|mtp)\.\d+\.")
_EXPERT = re.compile(r"ffn\.experts\.\d+\.w([123])\.(?:weight|scale)")
_CUTS = (
    (Cut.VOCAB, ("embed.weight", "head.weight", "markov_head.embed.weight", "markov_head.head.weight")),
    (Cut.AXIS0, ("attn.wq_b.weight", "attn.wq_b.scale", "attn.attn_sink", "attn.wo_a.weight", "attn.wo_a.scale")),
    (Cut.AXIS1, ("attn.wo_b.weight", "attn.wo_b.scale")),
    (Cut.ROWS, ("engram.embed.weight", "engram.embed.scale")),
)


def cut_of(name: str, expert_parallel: bool) -> Cut:
    """The cut of a tensor by its name in the checkpoint; replicated unless listed, as the project rule wants.

    Names are compared whole behind the layer or stage: `engram.embed` is no `embed`, `markov_head.head` no `head`.
    """
    family = _BLOCK_PREFIX.sub("", name, count=1) if _BLOCK_PREFIX.match(name) else name
    expert = _EXPERT.fullmatch(family)
    if expert:
        if expert_parallel:
            return Cut.EXPERT
        return Cut.AXIS1 if expert[1] == "2" else Cut.AXIS0
    return next((cut for cut, families in _CUTS if family in families), Cut.REPLICATED)
