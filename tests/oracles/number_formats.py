"""Number formats once more, in plain Python with exact fractions, one number at a time.

Shares nothing with the package: codes are chosen by trying all of them.
"""

import math
from fractions import Fraction

SUBNORMAL_STEP = Fraction(1, 512)

E4M3_MAGNITUDES = [Fraction(mantissa) * SUBNORMAL_STEP for mantissa in range(8)] + [
    (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    for exponent in range(1, 16)
    for mantissa in range(8)
    if (exponent, mantissa) != (15, 7)
]
E2M1_MAGNITUDES = [Fraction(value) for value in ("0", "0.5", "1", "1.5", "2", "3", "4", "6")]

# The floor of FP8 is the FP32 number nearest to 1e-4.
FP8_FLOOR = Fraction(0xD1B717, 2**37)


def nearest_code(x: Fraction, magnitudes: list[Fraction], negative: bool) -> int:
    """Code of the nearest magnitude, the even one of two equally near; the sign bit sits above the magnitudes."""
    magnitude = abs(x)
    best = min(range(len(magnitudes)), key=lambda code: (abs(magnitudes[code] - magnitude), code % 2))
    sign = 1 << (len(magnitudes) - 1).bit_length()
    return best | (sign if negative else 0)


def value_of(code: int, magnitudes: list[Fraction]) -> Fraction:
    sign = 1 << (len(magnitudes) - 1).bit_length()
    return -magnitudes[code & (sign - 1)] if code & sign else magnitudes[code]


def exponent_at_least(t: Fraction) -> int:
    """Smallest e with 2^e >= t."""
    exponent = math.floor(math.log2(t)) - 2
    while Fraction(2) ** exponent < t:
        exponent += 1
    return exponent


def largest(xs: list[float], floor: Fraction) -> Fraction:
    return max(floor, *(abs(Fraction(x)) for x in xs))


def codes_of(xs: list[float], scale: Fraction, magnitudes: list[Fraction]) -> list[int]:
    return [nearest_code(Fraction(x) / scale, magnitudes, math.copysign(1.0, x) < 0) for x in xs]


def fp8_32(xs: list[float]) -> tuple[int, list[int]]:
    """(E8M0 byte, E4M3 codes) of one group, or of a whole index row in profile `atom`."""
    exponent = exponent_at_least(largest(xs, FP8_FLOOR) / 448)
    return exponent + 127, codes_of(xs, Fraction(2) ** exponent, E4M3_MAGNITUDES)


def fp4_32(xs: list[float]) -> tuple[int, list[int]]:
    """(E8M0 byte, E2M1 codes) of one group."""
    exponent = exponent_at_least(largest(xs, 6 * Fraction(2) ** -126) / 6)
    return exponent + 127, codes_of(xs, Fraction(2) ** exponent, E2M1_MAGNITUDES)


def fp4_16(xs: list[float]) -> tuple[int, list[int]]:
    """(E4M3 scale code, E2M1 codes) of one group."""
    scale_code = nearest_code(largest(xs, 6 * SUBNORMAL_STEP) / 6, E4M3_MAGNITUDES, False)
    return scale_code, codes_of(xs, E4M3_MAGNITUDES[scale_code], E2M1_MAGNITUDES)
