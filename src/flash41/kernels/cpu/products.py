"""The linear operations and the experts, through the compiled library.

    y[t, n] = sum over groups g of 32 channels:  s[n, g] * (sum_{k in g} w[n, k] x[t, k])

Products of codes are exact in FP32; per group each vector lane sums its own channels in FP32, and groups are added in
FP32 in K order, lanes last: at most K/32 + 32/lanes + log2(lanes) roundings.  Tiles add 16 even and 16 odd channels of
a group instead of lanes, K/32 + 16 roundings.  The order depends on the CPU level, on the weight and on whether BF16
holds the row, so a row stands alone whatever its neighbours.  spec: number-formats.md section 6.

What the library cannot take goes to the reference backend, operation by operation.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from flash41.kernels.cpu.library import DTYPES, Expert, Experts, Library, Matrix, Rows
from flash41.kernels.cpu.weights import PLAIN_FORMATS, KnownWeights, plain_matrix
from flash41.kernels.interface import ExpertBank, ExpertWeights
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.scaled import Quantized


def rows_of(x: Tensor) -> Rows:
    """The description of contiguous rows [n, K]."""
    return Rows(data=x.data_ptr(), rows=x.shape[0], width=x.shape[1], dtype=DTYPES[x.dtype], row_elements=x.stride(0))


class Products:
    """Linear maps and experts of one library."""

    def __init__(self, library: Library, reference: ReferenceKernels) -> None:
        self._library = library
        self._reference = reference
        self._known = KnownWeights(library)

    def scaled_linear(self, x: Tensor, weight: Quantized) -> Tensor:
        """See `Kernels.scaled_linear`."""
        matrix = self._known.matrix(weight)
        if matrix is None or x.dtype not in DTYPES:
            return self._reference.scaled_linear(x, weight)
        return self._multiply(x, [matrix], True, x.dtype)[0]

    def scaled_linears(self, x: Tensor, weights: Sequence[Quantized]) -> list[Tensor]:
        """See `Kernels.scaled_linears`."""
        matrices = [matrix for weight in weights if (matrix := self._known.matrix(weight)) is not None]
        if len(matrices) < len(weights) or x.dtype not in DTYPES:
            return [self.scaled_linear(x, weight) for weight in weights]
        return self._multiply(x, matrices, True, x.dtype)

    def dequantized_linear(self, x: Tensor, weight: Quantized) -> Tensor:
        """See `Kernels.dequantized_linear`."""
        matrix = self._known.matrix(weight)
        if matrix is None or x.dtype not in DTYPES:
            return self._reference.dequantized_linear(x, weight)
        return self._multiply(x, [matrix], False, x.dtype)[0]

    def linear(self, x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
        """See `Kernels.linear`."""
        if weight.dtype not in PLAIN_FORMATS or not {x.dtype, out_dtype} <= DTYPES.keys() or weight.stride(-1) != 1:
            return self._reference.linear(x, weight, out_dtype)
        return self._multiply(x, [plain_matrix(weight)], False, out_dtype)[0]

    def grouped_linear(self, x: Tensor, weights: Sequence[Quantized]) -> Tensor:
        """See `Kernels.grouped_linear`."""
        known = [matrix for weight in weights if (matrix := self._known.matrix(weight)) is not None]
        if len(known) < len(weights) or x.dtype not in DTYPES:
            return self._reference.grouped_linear(x, weights)
        num_rows, groups, width = x.shape
        height = known[0].rows
        flat = x.reshape(num_rows, groups * width).contiguous()
        out = x.new_empty(num_rows, groups, height)
        rows = rows_of(flat)
        rows.width = width
        self._library.call(
            "grouped",
            ctypes.byref((Matrix * groups)(*known)),
            groups,
            ctypes.byref(rows),
            out.data_ptr(),
            groups * height,
            DTYPES[out.dtype],
        )
        return out

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
        """See `Kernels.experts`."""
        visited = sorted(set(ids.flatten().tolist()))
        chosen = {expert_id: bank(expert_id) for expert_id in visited}
        described = [self._known.expert(expert) for expert in (*chosen.values(), shared)]
        records = [expert for expert in described if expert is not None]
        if len(records) < len(described) or x.dtype not in DTYPES:
            # The bank was asked already and is not asked again.
            return self._reference.experts(x, ids, weights, chosen.__getitem__, shared, limit, quantize_input)
        x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
        routed, alone = torch.empty(x.shape, dtype=torch.float32), torch.empty_like(x)
        names = (ctypes.c_int64 * len(visited))(*visited)
        job = Experts(
            x=rows_of(x),
            ids=ids.data_ptr(),
            weights=weights.data_ptr(),
            topk=ids.shape[1],
            visited=ctypes.addressof(names),
            bank=(Expert * len(records))(*records),
            num_visited=len(visited),
            limit=limit,
            quantize=quantize_input,
            routed=routed.data_ptr(),
            shared=alone.data_ptr(),
        )
        self._library.call("experts", ctypes.byref(job))
        return routed, alone

    def _multiply(self, x: Tensor, matrices: Sequence[Matrix], quantize: bool, out_dtype: torch.dtype) -> list[Tensor]:
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        outputs = [flat.new_empty(len(flat), matrix.rows, dtype=out_dtype) for matrix in matrices]
        count = len(matrices)
        self._library.call(
            "linear",
            ctypes.byref((Matrix * count)(*matrices)),
            count,
            ctypes.byref(rows_of(flat)),
            quantize,
            ctypes.byref((ctypes.c_void_p * count)(*(output.data_ptr() for output in outputs))),
            DTYPES[out_dtype],
        )
        return [output.view(*x.shape[:-1], matrix.rows) for output, matrix in zip(outputs, matrices, strict=True)]
