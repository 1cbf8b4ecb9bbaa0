"""Records of what lies on disk: formats, purposes, and the description of one tensor.

A `Layout` says what all tensors of one name pattern share, a `TensorSpec` is one of them:

    layers.7.ffn.experts.3.w1.weight   layout: [2304, 2560] I8, routed expert, cut EP|0   block_id 7, expert_id 3

Sharing the layout is what makes the release's 96,085 records cheap.  Knows nothing of configs, files and tensors.
spec: checkpoint.md sections 1 to 3, number-formats.md section 7.
"""

import enum
from dataclasses import dataclass
from math import prod


class StoredDtype(enum.Enum):
    """How an element lies on disk; the value is its name in a safetensors header."""

    I8 = "I8"
    """Two E2M1 codes, the even channel in the low nibble; never an integer."""
    F8_E4M3 = "F8_E4M3"
    F8_E8M0 = "F8_E8M0"
    """A scale: the byte is an exponent, never a number."""
    BF16 = "BF16"
    F32 = "F32"

    @property
    def element_bytes(self) -> int:
        """Bytes of one stored element."""
        if self is StoredDtype.F32:
            return 4
        return 2 if self is StoredDtype.BF16 else 1


class Scope(enum.Enum):
    """Which part of the model a tensor belongs to; a scope is loaded whole or not at all."""

    BACKBONE = "backbone"
    DRAFT = "draft"
    VISION = "vision"


class Subsystem(enum.Enum):
    """What a tensor is for, the finest row of the ledger; draft stages use the same words in their own scope."""

    ROUTED = "routed"
    SHARED = "shared"
    GATE = "gate"
    ATTENTION = "attn"
    COMPRESSOR = "compressor"
    INDEXER = "indexer"
    ENGRAM_TABLE = "engram_table"
    ENGRAM_PROJECTION = "engram_proj"
    ENGRAM_NORM = "engram_qk"
    ATTENTION_NORM = "attn_norm"
    MOE_NORM = "ffn_norm"
    ATTENTION_MHC = "hc_attn"
    MOE_MHC = "hc_ffn"
    EMBED = "embed"
    HEAD = "head"
    FINAL_NORM = "final_norm"
    MAIN_PROJECTION = "main_proj"
    MARKOV = "markov"
    CONFIDENCE = "confidence"
    VISION = "vision"
    IMAGE_VECTOR = "image_vector"


class CutRule(enum.Enum):
    """How ranks may divide a tensor; the value is the notation of the specification.

    Two-part rules name the axis behind the bar where whole experts (EP) or copies (rep) are not wanted.
    """

    REPLICATED = "rep"
    AXIS0 = "0"
    AXIS1 = "1"
    INDEX_HEADS = "0*"
    """The reference cuts axis 0; this project replicates, so that all ranks pick the same rows."""
    SHARED_AXIS0 = "rep|0"
    SHARED_AXIS1 = "rep|1"
    EXPERT_AXIS0 = "EP|0"
    EXPERT_AXIS1 = "EP|1"
    TABLE_ROWS = "row"
    """Contiguous ranges of Engram rows; on one host the table is mapped whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all tensors of one name pattern share."""

    shape: tuple[int, ...]
    """As stored: a packed FP4 row has half as many elements as channels."""
    dtype: StoredDtype
    """Format of an element."""
    cut: CutRule
    """How ranks may divide it."""
    scope: Scope
    """Part of the model."""
    subsystem: Subsystem
    """Purpose."""

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """Shape in channels: twice the stored last axis for packed FP4, else the stored shape."""
        if self.dtype is StoredDtype.I8:
            return (*self.shape[:-1], 2 * self.shape[-1])
        return self.shape

    @property
    def num_elements(self) -> int:
        """Stored elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.num_elements * self.dtype.element_bytes

    @property
    def num_parameters(self) -> int:
        """Weight elements: a packed byte counts two, a scale none."""
        return 0 if self.is_scale else prod(self.logical_shape)

    @property
    def is_scale(self) -> bool:
        """Whether the bytes are exponents of another tensor's codes."""
        return self.dtype is StoredDtype.F8_E8M0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of the checkpoint."""

    name: str
    """Name in the shard headers."""
    layout: Layout
    """Shape, dtype and purpose."""
    block_id: int | None
    """Backbone layer, draft stage or vision block, counted inside its scope; None outside of them."""
    expert_id: int | None
    """Routed expert, or None."""

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored on disk."""
        return self.layout.shape

    @property
    def dtype(self) -> StoredDtype:
        """Format of an element."""
        return self.layout.dtype

    @property
    def scope(self) -> Scope:
        """Part of the model."""
        return self.layout.scope

    @property
    def subsystem(self) -> Subsystem:
        """Purpose."""
        return self.layout.subsystem

    @property
    def cut(self) -> CutRule:
        """How ranks may divide it."""
        return self.layout.cut

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.layout.num_bytes

    @property
    def scale_for(self) -> str | None:
        """Name of the weight whose codes this tensor scales, or None."""
        return self.name.removesuffix(".scale") + ".weight" if self.layout.is_scale else None
