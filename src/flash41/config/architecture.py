"""What the model is: one frozen record per mechanism, filled only from config.json.

No field has a default: a checkpoint states everything, and nothing here may fill a gap.  Knows nothing of files,
options, tensors or hardware.  Names follow the specification (`config.md` sections 1 to 3); the reader that maps
config.json keys onto these records is `config.huggingface`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIds:
    """Token ids with a meaning to the model."""

    bos: int
    """Begins every prompt; the encoder writes it."""
    eos: int
    """Ends an assistant turn; never emitted as text."""
    pad: int
    """Padding id of the tokenizer."""
    image: int
    """Placeholder id of every position of an image span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: two tables, chosen per layer by its compress ratio."""

    head_dim: int
    """Rotary channels, the last ones of a head (`qk_rope_head_dim`)."""
    theta: float
    """Base of the layers with ratio 0, no YaRN."""
    compress_theta: float
    """Base of the layers with ratio 1 or 2, with YaRN."""
    yarn_factor: float
    """Divisor of the slow frequencies."""
    yarn_beta_fast: float
    """Rotations over the original length above which a frequency stays."""
    yarn_beta_slow: float
    """Rotations over the original length below which a frequency is divided by the factor."""
    yarn_original_positions: int
    """Positions of the original training length (`original_max_position_embeddings`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """CSA2 attention, the part all four modes share, and the lists that give each layer its mode."""

    num_heads: int
    """Query heads; there is one KV head, and K and V are the same row."""
    head_dim: int
    """Channels of a head and of a latent row."""
    q_lora_rank: int
    """Width of the low-rank query."""
    o_lora_rank: int
    """Rows of one output group."""
    o_groups: int
    """Groups of consecutive heads in the output projection."""
    window: int
    """Positions a query sees of its own layer, its own included (`sliding_window`)."""
    compress_ratios: tuple[int, ...]
    """Tokens per compressed row, one entry per backbone layer and draft stage; 0 = window only."""
    kv_source_layer_ids: tuple[int, ...]
    """Layers that write a compressed plane, ascending."""
    index_source_layer_ids: tuple[int, ...]
    """Layers that score and select rows, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerConfig:
    """Row selection."""

    num_heads: int
    """Index query heads."""
    head_dim: int
    """Channels of an index head and of an index key."""
    topk: int
    """Compressed rows a query reads at most."""
    candidate_source_layer_id: int | None
    """Layer whose scores bound the later scorers, or None."""
    candidate_blocks: int
    """Blocks the candidate source keeps per query (`candidate_topk_blocks`)."""
    candidate_block_size: int
    """Rows per candidate block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Mixture of experts of the backbone; the draft stages change two numbers (`DsparkConfig`)."""

    intermediate_size: int
    """Inner width of every expert, routed or shared."""
    num_experts: int
    """Routed experts."""
    num_experts_per_token: int
    """Routed experts per token."""
    route_scale: float
    """Factor on the normalised routing weights (`routed_scaling_factor`)."""
    swiglu_limit: float
    """Clamp before the product: gate upper side only, up both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MhcConfig:
    """Manifold-constrained hyper-connections."""

    streams: int
    """Residual streams (`hc_mult`)."""
    sinkhorn_iterations: int
    """Row and column normalisations, the softmax counted as the first row."""
    eps: float
    """Added in the gates and the normalisations (`hc_eps`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramConfig:
    """Hashed n-gram tables on the host."""

    layer_ids: tuple[int, ...]
    """Layers in front of which a table is added, ascending."""
    table_rows: tuple[int, ...]
    """Rows of each table (`engram_num_embeddings`)."""
    max_ngram: int
    """Largest n-gram order; the smallest is 2."""
    num_heads: int
    """Hash heads per order."""
    head_dim: int
    """Channels of one row."""
    vocab_size: int
    """Lower bound of the prime moduli."""
    pad_token_id: int
    """Token id that stands for missing history."""
    compressed_vocab_size: int
    """Classes of the token map; a check, the map itself comes from the tokenizer."""

    @property
    def num_columns(self) -> int:
        """Rows gathered per token and layer: orders times heads."""
        return (self.max_ngram - 1) * self.num_heads

    @property
    def width(self) -> int:
        """Channels of the gathered vector."""
        return self.num_columns * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DsparkConfig:
    """The drafter that comes with the checkpoint."""

    num_stages: int
    """Draft stages `mtp.0` ... (`num_nextn_predict_layers`)."""
    block_size: int
    """Tokens drafted per step; part of the model, the block is bidirectional."""
    noise_token_id: int
    """Id of the rows behind the anchor."""
    target_layer_ids: tuple[int, ...]
    """Backbone layers whose inputs feed the drafter, ascending."""
    markov_rank: int
    """Width of the Markov head."""
    num_experts: int
    """Routed experts of a draft stage."""
    num_experts_per_token: int
    """Routed experts per draft row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Vision tower and image sizes."""

    num_layers: int
    """Blocks of the tower."""
    hidden_size: int
    """Channels of the tower."""
    num_heads: int
    """Heads of the tower."""
    intermediate_size: int
    """Inner width of its MLP."""
    patch_size: int
    """Pixels per patch side."""
    rope_theta: float
    """Base of the 2D rotary embedding."""
    downsample_ratio: int
    """Patches per side that fold into one image token."""
    max_image_tokens: int
    """Largest cost of one image, delimiters included."""
    min_pixels: int
    """Smaller images are enlarged to this many pixels."""
    max_wh_ratio: float | None
    """Largest width over height, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The whole model."""

    vocab_size: int
    """Rows of embedding and head."""
    hidden_size: int
    """Channels of the residual."""
    num_layers: int
    """Backbone layers."""
    rms_norm_eps: float
    """Epsilon of every text RMSNorm, the mHC statistic and the Engram statistics."""
    max_positions: int
    """Positions the model was trained for (`max_position_embeddings`)."""
    initializer_range: float
    """Standard deviation of random weights; used only by tools that make checkpoints."""
    tokens: TokenIds
    """Token ids with a meaning."""
    rope: RopeConfig
    """Rotary embedding."""
    attention: AttentionConfig
    """Attention and layer lists."""
    indexer: IndexerConfig
    """Row selection."""
    moe: MoeConfig
    """Experts of the backbone."""
    mhc: MhcConfig
    """Residual streams."""
    engram: EngramConfig
    """N-gram tables."""
    dspark: DsparkConfig
    """Drafter."""
    vision: VisionConfig
    """Vision tower."""
