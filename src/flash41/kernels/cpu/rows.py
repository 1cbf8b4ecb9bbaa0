"""Operations that treat rows one by one, through the compiled library.

Sums of squares and of Engram dots are FP64, coefficients of hyper-connections too (products and FP32 sums aside);
everything else is the FP32 arithmetic of the reference, rounded once.  What the library cannot take goes to the
reference backend.
"""

import ctypes

import torch
from torch import Tensor

from flash41.kernels.cpu.library import DTYPES, Library, Mixes
from flash41.kernels.cpu.products import rows_of
from flash41.kernels.cpu.weights import PLAIN_FORMATS, plain_matrix
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat

MOST_STREAMS = 8
"""Residual streams for which the library has room."""

FP8_32 = 0
FP4_32 = 1
FP4_16 = 2
"""Kinds of quantisation."""

CHANNELS = {FP8_32: 32, FP4_32: 32, FP4_16: 16}
ELEMENTS = {
    FP8_32: (ElementFormat.E4M3, ScaleFormat.E8M0),
    FP4_32: (ElementFormat.E2M1, ScaleFormat.E8M0),
    FP4_16: (ElementFormat.E2M1, ScaleFormat.E4M3),
}


class RowOperations:
    """Norm, rotation, pooling, hyper-connections, Engram and quantisation of one library."""

    def __init__(self, library: Library, reference: ReferenceKernels) -> None:
        self._library = library
        self._reference = reference

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Kernels.rms_norm`."""
        if not {x.dtype, weight.dtype} <= DTYPES.keys():
            return self._reference.rms_norm(x, weight, eps)
        flat, weight = x.reshape(-1, x.shape[-1]).contiguous(), weight.contiguous()
        out = torch.empty_like(flat)
        self._library.call(
            "rms_norm", ctypes.byref(rows_of(flat)), weight.data_ptr(), DTYPES[weight.dtype], eps, out.data_ptr()
        )
        return out.view(x.shape)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
        """See `Kernels.rotate`."""
        if x.dtype not in DTYPES or cos.dtype is not torch.float32 or sin.dtype is not torch.float32:
            return self._reference.rotate(x, cos, sin, inverse)
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        out = torch.empty_like(x)
        num_rows, width = x.shape[0], x.shape[-1]
        heads = x.numel() // (num_rows * width) if num_rows else 0
        self._library.call(
            "rotate",
            x.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            inverse,
            out.data_ptr(),
            num_rows,
            heads,
            width,
            cos.shape[-1],
            DTYPES[x.dtype],
        )
        return out

    def pool_group(self, values: Tensor, scores: Tensor) -> Tensor:
        """See `Kernels.pool_group`."""
        values, scores = values.contiguous(), scores.contiguous()
        num_rows, ratio, width = values.shape
        out = torch.empty(num_rows, width)
        self._library.call("pool_group", values.data_ptr(), scores.data_ptr(), out.data_ptr(), num_rows, ratio, width)
        return out

    def fake_fp8_32(self, x: Tensor) -> Tensor:
        """See `Kernels.fake_fp8_32`."""
        return self._fake(x, FP8_32)

    def fake_fp4_32(self, x: Tensor) -> Tensor:
        """See `Kernels.fake_fp4_32`."""
        return self._fake(x, FP4_32)

    def fake_fp4_16(self, x: Tensor) -> Tensor:
        """See `Kernels.fake_fp4_16`."""
        return self._fake(x, FP4_16)

    def quantize_fp8_32(self, x: Tensor) -> Quantized:
        """See `Kernels.quantize_fp8_32`."""
        return self._quantized(x, FP8_32)

    def quantize_fp4_32(self, x: Tensor) -> Quantized:
        """See `Kernels.quantize_fp4_32`."""
        return self._quantized(x, FP4_32)

    def quantize_fp4_16(self, x: Tensor) -> Quantized:
        """See `Kernels.quantize_fp4_16`."""
        return self._quantized(x, FP4_16)

    def _quantized(self, x: Tensor, kind: int) -> Quantized:
        width, channels, odd = x.shape[-1], CHANNELS[kind], ctypes.c_int32(1)
        if x.dtype in DTYPES and width and not width % channels:
            flat = x.reshape(-1, width).contiguous()
            element, scale = ELEMENTS[kind]
            codes = torch.empty(len(flat), width // (2 if element is ElementFormat.E2M1 else 1), dtype=torch.uint8)
            scales = torch.empty(len(flat), width // channels, dtype=torch.uint8)
            self._library.call(
                "quantize",
                ctypes.byref(rows_of(flat)),
                kind,
                codes.data_ptr(),
                scales.data_ptr(),
                ctypes.byref(odd),
            )
            if not odd.value:
                lead = x.shape[:-1]
                return Quantized(
                    codes=codes.view(*lead, codes.shape[1]),
                    scales=scales.view(*lead, scales.shape[1]),
                    element=element,
                    scale=scale,
                    group=(1, channels),
                )
        # Among them rows with a NaN or an infinity, whose codes the reference decides.
        reference = self._reference
        return (reference.quantize_fp8_32, reference.quantize_fp4_32, reference.quantize_fp4_16)[kind](x)

    def _fake(self, x: Tensor, kind: int) -> Tensor:
        width = x.shape[-1]
        if x.dtype not in DTYPES or width == 0 or width % CHANNELS[kind]:
            reference = self._reference
            return (reference.fake_fp8_32, reference.fake_fp4_32, reference.fake_fp4_16)[kind](x)
        flat = x.reshape(-1, width).contiguous()
        out = torch.empty_like(flat)
        self._library.call("fake_quantize", ctypes.byref(rows_of(flat)), kind, out.data_ptr())
        return out.view(x.shape)

    def mhc_mixes(
        self, x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int, hc_eps: float, norm_eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Kernels.mhc_mixes`."""
        num_rows, streams, width = x.shape
        if x.dtype not in DTYPES or fn.dtype not in PLAIN_FORMATS or streams > MOST_STREAMS or fn.stride(-1) != 1:
            return self._reference.mhc_mixes(x, fn, base, scale, iterations, hc_eps, norm_eps)
        x, base, scale = x.contiguous(), base.contiguous(), scale.contiguous()
        pre, post = torch.empty(num_rows, streams), torch.empty(num_rows, streams)
        comb = torch.empty(num_rows, streams, streams)
        job = Mixes(
            x=x.data_ptr(),
            fn=ctypes.pointer(plain_matrix(fn)),
            base=base.data_ptr(),
            scale=scale.data_ptr(),
            pre=pre.data_ptr(),
            post=post.data_ptr(),
            comb=comb.data_ptr(),
            rows=num_rows,
            streams=streams,
            width=width,
            dtype=DTYPES[x.dtype],
            iterations=iterations,
            hc_eps=hc_eps,
            norm_eps=norm_eps,
        )
        self._library.call("mixes", ctypes.byref(job))
        return pre, post, comb

    def mhc_collapse(self, x: Tensor, pre: Tensor) -> Tensor:
        """See `Kernels.mhc_collapse`."""
        num_rows, streams, width = x.shape
        if x.dtype not in DTYPES or streams > MOST_STREAMS:
            return self._reference.mhc_collapse(x, pre)
        x, pre, out = x.contiguous(), pre.contiguous(), x.new_empty(num_rows, width)
        self._library.call(
            "collapse", x.data_ptr(), pre.data_ptr(), out.data_ptr(), num_rows, streams, width, DTYPES[x.dtype]
        )
        return out

    def mhc_apply(self, x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """See `Kernels.mhc_apply`."""
        num_rows, streams, width = x.shape
        if x.dtype not in DTYPES or y.dtype is not x.dtype or streams > MOST_STREAMS:
            return self._reference.mhc_apply(x, y, post, comb)
        x, y, post, comb = x.contiguous(), y.contiguous(), post.contiguous(), comb.contiguous()
        out = torch.empty_like(x)
        self._library.call(
            "apply",
            x.data_ptr(),
            y.data_ptr(),
            post.data_ptr(),
            comb.data_ptr(),
            out.data_ptr(),
            num_rows,
            streams,
            width,
            DTYPES[x.dtype],
        )
        return out

    def engram_rows(self, codes: Tensor, scales: Tensor, row_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, bool]:
        """See `Kernels.engram_rows`."""
        num_rows, width, odd = len(row_ids), codes.shape[1], ctypes.c_int32(0)
        if dtype not in DTYPES or width % CHANNELS[FP8_32] or codes.stride(1) != 1 or scales.stride(1) != 1:
            return self._reference.engram_rows(codes, scales, row_ids, dtype)
        row_ids = row_ids.contiguous()
        out = torch.empty(num_rows, width, dtype=dtype)
        self._library.call(
            "table_rows",
            codes.data_ptr(),
            scales.data_ptr(),
            row_ids.data_ptr(),
            width,
            codes.stride(0),
            scales.stride(0),
            num_rows,
            DTYPES[dtype],
            out.data_ptr(),
            ctypes.byref(odd),
        )
        return out, bool(odd.value)

    def engram_gate(self, x: Tensor, key: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> Tensor:
        """See `Kernels.engram_gate`."""
        if not {x.dtype, q_weight.dtype, k_weight.dtype} <= DTYPES.keys() or key.dtype is not x.dtype:
            return self._reference.engram_gate(x, key, q_weight, k_weight, eps)
        x, key, q_weight, k_weight = x.contiguous(), key.contiguous(), q_weight.contiguous(), k_weight.contiguous()
        gate = torch.empty(x.shape[:2])
        self._library.call(
            "engram_gate",
            x.data_ptr(),
            key.data_ptr(),
            q_weight.data_ptr(),
            k_weight.data_ptr(),
            DTYPES[x.dtype],
            DTYPES[q_weight.dtype],
            DTYPES[k_weight.dtype],
            eps,
            *x.shape,
            gate.data_ptr(),
        )
        return gate

    def engram_apply(self, x: Tensor, gate: Tensor, value: Tensor) -> Tensor:
        """See `Kernels.engram_apply`."""
        if x.dtype not in DTYPES or value.dtype is not x.dtype:
            return self._reference.engram_apply(x, gate, value)
        x, gate, value = x.contiguous(), gate.contiguous(), value.contiguous()
        out = torch.empty_like(x)
        self._library.call(
            "engram_apply",
            x.data_ptr(),
            gate.data_ptr(),
            value.data_ptr(),
            out.data_ptr(),
            *x.shape,
            DTYPES[x.dtype],
        )
        return out
