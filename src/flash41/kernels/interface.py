"""Every operation the model asks of a backend, once: shapes, dtypes, meaning.

A backend implements this protocol; `kernels.reference` implements all of it and is the oracle of the others.
Legend: T rows of a forward, D hidden size, S residual streams, H heads, d head channels, N output width.
Activations are BF16, or FP32 in profile `fp32`; an operation stores its result in the dtype of its input unless stated.
Every operation is row-count invariant: a row's bits do not depend on the rows beside it.

The equations stand in the modules of `kernels.reference`, next to the code that evaluates them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from flash41.numerics.scaled import Quantized
from flash41.numerics.stored_rows import AttendedRows, Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """One expert, weights in their stored format."""

    w1: Quantized
    """Gate projection [F, D]."""
    w3: Quantized
    """Up projection [F, D]."""
    w2: Quantized
    """Down projection [D, F]."""


ExpertBank = Callable[[int], ExpertWeights]
"""Expert id -> its weights; a bank may page them in when they are asked for."""


class Kernels(Protocol):
    """What a backend computes."""

    name: str
    """Shown in the start-up report."""
    reads_bands: bool
    """Whether weights in memory are read fastest in bands (`numerics.bands`); those in rows are read all the same."""

    def scaled_linear(self, x: Tensor, weight: Quantized) -> Tensor:
        """X [..., K] quantised FP8/32, times an FP8 or FP4 weight [N, K] -> [..., N]."""
        ...

    def scaled_linears(self, x: Tensor, weights: Sequence[Quantized]) -> list[Tensor]:
        """`scaled_linear` of one input with several weights of equal K."""
        ...

    def dequantized_linear(self, x: Tensor, weight: Quantized) -> Tensor:
        """X [..., K] as it is, times the exact dequantised weight [N, K] -> [..., N]."""
        ...

    def linear(self, x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
        """X [..., K] times a BF16 or FP32 weight [N, K], FP32 accumulation or better -> [..., N] in `out_dtype`."""
        ...

    def grouped_linear(self, x: Tensor, weights: Sequence[Quantized]) -> Tensor:
        """X [T, groups, K] as it is, times the exact dequantised weight [N, K] of each group -> [T, groups, N]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """X [..., d] over the root of its mean square, times weight [d]."""
        ...

    def quantize_fp8_32(self, x: Tensor) -> Quantized:
        """X [..., K] as FP8 codes with a power-of-two scale per 32 channels."""
        ...

    def quantize_fp4_32(self, x: Tensor) -> Quantized:
        """X [..., K] as FP4 codes with a power-of-two scale per 32 channels."""
        ...

    def quantize_fp4_16(self, x: Tensor) -> Quantized:
        """X [..., K] as FP4 codes with an E4M3 scale per 16 channels."""
        ...

    def fake_fp8_32(self, x: Tensor) -> Tensor:
        """What x [..., K] reads after storage in FP8 with a scale per 32 channels, in x's dtype."""
        ...

    def fake_fp4_32(self, x: Tensor) -> Tensor:
        """What x [..., K] reads after storage in FP4 with a power-of-two scale per 32 channels, in x's dtype."""
        ...

    def fake_fp4_16(self, x: Tensor) -> Tensor:
        """What x [..., K] reads after storage in FP4 with an E4M3 scale per 16 channels, in x's dtype."""
        ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
        """Interleaved rotation of the last channels of x [T, ..., d] by cos, sin FP32 [T, r]."""
        ...

    def mhc_mixes(
        self, x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int, hc_eps: float, norm_eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients from the streams x [T, S, D]: pre [T, S], post [T, S], comb [T, source, destination], FP32."""
        ...

    def mhc_collapse(self, x: Tensor, pre: Tensor) -> Tensor:
        """[T, D]: the streams x [T, S, D] weighed with pre FP32 [T, S]."""
        ...

    def mhc_apply(self, x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """New streams [T, S, D] from old streams, a sub-layer's output y [T, D] and its coefficients."""
        ...

    def sparse_attention(
        self, q: Tensor, rows: AttendedRows, index: Tensor, counts: Tensor, sink: Tensor, scale: float
    ) -> Tensor:
        """[T, H, d]: each query attends to rows[index[t, :counts[t]]]; rows [R, d] are keys and values at once."""
        ...

    def full_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """[N, H, d]: every row of q attends to all rows of k and v, all [N, H, d]; no mask, no sink."""
        ...

    def pool_group(self, values: Tensor, scores: Tensor) -> Tensor:
        """FP32 [n, d]: per-channel softmax pooling of FP32 [n, ratio, d]."""
        ...

    def index_scores(self, q: Tensor, keys: Keys, weights: Tensor) -> Tensor:
        """FP32 [R, L, N]: sum over heads of weights * relu(q . k); q [R, L, heads, d], keys [R, N, d] of R requests.

        Where keys name blocks, scores of rows outside of them may be anything.
        """
        ...

    def index_scores_bf16_chain(self, q: Tensor, keys: Keys, weights: Tensor) -> Tensor:
        """`index_scores` in the official demo's BF16 chain; used by profile `demo` only."""
        ...

    def select_rows(self, scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
        """int64 [T, topk]: best allowed rows of FP32 scores [T, N], ascending, -1 tail; ties to the smaller row."""
        ...

    def candidate_blocks(self, scores: Tensor, visible: Tensor, num_blocks: int, block_size: int) -> Tensor:
        """int64 [T, n]: kept blocks of rows, ascending, -1 tail; the block with the newest visible row is pinned."""
        ...

    def inside_blocks(self, candidates: Tensor, num_rows: int, block_size: int) -> Tensor:
        """Bool [T, num_rows]: rows that lie in the candidate blocks."""
        ...

    def route(self, logits: Tensor, bias: Tensor, topk: int, route_scale: float) -> tuple[Tensor, Tensor]:
        """Ids int64 [T, k] ascending and weights FP32 [T, k] from FP32 logits [T, E]."""
        ...

    def experts(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        bank: ExpertBank,
        shared: ExpertWeights,
        limit: float,
        quantize_input: bool,
    ) -> tuple[Tensor, Tensor]:
        """(FP32 [T, D], [T, D]): routed experts weighted and added in ascending id, and the shared expert's output."""
        ...

    def engram_rows(self, codes: Tensor, scales: Tensor, row_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, bool]:
        """Values [n, K] of table rows int64 [n], rounded to BF16, in `dtype`; and whether a scale of theirs is NaN.

        The table is E4M3 codes uint8 [R, K] and an E8M0 scale uint8 [R, K/32] per 32 channels, mapped or in memory.
        Rows come in any order and number; all of them lie in the table, which nobody checks again.
        """
        ...

    def engram_gate(self, x: Tensor, key: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> Tensor:
        """FP32 [T, S]: gate of each stream; x and key [T, S, D], gains [S, D]."""
        ...

    def engram_apply(self, x: Tensor, gate: Tensor, value: Tensor) -> Tensor:
        """[T, S, D]: x + gate * value [T, D]; a gate of 0 passes the row bit for bit."""
        ...
