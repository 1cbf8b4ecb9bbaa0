"""Weights as the library reads them: addresses of codes and scales in the formats it knows.

A weight is described once and its description kept with it.  Weights the library cannot take as they are (another
format, a width that is no multiple of 32, an FP8 code that is NaN) are left to the reference backend.
"""

from collections import OrderedDict

import torch
from torch import Tensor

from flash41.kernels.cpu.library import FP4_1X32, FP8_32X32, PLAIN_BF16, PLAIN_F32, Expert, Library, Matrix, Strides
from flash41.kernels.interface import ExpertWeights
from flash41.numerics.bands import BAND_ROWS, CHUNK_CHANNELS
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat

GROUP = 32
MOST_KEPT = 1 << 17
"""Descriptions kept; a model of 40 layers with 384 experts each has 47,000 weights."""

FORMATS = {
    (ElementFormat.E4M3, ScaleFormat.E8M0, (32, 32)): FP8_32X32,
    (ElementFormat.E2M1, ScaleFormat.E8M0, (1, 32)): FP4_1X32,
}
CODE_CHUNK = {FP8_32X32: CHUNK_CHANNELS, FP4_1X32: CHUNK_CHANNELS // 2}
SCALE_CHUNK = CHUNK_CHANNELS // GROUP
"""Bytes of a chunk of one row."""
PLAIN_FORMATS = {torch.bfloat16: PLAIN_BF16, torch.float32: PLAIN_F32}


class KnownWeights:
    """Descriptions of scaled weights and experts, the most recently used ones kept."""

    def __init__(self, library: Library) -> None:
        self._library = library
        # The record is kept beside its description: while it lives, its identity names nothing else.
        self._matrices: OrderedDict[int, tuple[Quantized, Matrix | None]] = OrderedDict()
        self._experts: OrderedDict[int, tuple[ExpertWeights, Expert | None]] = OrderedDict()

    def matrix(self, weight: Quantized) -> Matrix | None:
        """The description of a weight, or None for one the library cannot take."""
        known = self._matrices.get(id(weight))
        if known is not None:
            return known[1]
        described = self._describe(weight)
        self._matrices[id(weight)] = (weight, described)
        if len(self._matrices) > MOST_KEPT:
            self._matrices.popitem(last=False)
        return described

    def expert(self, weights: ExpertWeights) -> Expert | None:
        """The same for an expert: None unless the library can take all three of its weights."""
        known = self._experts.get(id(weights))
        if known is not None:
            return known[1]
        w1, w3, w2 = (self._describe(weight) for weight in (weights.w1, weights.w3, weights.w2))
        described = None if w1 is None or w3 is None or w2 is None else Expert(w1=w1, w3=w3, w2=w2)
        self._experts[id(weights)] = (weights, described)
        if len(self._experts) > MOST_KEPT:
            self._experts.popitem(last=False)
        return described

    def _describe(self, weight: Quantized) -> Matrix | None:
        form = FORMATS.get((weight.element, weight.scale, weight.group))
        if form is None or len(weight.shape) != 2 or weight.shape[1] % GROUP or 0 in weight.shape:
            return None
        if weight.in_bands and not self._library.level.reads_bands:
            return None
        codes, scales = weight.codes, weight.scales
        if codes.stride(1) != 1 or scales.stride(1) != 1 or codes.device.type != "cpu":
            return None
        num_rows, width = codes.shape
        if form == FP8_32X32 and self._library.ask("has_nan_code", codes.data_ptr(), num_rows, width, codes.stride(0)):
            return None
        code_bytes, scale_bytes = _strides(codes, CODE_CHUNK[form], weight.in_bands), Strides(scales.stride(0), 0, 2)
        if form == FP4_1X32:
            scale_bytes = _strides(scales, SCALE_CHUNK, weight.in_bands)
        return Matrix(
            codes=codes.data_ptr(),
            scales=scales.data_ptr(),
            rows=num_rows,
            format=form,
            code_bytes=code_bytes,
            scale_bytes=scale_bytes,
        )


def _strides(data: Tensor, chunk: int, in_bands: bool) -> Strides:
    """Of bytes [N, bytes of a row], `chunk` of which belong to a chunk."""
    band = BAND_ROWS * data.stride(0)
    return Strides(band, chunk, BAND_ROWS * chunk) if in_bands else Strides(band, data.stride(0), chunk)


def plain_matrix(weight: Tensor) -> Matrix:
    """The description of a BF16 or FP32 weight [N, K] whose channels lie together."""
    row_bytes = weight.stride(0) * weight.element_size()
    return Matrix(
        codes=weight.data_ptr(),
        rows=weight.shape[0],
        format=PLAIN_FORMATS[weight.dtype],
        code_bytes=Strides(BAND_ROWS * row_bytes, row_bytes, CHUNK_CHANNELS * weight.element_size()),
    )
