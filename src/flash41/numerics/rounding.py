"""From FP32 to codes: nearest value, ties to the even code, saturating; and the power-of-two rule of the scales.

Frameworks disagree about casts to these formats (1000.0 to E4M3 is 448 in one and NaN in another), so rounding is
written out here and no cast is used.

A decision between neighbouring codes falls at their midpoint, and every midpoint is a BF16 number whose last bit is 0.
So 16 bits decide: the upper half of the FP32 pattern, its last bit set when anything below it is non-zero ("round to
odd": what lies between two BF16 numbers stays strictly between the midpoints).  Positive patterns are ordered like the
numbers they stand for, which makes the code of a pattern a count of midpoints below it: one table of 65,536 entries.

    1.0625 = 0x3F880000 -> 0x3F88 = midpoint of codes 56 (1.0) and 57 (1.125) -> 56, the even one
    1.0625 + 2^-23 = 0x3F880001 -> 0x3F89, above the midpoint -> 57

spec: number-formats.md sections 1, 2 and 3.
"""

import functools
import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flash41.errors import KernelError, complaint
from flash41.numerics.formats import E2M1_MAX, E4M3_MAX, NAN_E4M3, SIGN_E2M1, SIGN_E4M3, e2m1_value, e4m3_value

NUM_E4M3_MAGNITUDES = 127
NUM_E2M1_MAGNITUDES = 8

_INFINITY_UPPER = 0x7F80
_INFINITY_BITS = 0x7F800000
_MANTISSA_BITS = 0x007FFFFF
_E4M3_SMALLEST_NORMAL_BITS = (127 - 6) << 23
_E4M3_ROUNDING_SHIFT = (20 << 23) | 0x00400000
"""Turns the pattern of 2^e into that of 1.5 * 2^(e+20)."""
_INFINITY_BITS_64 = 0x7FF0000000000000
_FROM_LARGEST_TO_NORMAL = (1 << 50) - 1 - (14 << 52)
"""Carries into the exponent what has a mantissa above 1.75, then takes 14 from it: the step from 2^8 s to 2^-6 s."""
_E4M3_SUMMAND = 1.5 * 2.0**49
"""Times 2^e: 1.5 * 2^52 steps of 2^(e-3)."""
_E2M1_SMALLEST_NORMAL_BITS = 127 << 23
_E2M1_ROUNDING_SHIFT = (22 << 23) | 0x00400000
"""Turns the pattern of 2^e into that of 1.5 * 2^(e+22)."""


def encode_e4m3(x: Tensor) -> Tensor:
    """uint8 E4M3 codes of FP32 numbers: saturating (infinities too), -0 and underflow keep the sign, NaN -> 0x7F."""
    return _look_up(_e4m3_table, x)


def encode_e2m1(x: Tensor) -> Tensor:
    """uint8 E2M1 codes 0..15 of FP32 numbers, one per byte.

    Saturating (infinities too); -0 and underflow keep the sign.  E2M1 has no NaN: a NaN gets code 7 and must be made
    visible by the scale of its group, as the quantisers of `scaled` do.
    """
    return _look_up(_e2m1_table, x)


def power_of_two_at_least(t: Tensor) -> Tensor:
    """uint8 E8M0 bytes of the smallest powers of two >= t, for positive normal FP32 t.

    byte = exponent field + (1 if the mantissa field is non-zero), from the bits: no logarithm that could push an exact
    power of two up.  NaN, infinity and t > 2^127 give 255, the NaN of E8M0.
    """
    bits = (t.view(torch.int32) & 0x7FFFFFFF).clamp_(max=_INFINITY_BITS)
    return bits.add_(_MANTISSA_BITS).bitwise_right_shift_(23).to(torch.uint8)


def power_of_two_scale(t: Tensor) -> Tensor:
    """FP32 value of `power_of_two_at_least` for positive normal FP32 t up to 2^127, without the detour over bytes."""
    return (t.view(torch.int32) + _MANTISSA_BITS).bitwise_and_(_INFINITY_BITS).view(torch.float32)


def nearest_e4m3(x: Tensor) -> Tensor:
    """FP32 values of the codes `encode_e4m3` gives, without the detour over codes; NaN stays NaN.

    A number in [2^e, 2^(e+1)) is rounded to multiples of q = 2^(e-3) by adding and subtracting 1.5 * 2^23 * q: there
    the spacing of FP32 numbers is q, and FP32 addition rounds to nearest, ties to even.  Below 2^-6 the step stays
    2^-9.
    """
    inside = x.clamp(-E4M3_MAX, E4M3_MAX)
    exponent = (inside.view(torch.int32) & _INFINITY_BITS).clamp_(min=_E4M3_SMALLEST_NORMAL_BITS)
    magic = exponent.add_(_E4M3_ROUNDING_SHIFT).view(torch.float32)
    return inside.add_(magic).sub_(magic)


