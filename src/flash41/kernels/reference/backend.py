"""The reference backend: the modules of this folder behind the kernel protocol.

Each operation is one attribute, so that a test can replace one mechanism and leave the rest alone.
"""

from functools import partial

from flash41.kernels.reference.attention import sparse_attention
from flash41.kernels.reference.compress import pool_group
from flash41.kernels.reference.decoded import DEFAULT_BUDGET_BYTES, DecodedWeights
from flash41.kernels.reference.engram import engram_apply, engram_gate
from flash41.kernels.reference.engram_rows import engram_rows
from flash41.kernels.reference.expert import experts
from flash41.kernels.reference.full_attention import full_attention
from flash41.kernels.reference.index import (
    candidate_blocks,
    index_scores,
    index_scores_bf16_chain,
    inside_blocks,
    select_rows,
)
from flash41.kernels.reference.linear import dequantized_linear, grouped_linear, linear, scaled_linear, scaled_linears
from flash41.kernels.reference.mhc import mhc_apply, mhc_collapse, mhc_mixes
from flash41.kernels.reference.norm import rms_norm
from flash41.kernels.reference.rope import rotate
from flash41.kernels.reference.router import route
from flash41.numerics.scaled import (
    fake_fp4_16,
    fake_fp4_32,
    fake_fp8_32,
    quantize_fp4_16,
    quantize_fp4_32,
    quantize_fp8_32,
)


class ReferenceKernels:
    """Plain torch on CPU, written to be read; exact in the sense of `kernels.reference.arithmetic`.

    `decoded_bytes` bounds the decoded weights kept between uses.
    """

    name = "reference"
    reads_bands: bool = False

    rms_norm = staticmethod(rms_norm)
    quantize_fp8_32 = staticmethod(quantize_fp8_32)
    quantize_fp4_32 = staticmethod(quantize_fp4_32)
    quantize_fp4_16 = staticmethod(quantize_fp4_16)
    fake_fp8_32 = staticmethod(fake_fp8_32)
    fake_fp4_32 = staticmethod(fake_fp4_32)
    fake_fp4_16 = staticmethod(fake_fp4_16)
    rotate = staticmethod(rotate)
    mhc_collapse = staticmethod(mhc_collapse)
    mhc_apply = staticmethod(mhc_apply)
    sparse_attention = staticmethod(sparse_attention)
    full_attention = staticmethod(full_attention)
    pool_group = staticmethod(pool_group)
    index_scores = staticmethod(index_scores)
    index_scores_bf16_chain = staticmethod(index_scores_bf16_chain)
    select_rows = staticmethod(select_rows)
    candidate_blocks = staticmethod(candidate_blocks)
    inside_blocks = staticmethod(inside_blocks)
    route = staticmethod(route)
    engram_rows = staticmethod(engram_rows)
    engram_gate = staticmethod(engram_gate)
    engram_apply = staticmethod(engram_apply)

    def __init__(self, decoded_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        decoded = DecodedWeights(decoded_bytes)
        self.scaled_linears = partial(scaled_linears, decoded=decoded)
        self.scaled_linear = partial(scaled_linear, decoded=decoded)
        self.dequantized_linear = partial(dequantized_linear, decoded=decoded)
        self.linear = partial(linear, decoded=decoded)
        self.grouped_linear = partial(grouped_linear, decoded=decoded)
        self.mhc_mixes = partial(mhc_mixes, decoded=decoded)
        self.experts = partial(experts, decoded=decoded)
