"""What the numbers of a trace say about the roundings that made them.

A BF16 store leaves 8 significant bits, an E4M3 element 4 under a power-of-two scale, an E2M1 element one of eight
values under its group's scale.  So the rows of a trace tell the formats of its engine, whatever options it was given.
spec: number-formats.md sections 1 to 5 and 9, README.md section 7.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash41.tools.comparison.dataflow import place

Array = NDArray[Any]

STORED = ("attn.in", "attn.q", "attn.out", "ffn.in", "ffn.out", "resid.mid", "resid.in", "final.hidden", "final.norm")
"""Points that are BF16 stores, except in profile fp32."""
E2M1 = np.array([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Roundings seen in a trace; None where it has no point that shows them."""

    stores: str | None = None
    """``bf16`` or ``fp32``: results between operations."""
    window: str | None = None
    """``fp8/32`` or ``none``: window rows."""
    main: str | None = None
    """``fp4/16`` or ``none``: compressed rows."""
    key: str | None = None
    """``fp4/32``, ``fp8/row`` or ``none``: index keys."""
    scores: str | None = None
    """``bf16`` or ``fp32``: index scores."""


PROFILES: Mapping[str, Fingerprint] = {
    "vendor": Fingerprint("bf16", "fp8/32", "fp4/16", "fp4/32", "fp32"),
    "atom": Fingerprint("bf16", "fp8/32", "fp4/16", "fp8/row", "fp32"),
    "demo": Fingerprint("bf16", "fp8/32", "fp4/16", "fp4/32", "bf16"),
    "fp32": Fingerprint("fp32", "none", "none", "none", "fp32"),
}
"""What each profile leaves in its traces, with its default pools."""


def fingerprint(points: Mapping[str, Array]) -> Fingerprint:
    """The roundings of a trace."""
    return Fingerprint(
        stores=_stores(_of(points, STORED)),
        window=_first(_of(points, ("attn.window_row",)), (("fp8/32", lambda rows: _is_e4m3(rows, 32)),)),
        main=_first(_of(points, ("attn.main_row",)), (("fp4/16", lambda rows: _is_e2m1(rows, 16)),)),
        key=_first(
            _of(points, ("index.key",)),
            (
                ("fp4/32", lambda rows: _is_e2m1(rows, 32)),
                ("fp8/row", lambda rows: _is_e4m3(rows, rows.shape[-1])),
            ),
        ),
        scores=_stores(_of(points, ("index.scores",))),
    )


def profiles_like(found: Fingerprint) -> list[str]:
    """Profiles whose roundings agree with everything that a trace shows."""
    seen = [name for name in Fingerprint.__slots__ if getattr(found, name) is not None]
    return [
        name for name, known in PROFILES.items() if all(getattr(known, what) == getattr(found, what) for what in seen)
    ]


def _of(points: Mapping[str, Array], kinds: Iterable[str]) -> list[Array]:
    wanted = set(kinds)
    arrays = [
        array for point, array in points.items() if place(point).kind in wanted and place(point).layer is not None
    ]
    return [array for array in arrays if array.dtype.kind == "f" and array.size]


def _stores(arrays: list[Array]) -> str | None:
    values = [array[np.isfinite(array)] for array in arrays]
    if not any(np.any(value) for value in values):
        return None
    return "bf16" if all(_is_bf16(value) for value in values) else "fp32"


def _is_bf16(values: Array) -> bool:
    return not np.any(values.astype(np.float32).view(np.uint32) & 0xFFFF)


def _first(arrays: list[Array], formats: Iterable[tuple[str, Any]]) -> str | None:
    rows = [array.reshape(-1, array.shape[-1]).astype(np.float64) for array in arrays]
    rows = [row for row in rows if np.any(row) and np.isfinite(row).all()]
    if not rows:
        return None
    for name, fits in formats:
        if all(fits(row) for row in rows):
            return name
    return "none"


def _groups(rows: Array, size: int) -> Array | None:
    """|rows| in groups of a scale each, groups of zeros left out; None where the width does not divide."""
    if rows.shape[-1] % size:
        return None
    groups = np.abs(rows).reshape(-1, size)
    kept: Array = groups[groups.max(axis=1) > 0]
    return kept


def _is_e4m3(rows: Array, size: int) -> bool:
    """Whether every element has the 4 significant bits of E4M3, or is one of its multiples of the least step."""
    groups = _groups(rows, size)
    if groups is None:
        return False
    mantissa, exponent = np.frexp(groups)
    normal = np.mod(mantissa * 16, 1) == 0
    # Below the normal range elements are multiples of 2^-9 of the scale; the scale puts the largest at most at 448.
    top = np.frexp(groups.max(axis=1, keepdims=True))[1]
    step = np.ldexp(1.0, top - 9 - 9)
    subnormal = np.mod(groups / step, 1) == 0
    return bool(np.all(np.where(exponent > top - 15, normal, subnormal)))


def _is_e2m1(rows: Array, size: int) -> bool:
    """Whether some scale makes every element of each group one of E2M1."""
    groups = _groups(rows, size)
    if groups is None:
        return False
    fits = np.zeros(len(groups), dtype=bool)
    for largest in E2M1:
        codes = groups / (groups.max(axis=1, keepdims=True) / largest)
        nearest = E2M1[np.abs(codes[..., None] - E2M1).argmin(-1)]
        fits |= ((codes == 0) | (np.abs(codes - nearest) <= 1e-6 * nearest)).all(axis=1)
    return bool(fits.all())
