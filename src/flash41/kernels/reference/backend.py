"""The reference backend: the modules of this folder behind the kernel protocol.

Each operation is one attribute, so that a test can replace one mechanism and leave the rest alone.
"""

from torch import Tensor

from flash41.kernels.interface import ExpertWeights
from flash41.kernels.reference import attention, compress, engram, expert, index, linear, mhc, norm, rope, router


class ReferenceKernels:
    """Plain torch on CPU, written to be read; exact in the sense of `kernels.reference.arithmetic`."""

    name = "reference"

    scaled_linear = staticmethod(linear.scaled_linear)
    dequantized_linear = staticmethod(linear.dequantized_linear)
    linear = staticmethod(linear.linear)
    grouped_linear = staticmethod(linear.grouped_linear)
    rms_norm = staticmethod(norm.rms_norm)
    rotate = staticmethod(rope.rotate)
    mhc_mixes = staticmethod(mhc.mhc_mixes)
    mhc_collapse = staticmethod(mhc.mhc_collapse)
    mhc_apply = staticmethod(mhc.mhc_apply)
    sparse_attention = staticmethod(attention.sparse_attention)
    pool_group = staticmethod(compress.pool_group)
    index_scores = staticmethod(index.index_scores)
    index_scores_bf16_chain = staticmethod(index.index_scores_bf16_chain)
    select_rows = staticmethod(index.select_rows)
    candidate_blocks = staticmethod(index.candidate_blocks)
    inside_blocks = staticmethod(index.inside_blocks)
    route = staticmethod(router.route)
    routed_experts = staticmethod(expert.routed_experts)
    engram_gate = staticmethod(engram.engram_gate)
    engram_apply = staticmethod(engram.engram_apply)

    def shared_expert(self, x: Tensor, weights: ExpertWeights, limit: float, quantize_input: bool) -> Tensor:
        """One expert without a routing weight."""
        return expert.expert(x, weights, limit, None, quantize_input)
