"""How a profile rounds a cached row or an index vector before anything reads it.

`Rounding` maps a tensor to what the model works with from then on: a `Quantized` record (the fake quantisation that is
part of the model) or the tensor itself.  spec: number-formats.md section 5, README.md section 7.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flash41.cache.views import Rows
from flash41.config.run import PoolDtype, PoolFormat, Profile
from flash41.kernels.interface import Kernels
from flash41.numerics.scaled import Quantized, quantize_fp8_row

Rounding = Callable[[Tensor], Rows]


def unrounded(x: Tensor) -> Rows:
    """The identity: profile fp32."""
    return x


def as_tensor(rows: Rows, dtype: torch.dtype) -> Tensor:
    """The values of rounded rows."""
    return rows.dequantize(dtype) if isinstance(rows, Quantized) else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Roundings:
    """The places where cached vectors, and the queries that meet them, are rounded."""

    window: Rounding
    """Window rows, all channels after RoPE."""
    main: Rounding
    """Compressed rows, all channels after RoPE."""
    key: Rounding
    """Index keys after RoPE."""
    query: Rounding
    """Index queries after RoPE; they are never stored."""


def roundings(profile: Profile, pool: PoolFormat, kernels: Kernels) -> Roundings:
    """The roundings of a profile, as codes where the pool keeps codes and as values where it keeps values.

    Both read the same bits.  Which rounding an index vector gets depends on the pool in profile atom only.
    """
    if not profile.rounds_kv:
        return Roundings(window=unrounded, main=unrounded, key=unrounded, query=unrounded)
    packed = pool.main is PoolDtype.FP4
    by_row = profile.index_rounding(pool.index) == "fp8"
    return Roundings(
        window=kernels.quantize_fp8_32 if packed else kernels.fake_fp8_32,
        main=kernels.quantize_fp4_16 if packed else kernels.fake_fp4_16,
        key=quantize_fp8_row
        if by_row
        else kernels.quantize_fp4_32
        if pool.index is PoolDtype.FP4
        else kernels.fake_fp4_32,
        query=quantize_fp8_row if by_row else kernels.fake_fp4_32,
    )
