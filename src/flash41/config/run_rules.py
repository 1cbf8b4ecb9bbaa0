"""Which switches contradict each other, the model or this engine: rules Q6, R1 to R15, S1 to S6, all collected.

Rules that need geometry, files or ranks (G, P2 to P4, S7) belong to planning.  What the rules admit and this engine
does not do yet is refused as `unavailable: ...`, so that no switch is ignored.  spec: config.md sections 4.1, 4.4, 4.5.
"""

from collections.abc import Callable, Iterator

from flash41.config.architecture import ModelConfig
from flash41.config.run import PoolDtype, Profile, RunWish
from flash41.errors import ConfigError, combined, complaint

MOST_THREADS = 1024
"""More than any machine has cores; a thread runtime ends the process where it cannot make as many."""

_GRAPH_MODES = ("FULL", "PIECEWISE")
_DEFAULT_CONNECTOR = "moriio"
"""What a transfer without a connector means in the serving engines; named so that the message shows it."""
_CONNECTOR = "lmcache_mp"


def refusals(wish: RunWish, config: ModelConfig) -> list[str]:
    """Messages of every rule that the wish breaks for this model, in the order of their ids; empty if none."""
    return [*broken_rules(wish, config), *_unavailable(wish, config)]


def broken_rules(wish: RunWish, config: ModelConfig) -> list[str]:
    """The same without what the rules admit and this engine does not do yet, for who only counts."""
    rules: tuple[Callable[[RunWish, ModelConfig], Iterator[str]], ...] = (
        _sizes,
        _execution,
        _parallel_sizes,
        _transfer,
        _unsupported,
        _pools,
        _replay,
        _speculation,
    )
    return [fault for rule in rules for fault in rule(wish, config)]


def check(wish: RunWish, config: ModelConfig) -> None:
    """Raises one ConfigError with every refusal."""
    faults = refusals(wish, config)
    if faults:
        raise ConfigError(combined(faults, None if len(faults) == 1 else f"options: {len(faults)} faults"))


def _sizes(wish: RunWish, config: ModelConfig) -> Iterator[str]:
    sizes = {
        "block_size": wish.block_size,
        "max_model_len": wish.max_model_len,
        "max_num_seqs": wish.max_num_seqs,
        "max_num_batched_tokens": wish.max_num_batched_tokens,
        "memory_bytes": wish.memory_bytes,
        "state_image_interval": wish.state_image_interval,
        "threads": wish.threads,
    }
    given: dict[str, object] = {name: value for name, value in sizes.items() if value is not None}
    odd = {name: value for name, value in given.items() if isinstance(value, bool) or not isinstance(value, int)}
    yield from (complaint(name, value, "an integer") for name, value in odd.items())
    if odd:
        return  # nothing can be said of their extent
    for name, value in sizes.items():
        if value is not None and value <= 0:
            yield complaint(name, value, "> 0")
    if wish.threads is not None and wish.threads > MOST_THREADS:
        yield complaint("threads", wish.threads, f"<= {MOST_THREADS}")
    if wish.max_model_len is not None and wish.max_model_len > config.max_positions:
        expected = f"<= max_position_embeddings {config.max_positions}"
        yield complaint("max_model_len", wish.max_model_len, expected)
    if wish.expert_activations != "mxfp8":  # Q6
        reason = "MXFP4 activations shift routed output by about 12 %"
        yield complaint("expert activations", wish.expert_activations, "'mxfp8'", reason)


def _execution(wish: RunWish, _: ModelConfig) -> Iterator[str]:
    if not wish.eager and wish.graph_mode not in _GRAPH_MODES:  # R1
        yield complaint("graph_mode", wish.graph_mode, "FULL, PIECEWISE or eager execution")
    if wish.level not in (0, 3):  # R2
        yield complaint("level", wish.level, "0 or 3")
    if wish.level == 3 and not wish.eager and wish.graph_mode != "FULL":  # R3
        yield complaint("graph_mode", wish.graph_mode, "FULL at level 3 (or eager)")


def _parallel_sizes(wish: RunWish, _: ModelConfig) -> Iterator[str]:
    for name in ("pipeline_parallel_size", "prefill_context_parallel_size", "decode_context_parallel_size"):  # R4
        if getattr(wish, name) != 1:
            yield complaint(name, getattr(wish, name), "1", "only tensor and expert parallelism")
    if wish.data_parallel_size != 1:  # R5
        yield complaint("data_parallel_size", wish.data_parallel_size, "1")
    if wish.data_parallel_attention:
        yield complaint("data_parallel_attention", True, "False with data_parallel_size 1")
    for name in ("tensor_parallel_size", "expert_parallel_size"):  # P1
        if getattr(wish, name) < 1:
            yield complaint(name, getattr(wish, name), ">= 1")


def _transfers(wish: RunWish) -> bool:
    return wish.kv_transfer or wish.kv_connector is not None


def _canonical_connector(wish: RunWish) -> str:
    name = _DEFAULT_CONNECTOR if wish.kv_connector is None else wish.kv_connector
    return name.strip().lower().replace("-", "_")


