"""What the codes of E4M3, E2M1 and E8M0 mean: three tables written from the definitions.

    E4M3 (fn)  s eeee mmm   e = 0: m * 2^-9            e > 0: (1 + m/8) * 2^(e-7)    s1111111 = NaN, no infinity
    E2M1       s ee m       e = 0: m * 1/2             e > 0: (1 + m/2) * 2^(e-1)    code 8 = -0.0
    E8M0       eeeeeeee     2^(e-127)                  e = 0 is 2^-127, a subnormal of FP32; 255 = NaN

Every value is exact in FP32, FP64 and BF16, so a decoder is one look-up in whichever of them the caller wants.
Knows nothing of scales or groups.  spec: number-formats.md section 1.
"""

import functools
import math

import torch
from torch import Tensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0

SIGN_E4M3 = 0x80
SIGN_E2M1 = 0x8
NAN_E4M3 = 0x7F
NAN_E8M0 = 0xFF


def e4m3_value(code: int) -> float:
    """The number an E4M3 code 0..255 stands for."""
    magnitude = code & ~SIGN_E4M3
    if magnitude == NAN_E4M3:
        return math.nan
    exponent, mantissa = divmod(magnitude, 8)
    value = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
    return -value if code & SIGN_E4M3 else value


def e2m1_value(code: int) -> float:
    """The number an E2M1 code 0..15 stands for."""
    exponent, mantissa = divmod(code & ~SIGN_E2M1, 2)
    value = math.ldexp(mantissa, -1) if exponent == 0 else math.ldexp(2 + mantissa, exponent - 2)
    return -value if code & SIGN_E2M1 else value


def e8m0_value(byte: int) -> float:
    """The scale an E8M0 byte 0..255 stands for."""
    return math.nan if byte == NAN_E8M0 else math.ldexp(1.0, byte - 127)


def decode_e4m3(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of uint8 E4M3 codes, same shape; `dtype` is float32, float64 or bfloat16."""
    return _look_up(_e4m3_table(dtype, codes.device), codes)


def decode_e2m1(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of uint8 E2M1 codes 0..15, one per byte, same shape; IndexError for a code above 15."""
    return _look_up(_e2m1_table(dtype, codes.device), codes)


def decode_packed_e2m1(packed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [..., K] of uint8 bytes [..., K/2] that hold two E2M1 codes each, the even channel in the low nibble."""
    pairs = _e2m1_pair_table(dtype, packed.device).index_select(0, packed.reshape(-1).int())
    return pairs.view(*packed.shape[:-1], 2 * packed.shape[-1])


def decode_e8m0(scale_bytes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scales of uint8 E8M0 bytes, same shape."""
    return _look_up(_e8m0_table(dtype, scale_bytes.device), scale_bytes)


def _look_up(table: Tensor, codes: Tensor) -> Tensor:
    return table.index_select(0, codes.reshape(-1).int()).view(codes.shape)


@functools.cache
def _e4m3_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([e4m3_value(code) for code in range(256)], dtype=dtype, device=device)


@functools.cache
def _e2m1_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([e2m1_value(code) for code in range(16)], dtype=dtype, device=device)


@functools.cache
def _e2m1_pair_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    pairs = [[e2m1_value(byte & 0xF), e2m1_value(byte >> 4)] for byte in range(256)]
    return torch.tensor(pairs, dtype=dtype, device=device)


@functools.cache
def _e8m0_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([e8m0_value(byte) for byte in range(256)], dtype=dtype, device=device)
