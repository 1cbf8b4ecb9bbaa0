"""How a profile rounds a cached row or an index vector before anything reads it.

`Rounding` maps a tensor to what the model works with from then on: a `Quantized` record (the fake quantisation that is
part of the model) or the tensor itself.  spec: number-formats.md section 5, README.md section 7.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flash41.cache.views import Rows
from flash41.config.run import PoolDtype, Profile
from flash41.numerics.scaled import Quantized, quantize_fp4_16, quantize_fp4_32, quantize_fp8_32, quantize_fp8_row

Rounding = Callable[[Tensor], Rows]


def unrounded(x: Tensor) -> Rows:
    """The identity: profile fp32."""
    return x


def as_tensor(rows: Rows, dtype: torch.dtype) -> Tensor:
    """The values of rounded rows."""
    return rows.dequantize(dtype) if isinstance(rows, Quantized) else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Roundings:
    """The three places where cached vectors are rounded."""

    window: Rounding
    """Window rows, all channels after RoPE."""
    main: Rounding
    """Compressed rows, all channels after RoPE."""
    index: Rounding
    """Index queries and keys after RoPE."""


def roundings(profile: Profile, index: PoolDtype) -> Roundings:
    """The roundings of a profile; the index format matters to profile atom only."""
    by_name = {None: unrounded, "fp4": quantize_fp4_32, "fp8": quantize_fp8_row}
    index_rounding = by_name[profile.index_rounding(index)]
    if not profile.rounds_kv:
        return Roundings(window=unrounded, main=unrounded, index=index_rounding)
    return Roundings(window=quantize_fp8_32, main=quantize_fp4_16, index=index_rounding)