def _transfer(wish: RunWish, _: ModelConfig) -> Iterator[str]:  # R7
    for name in ("decoder_replay", "prefix_replay"):
        if getattr(wish, name) and wish.drafts:
            yield f"unavailable: {name} with drafts (use one of them)"
    if _transfers(wish) and _canonical_connector(wish) != _CONNECTOR:
        got = _DEFAULT_CONNECTOR if wish.kv_connector is None else wish.kv_connector
        yield complaint("kv_connector", got, f"'{_CONNECTOR}'", "this connector moves PAGE but not STATE")


def _unsupported(wish: RunWish, _: ModelConfig) -> Iterator[str]:  # R6, R8, R9, R10
    for name in ("two_batch_overlap", "prefill_decode_split", "online_quantization", "expert_load_balancing"):
        if getattr(wish, name):
            yield f"{name}: not supported"
    if wish.plugin_mode is not None:
        yield complaint("plugin mode", wish.plugin_mode, "the native engine")


def _either(pools: tuple[PoolDtype, ...]) -> str:
    return " or ".join(repr(pool.value) for pool in pools)


def _pools(wish: RunWish, _: ModelConfig) -> Iterator[str]:
    profile, pool = wish.profile, wish.pool
    if profile is Profile.FP32:  # R15
        for dtype in (pool.main, pool.index):
            if dtype is not PoolDtype.FP32:
                yield f"profile fp32: got pool {dtype.value!r}, expected fp32"
    else:
        if pool.index not in profile.index_pools:  # R11
            yield complaint("index_cache_dtype", pool.index.value, _either(profile.index_pools))
        if pool.main not in profile.main_pools:  # R12
            reason = "there is no FP8 main pool"
            yield complaint("kv_cache_dtype", pool.main.value, _either(profile.main_pools), reason)
    if wish.block_size % 2:  # R13
        yield complaint("block_size", wish.block_size, "even", "ratio 2 needs whole pairs")


def _replay(wish: RunWish, config: ModelConfig) -> Iterator[str]:  # R14
    sources = config.attention.kv_source_layer_ids
    if wish.prefix_replay and not wish.prefix_cache:
        yield "replay: got prefix_replay without the prefix cache, expected both or neither"
    if wish.prefix_replay and wish.profile.stale_index_slots:
        yield complaint("profile", wish.profile.value, "another with prefix_replay", "its rows depend on the cut")
    if not wish.decoder_replay:
        return
    if not sources or sources[-1] >= config.num_layers - 1:
        last = sources[-1] if sources else None
        yield f"replay: got no layer behind the last KV source {last}, expected at least one to skip"
        return
    for layer_id in config.engram.layer_ids:
        if layer_id > sources[-1]:
            yield f"replay: Engram layer {layer_id} lies behind the last KV source {sources[-1]}, expected before it"


def _speculation(wish: RunWish, config: ModelConfig) -> Iterator[str]:
    width = config.dspark.block_size
    if wish.drafts and config.dspark.num_stages == 0:
        yield complaint("draft", wish.draft.value, "'off'", "this checkpoint has no draft stages")
    if wish.draft_accept is not None and not wish.drafts:
        expected = f"'on' or 'adaptive' with draft_accept {wish.draft_accept.value!r}"
        yield complaint("draft", wish.draft.value, expected, "it says which drafts stay")
    if wish.draft_method != "dspark":  # S1
        yield complaint("speculative.method", wish.draft_method, "'dspark'")
    if wish.num_draft_tokens is not None and wish.num_draft_tokens != width:  # S2
        reason = "the block is bidirectional, its width is part of the model"
        yield complaint("speculative.num_tokens", wish.num_draft_tokens, str(width), reason)
    if wish.draft_model is not None and wish.draft_model != wish.model:  # S3
        yield complaint("speculative.model", str(wish.draft_model), "the target checkpoint")
    if wish.drafts and wish.profile is Profile.ATOM and wish.pool.main is not PoolDtype.BF16:  # S4
        yield complaint("kv_cache_dtype", wish.pool.main.value, "'bf16' with DSpark")
    if wish.relaxed_acceptance:  # S5
        yield "speculative.relaxed: expected strict verification"
    if wish.ragged_verification != (wish.calibration_profile is not None):  # S6
        absent = "calibration profile" if wish.ragged_verification else "ragged verification"
        yield f"speculative.schedule: got no {absent}, expected ragged verification and a calibration profile"


def _unavailable(wish: RunWish, _: ModelConfig) -> Iterator[str]:
    """What the specification admits and this engine does not do; each passed its rule above."""
    if not wish.eager and wish.graph_mode in _GRAPH_MODES:
        yield f"unavailable: graph_mode {wish.graph_mode!r} (run eagerly)"
    if wish.level == 3:
        yield "unavailable: level 3 (use level 0)"
    for name in ("tensor_parallel_size", "expert_parallel_size"):
        if getattr(wish, name) > 1:
            yield f"unavailable: {name} {getattr(wish, name)} (use 1)"
    if _transfers(wish) and _canonical_connector(wish) == _CONNECTOR:
        yield f"unavailable: kv_connector {_CONNECTOR!r} (leave the transfer off)"
    if wish.ragged_verification and wish.calibration_profile is not None:
        yield "unavailable: a calibration profile (draft 'adaptive' measures while it runs)"