def nearest_e4m3_scaled(x: Tensor, largest: Tensor) -> Tensor:
    """FP64 values of x / s rounded to E4M3, times s, where s is the smallest power of two >= largest / 448.

    `largest` [..., 1] is at least every |x| of its group and above 2^-1000.  A power of two moves no bit of a mantissa,
    so nothing is divided: a number in [2^e, 2^(e+1)) is rounded to multiples of 2^(e-3), but never finer than 2^-9 s,
    by adding and subtracting 1.5 * 2^52 times that step.  448 is 1.75 * 2^8: s takes the exponent of `largest` - 8, one
    more where the mantissa is above 1.75, and 2^-9 s is the step of numbers from 2^-6 s on.  Patterns are compared in
    place of numbers.  FP64 has room for the sum of any FP32 number, and an infinity or a NaN in `largest` makes the
    summand infinite, and with it the result NaN.
    """
    least = largest.view(torch.int64).add(_FROM_LARGEST_TO_NORMAL).bitwise_and_(_INFINITY_BITS_64)
    own = x.view(torch.int64) & _INFINITY_BITS_64
    summand = torch.maximum(own, least).view(torch.float64).mul_(_E4M3_SUMMAND)
    return (x + summand).sub_(summand)


def nearest_e2m1(x: Tensor) -> Tensor:
    """FP32 values of the codes `encode_e2m1` gives, as `nearest_e4m3` does; NaN stays NaN.

    Here q = 2^(e-1), and below 1 the step stays 1/2.
    """
    inside = x.clamp(-E2M1_MAX, E2M1_MAX)
    exponent = (inside.view(torch.int32) & _INFINITY_BITS).clamp_(min=_E2M1_SMALLEST_NORMAL_BITS)
    magic = exponent.add_(_E2M1_ROUNDING_SHIFT).view(torch.float32)
    return inside.add_(magic).sub_(magic)


def pack_fp4(codes: Tensor) -> Tensor:
    """uint8 codes 0..15 [..., K] -> bytes [..., K/2]: the even channel in the low nibble, the odd one in the high.

    KernelError for an odd K, which has no packed form.
    """
    if codes.shape[-1] % 2:
        raise KernelError(complaint("channels to pack", codes.shape[-1], "an even number"))
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_fp4(packed: Tensor) -> Tensor:
    """Inverse of `pack_fp4`: bytes [..., K/2] -> codes 0..15 [..., K]."""
    return torch.stack((packed & 0xF, packed >> 4), -1).flatten(-2)


def _look_up(table: Callable[[torch.device], Tensor], x: Tensor) -> Tensor:
    bits = x.view(torch.int32)
    # The sum carries into bit 16 exactly when the lower half is not zero; "or" leaves a bit that is set already.
    odd = (bits & 0xFFFF).add_(0xFFFF).bitwise_or_(bits)
    upper = odd.bitwise_right_shift_(16).bitwise_and_(0xFFFF)
    return table(x.device).index_select(0, upper.reshape(-1)).view(x.shape)


@functools.cache
def _e4m3_table(device: torch.device) -> Tensor:
    values = [e4m3_value(code) for code in range(NUM_E4M3_MAGNITUDES)]
    return _nearest_table(values, SIGN_E4M3, NAN_E4M3).to(device)


@functools.cache
def _e2m1_table(device: torch.device) -> Tensor:
    values = [e2m1_value(code) for code in range(NUM_E2M1_MAGNITUDES)]
    return _nearest_table(values, SIGN_E2M1, NUM_E2M1_MAGNITUDES - 1).to(device)


def _nearest_table(values: Sequence[float], sign: int, nan_code: int) -> Tensor:
    """uint8 [65536]: the code of every upper half; `values` are those of codes 0, 1, 2 ..., ascending."""
    between = [(low + high) / 2 for low, high in itertools.pairwise(values)]
    midpoints = torch.tensor(between, dtype=torch.float32, device="cpu")
    uppers: list[int] = (midpoints.view(torch.int32) >> 16).tolist()
    # Code c + 1 starts at its midpoint when c is odd (the tie goes to the even code above), else just after it.
    starts = [0, *(upper if code % 2 else upper + 1 for code, upper in enumerate(uppers)), _INFINITY_UPPER + 1, 0x8000]
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    codes = torch.tensor([*range(len(values)), nan_code], dtype=torch.uint8, device="cpu")
    positive = codes.repeat_interleave(torch.tensor(lengths, device="cpu"))
    negative = positive | sign
    negative[_INFINITY_UPPER + 1 :] = nan_code
    return torch.cat((positive, negative))
