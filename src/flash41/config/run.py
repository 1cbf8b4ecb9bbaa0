"""What the user wants: the numerical profile, the storage of the pools, and every switch of a run.

A wish is a request, not a plan: `config.run_rules` says what it contradicts, planning turns it into what will happen.
Knows nothing of hardware, geometry or tensors.  spec: README.md section 7, config.md section 4.4, runtime.md section 2.
"""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DEFAULT_IMAGE_INTERVAL = 8192
"""Tokens between the state images of a long prompt (spec: cache.md section 7)."""


class PoolDtype(enum.Enum):
    """How rows of a pool are stored.  spec: cache.md section 2."""

    BF16 = "bf16"
    FP4 = "fp4"
    FP8 = "fp8"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFormat:
    """Storage of the two pools."""

    main: PoolDtype
    """Latent rows."""
    index: PoolDtype
    """Index keys."""


class Profile(enum.Enum):
    """Which roundings a run performs.  spec: README.md section 7."""

    VENDOR = "vendor"
    """The released model."""
    ATOM = "atom"
    """The roundings of the ATOM engine: FP8 index plane, FP8 `wo_a`."""
    FP32 = "fp32"
    """No BF16 store and no rounding of activations or rows; for analysis."""
    DEMO = "demo"
    """As `VENDOR`, with the official demo's index slots and score chain; for comparing traces."""

    @property
    def bf16_stores(self) -> bool:
        """Whether results between operations are stored as BF16; FP32 throughout otherwise."""
        return self is not Profile.FP32

    @property
    def quantizes_activations(self) -> bool:
        """Whether inputs of FP8 and FP4 linears are rounded to FP8, 32 channels to a scale."""
        return self is not Profile.FP32

    @property
    def rounds_kv(self) -> bool:
        """Whether window rows make the FP8/32 and compressed rows the FP4/16 round trip."""
        return self is not Profile.FP32

    def index_rounding(self, index: PoolDtype) -> Literal["fp4", "fp8"] | None:
        """Rounding of index q and k: FP4/32, one FP8 scale per row, or None.

        Only `ATOM` depends on the index pool: with FP4 rows it rounds as `VENDOR` does.
        """
        if self is Profile.FP32:
            return None
        return "fp8" if self is Profile.ATOM and index is PoolDtype.FP8 else "fp4"

    @property
    def wo_a(self) -> Literal["bf16", "fp8", "fp32"]:
        """Output groups: a BF16 weight, an FP8 weight with FP8/32 input, or the exact weight in FP32."""
        if self is Profile.FP32:
            return "fp32"
        return "fp8" if self is Profile.ATOM else "bf16"

    @property
    def stale_index_slots(self) -> bool:
        """Whether ratio-2 layers score the plane that was published last.  spec: attention.md section 11.7."""
        return self is Profile.DEMO

    @property
    def bf16_score_chain(self) -> bool:
        """Whether every step of the index score is stored as BF16 (decision D15)."""
        return self is Profile.DEMO

    @property
    def main_pools(self) -> tuple[PoolDtype, ...]:
        """Storage allowed for latent rows, the default first."""
        return (PoolDtype.FP32,) if self is Profile.FP32 else (PoolDtype.BF16, PoolDtype.FP4)

    @property
    def index_pools(self) -> tuple[PoolDtype, ...]:
        """Storage allowed for index keys, the default first."""
        if self is Profile.FP32:
            return (PoolDtype.FP32,)
        return (PoolDtype.FP8, PoolDtype.FP4) if self is Profile.ATOM else (PoolDtype.FP4, PoolDtype.BF16)

    @property
    def default_pool(self) -> PoolFormat:
        """Storage where the user names none."""
        return PoolFormat(main=self.main_pools[0], index=self.index_pools[0])

    @property
    def allowed_pools(self) -> tuple[PoolFormat, ...]:
        """Every pair of storages the profile admits, the default first."""
        return tuple(PoolFormat(main=main, index=index) for main in self.main_pools for index in self.index_pools)


class Draft(enum.Enum):
    """Whether DSpark drafts."""

    OFF = "off"
    ON = "on"
    ADAPTIVE = "adaptive"
    """As many as measured costs and estimated acceptance make worth it, none for a while where none are."""


class DraftAccept(enum.Enum):
    """Which drafts stay at a temperature above 0.  spec: dspark.md section 6."""

    SHARED_NOISE = "shared-noise"
    """Those equal to the target's own token, both drawn with the same noise: a seeded text is the undrafted one."""
    REJECTION = "rejection"
    """The standard rule: more of them, the same distribution, another text."""


