"""The keys of config.json and the place of each in the records: one table per section, in the order of the release.

The reader and the writer of `config.huggingface` and the size rules of `config.validation` all walk these tables, so a
key is spelled once.  spec: config.md sections 1 to 3.
"""

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What a value may look like in the file."""

    INTEGER = "an integer"
    NUMBER = "a number"
    OPTIONAL_NUMBER = "a number or null"
    INTEGERS = "a list of integers"
    LAYERS = "a list"
    """A list whose entries are judged by the topology rules, which name the entry (T2, T4, T13)."""
    CANDIDATE = "an integer, -1 for none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key with a place in the records."""

    name: str
    """Key in config.json."""
    kind: Kind
    """Form of the value."""
    record: str | None
    """Attribute of `ModelConfig` that holds the record, or None for `ModelConfig` itself."""
    field: str
    """Field of that record."""
    above: int | None = None
    """The value must be greater than this, or None for no bound here."""
    whole: bool = False
    """Whether the release writes this float without a fraction, and so does the writer where it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A key whose value the engine relies on: checked on reading, written on writing, kept nowhere."""

    name: str
    """Key in config.json."""
    value: object
    """The one accepted value."""
    reason: str | None = None
    """Why, for the message."""
    label: str | None = None
    """Name in the message, where it is not section and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Information:
    """An optional key that says nothing to the engine: any string is read, the release's is written."""

    name: str
    """Key in config.json."""
    value: str
    """What the writer states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One JSON object: its path in messages and its keys."""

    path: str
    """Dotted path, empty for the root."""
    entries: tuple["Key | Constant | Information | Section", ...]
    """Keys in the order of the release, all required but `Information`."""
    ignored: tuple[str, ...] = ()
    """Optional keys that say nothing to the engine."""
    copies: tuple[str, ...] = ()
    """Optional keys that repeat a value of the root and must be equal to it."""

    @property
    def name(self) -> str:
        """Key of this object in the object around it."""
        return self.path.rpartition(".")[2]

    def label(self, key: str) -> str:
        """A key as messages name it."""
        return f"{self.path}.{key}" if self.path else key


_ONLY = "the engine computes only that"


def _size(name: str, record: str | None, field: str, above: int | None = 0) -> Key:
    return Key(name=name, kind=Kind.INTEGER, record=record, field=field, above=above)


def _number(name: str, record: str | None, field: str, above: int = 0, whole: bool = False) -> Key:
    return Key(name=name, kind=Kind.NUMBER, record=record, field=field, above=above, whole=whole)


def _layers(name: str, record: str, field: str) -> Key:
    return Key(name=name, kind=Kind.LAYERS, record=record, field=field)


QUANTIZATION = Section(
    path="quantization_config",
    entries=(
        Constant(name="quant_method", value="fp8", reason="only the native FP8 checkpoint can be read"),
        Constant(
            name="activation_scheme",
            value="dynamic",
            reason="activations are quantised per 32 channels at run time",
        ),
        Constant(name="weight_block_size", value=[32, 32], reason="dense weights carry one scale per 32x32 tile"),
        Constant(name="scale_fmt", value="ue8m0", reason="dense scales are powers of two"),
        Constant(name="expert_dtype", value="fp4", reason="routed experts are the packed FP4 of the checkpoint"),
    ),
)

ROPE_SCALING = Section(
    path="text_config.rope_scaling",
    entries=(
        Constant(name="rope_type", value="yarn", reason=_ONLY),
        _number("factor", "rope", "yarn_factor", whole=True),
        _number("beta_fast", "rope", "yarn_beta_fast", whole=True),
        _number("beta_slow", "rope", "yarn_beta_slow", whole=True),
        _size("original_max_position_embeddings", "rope", "yarn_original_positions"),
    ),
)

TEXT = Section(
    path="text_config",
    entries=(
        Constant(name="model_type", value="deepseek_v41_text"),
        _size("vocab_size", None, "vocab_size"),
        _size("hidden_size", None, "hidden_size"),
        _size("num_hidden_layers", None, "num_layers"),
        _size("num_nextn_predict_layers", "dspark", "num_stages", above=None),
        _size("num_attention_heads", "attention", "num_heads"),
        Constant(
            name="num_key_value_heads",
            value=1,
            reason="one latent row per token serves all heads",
            label="num_key_value_heads",
        ),
        _size("head_dim", "attention", "head_dim"),
        _size("qk_rope_head_dim", "rope", "head_dim", above=None),
        _size("q_lora_rank", "attention", "q_lora_rank"),
        _size("o_lora_rank", "attention", "o_lora_rank"),
        _size("o_groups", "attention", "o_groups"),
        _size("sliding_window", "attention", "window"),
        _number("rms_norm_eps", None, "rms_norm_eps"),
        Constant(name="attention_bias", value=False, reason=_ONLY),
        Constant(name="attention_dropout", value=0.0, reason=_ONLY),
        Constant(name="hidden_act", value="silu", reason=_ONLY),
        _number("initializer_range", None, "initializer_range"),
        Constant(name="use_cache", value=True, reason=_ONLY),
        Constant(name="tie_word_embeddings", value=False, reason=_ONLY),
        _size("max_position_embeddings", None, "max_positions"),
        _number("rope_theta", "rope", "theta", above=1, whole=True),
        _number("compress_rope_theta", "rope", "compress_theta", above=1, whole=True),
        ROPE_SCALING,
        _layers("compress_ratios", "attention", "compress_ratios"),
        _layers("kv_source_layer_ids", "attention", "kv_source_layer_ids"),
        _layers("index_source_layer_ids", "attention", "index_source_layer_ids"),
        _size("index_n_heads", "indexer", "num_heads"),
        _size("index_head_dim", "indexer", "head_dim"),
        _size("index_topk", "indexer", "topk"),
        Key(
            name="candidate_source_layer_id",
            kind=Kind.CANDIDATE,
            record="indexer",
            field="candidate_source_layer_id",
        ),
        _size("candidate_topk_blocks", "indexer", "candidate_blocks", above=None),
        _size("candidate_block_size", "indexer", "candidate_block_size", above=None),
        _size("moe_intermediate_size", "moe", "intermediate_size"),
        _size("n_routed_experts", "moe", "num_experts"),
        Constant(name="n_shared_experts", value=1, label="n_shared_experts"),
        _size("num_experts_per_tok", "moe", "num_experts_per_token"),
        Constant(name="scoring_func", value="sqrtsoftplus", reason=_ONLY),
        Constant(name="topk_method", value="noaux_tc", reason=_ONLY),
        Constant(name="norm_topk_prob", value=True, reason=_ONLY),
        _number("routed_scaling_factor", "moe", "route_scale"),
        _number("swiglu_limit", "moe", "swiglu_limit"),
        _size("hc_mult", "mhc", "streams"),
        _size("hc_sinkhorn_iters", "mhc", "sinkhorn_iterations"),
        _number("hc_eps", "mhc", "eps"),
        _layers("engram_layer_ids", "engram", "layer_ids"),
        Key(name="engram_num_embeddings", kind=Kind.INTEGERS, record="engram", field="table_rows"),
        _size("engram_max_ngram_size", "engram", "max_ngram", above=1),
        _size("engram_n_heads", "engram", "num_heads"),
        _size("engram_head_dim", "engram", "head_dim"),
        _size("engram_vocab_size", "engram", "vocab_size"),
        _size("engram_pad_token_id", "engram", "pad_token_id", above=None),
        _size("engram_compressed_vocab_size", "engram", "compressed_vocab_size"),
        _size("dspark_block_size", "dspark", "block_size"),
        _size("dspark_noise_token_id", "dspark", "noise_token_id", above=None),
        _layers("dspark_target_layer_ids", "dspark", "target_layer_ids"),
        _size("dspark_markov_rank", "dspark", "markov_rank"),
        _size("dspark_n_routed_experts", "dspark", "num_experts"),
        _size("dspark_num_experts_per_tok", "dspark", "num_experts_per_token"),
    ),
    ignored=("engram_kernel_size", "engram_seed"),
    copies=("dtype", "bos_token_id", "eos_token_id", "pad_token_id", "image_token_id", "quantization_config"),
)

VISION = Section(
    path="vision_config",
    entries=(
        Constant(name="model_type", value="deepseek_v41_vision"),
        _size("num_hidden_layers", "vision", "num_layers"),
        _size("hidden_size", "vision", "hidden_size"),
        _size("num_attention_heads", "vision", "num_heads"),
        _size("intermediate_size", "vision", "intermediate_size"),
        _size("patch_size", "vision", "patch_size"),
        _number("rope_theta", "vision", "rope_theta", above=1, whole=True),
        _size("downsample_ratio", "vision", "downsample_ratio"),
        _size("max_image_tokens", "vision", "max_image_tokens"),
        _size("min_pixels", "vision", "min_pixels"),
        Key(name="max_wh_ratio", kind=Kind.OPTIONAL_NUMBER, record="vision", field="max_wh_ratio", above=0),
    ),
)

ROOT = Section(
    path="",
    entries=(
        Constant(name="architectures", value=["DeepseekV41ForCausalLM"]),
        Constant(name="model_type", value="deepseek_v41"),
        Constant(name="dtype", value="bfloat16", reason=_ONLY),
        Information(name="transformers_version", value="5.6.0"),
        _size("bos_token_id", "tokens", "bos", above=None),
        _size("eos_token_id", "tokens", "eos", above=None),
        _size("pad_token_id", "tokens", "pad", above=None),
        _size("image_token_id", "tokens", "image", above=None),
        QUANTIZATION,
        TEXT,
        VISION,
    ),
    ignored=("_name_or_path",),
)


def keys(section: Section) -> tuple[Key, ...]:
    """The keys of a section that lie in the records, those of its inner objects left out."""
    return tuple(entry for entry in section.entries if isinstance(entry, Key))