class Weights(enum.Enum):
    """Where weights live."""

    MAPPED = "mapped"
    """In the files, read when touched."""
    RESIDENT = "resident"
    """In memory, read at start."""
    AUTO = "auto"
    """Resident where they fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWish:
    """Every switch of a run; None means that planning chooses.

    The switches of the last part exist to be refused by name: an engine that ignored them would promise what it does
    not do.
    """

    profile: Profile = Profile.VENDOR
    """Numerical profile."""
    kv_cache_dtype: PoolDtype | None = None
    """Storage of latent rows, or the profile's default."""
    index_cache_dtype: PoolDtype | None = None
    """Storage of index keys, or the profile's default."""

    block_size: int = 256
    """Tokens per page."""
    max_model_len: int | None = None
    """Positions of the longest request."""
    max_num_seqs: int = 512
    """Requests in flight."""
    max_num_batched_tokens: int = 16384
    """Rows of one forward."""
    memory_bytes: int | None = None
    """Budget of pool, state images and rows of pictures."""
    state_image_interval: int = DEFAULT_IMAGE_INTERVAL
    """Tokens between kept state images of a long prompt, snapped down to whole pages."""
    prefix_cache: bool = True
    """Whether finished pages are kept for later requests."""
    decoder_replay: bool = False
    """Bounded decoder replay at prefill; approximate.  spec: cache.md section 9."""
    prefix_replay: bool = False
    """Bounded encoder replay after a prefix hit; approximate.  spec: cache.md section 9."""
    images: bool = False
    """Whether prompts may hold pictures, for which the image encoder is opened."""

    model: Path | None = None
    """Checkpoint directory, or the embedded checkpoint."""
    backend: str = "auto"
    """Name of a kernel backend."""
    threads: int | None = None
    """Threads of the backend."""
    weights: Weights = Weights.AUTO
    """Where weights live."""
    expert_activations: str = "mxfp8"
    """Format of the routed experts' inputs."""

    draft: Draft = Draft.OFF
    """Whether DSpark drafts."""
    draft_accept: DraftAccept | None = None
    """Which drafts stay; shared noise unless said."""
    draft_method: str = "dspark"
    """Drafting method."""
    num_draft_tokens: int | None = None
    """Tokens drafted per step, or the width of the model."""
    draft_model: Path | None = None
    """Checkpoint of the drafter, or the target's."""
    relaxed_acceptance: bool = False
    """Whether a draft may be accepted that the target would not have produced."""
    ragged_verification: bool = False
    """Whether requests of one forward verify different numbers of drafts."""
    calibration_profile: Path | None = None
    """Measured costs and temperatures of the draft schedule."""

    eager: bool = True
    """Whether operations run one by one, without captured graphs."""
    graph_mode: str | None = None
    """FULL or PIECEWISE, where not eager."""
    level: int = 0
    """Compilation level, 0 or 3."""
    tensor_parallel_size: int = 1
    """Ranks that share every layer."""
    expert_parallel_size: int = 1
    """Ranks that share the routed experts."""
    pipeline_parallel_size: int = 1
    """Ranks that share the layers among them."""
    prefill_context_parallel_size: int = 1
    """Ranks that share the positions of a prompt."""
    decode_context_parallel_size: int = 1
    """Ranks that share the positions of a cache."""
    data_parallel_size: int = 1
    """Copies of the engine."""
    data_parallel_attention: bool = False
    """Whether attention is replicated while experts are shared."""
    two_batch_overlap: bool = False
    """Whether two half batches overlap computation and communication."""
    kv_transfer: bool = False
    """Whether pages and state move between engines."""
    kv_connector: str | None = None
    """Who moves them; naming one turns the transfer on."""
    prefill_decode_split: bool = False
    """Whether prefill and decode run side by side on one device."""
    plugin_mode: str | None = None
    """Another engine that hosts this one."""
    online_quantization: bool = False
    """Whether weights are quantised while loading."""
    expert_load_balancing: bool = False
    """Whether hot experts are copied at run time."""

    @property
    def pool(self) -> PoolFormat:
        """Storage of the pools: what is named, else the profile's default."""
        default = self.profile.default_pool
        return PoolFormat(main=self.kv_cache_dtype or default.main, index=self.index_cache_dtype or default.index)

    @property
    def drafts(self) -> bool:
        """Whether DSpark runs at all."""
        return self.draft is not Draft.OFF
