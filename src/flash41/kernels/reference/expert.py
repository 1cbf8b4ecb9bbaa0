"""An expert: a gated MLP whose clamps come before the product and whose routing weight comes before the store.

    G = w1 h,  U = w3 h                      quantised products, stored
    U = clamp(U, -limit, limit);  G = min(G, limit)
    a = silu(G) * U * weight                 FP32; the shared expert has no weight
    out = w2 store(a)

spec: moe.md sections 2 and 3.
"""

import torch
from torch import Tensor

from flash41.kernels.interface import ExpertBank, ExpertWeights
from flash41.kernels.reference.linear import dequantized_linear, scaled_product
from flash41.numerics.scaled import Quantized, quantize_fp8_32

def swiglu(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None) -> Tensor:
    """FP32 activation; gate and up [n, F], weight FP32 [n, 1] or None."""
    gate = gate.float().clamp(max=limit)
    up = up.float().clamp(-limit, limit)
    activation = gate * gate.double().sigmoid().float() * up
    return activation if weight is None else activation * weight


def expert(x: Tensor, weights: ExpertWeights, limit: float, weight: Tensor | None, quantize_input: bool) -> Tensor:
    """One expert on rows x [n, D] -> [n, D] in x's dtype; weight FP32 [n, 1] for a routed expert."""
    if quantize_input:
        return _quantized_expert(quantize_fp8_32(x), x.dtype, weights, limit, weight)
    activation = swiglu(dequantized_linear(x, weights.w1), dequantized_linear(x, weights.w3), limit, weight)
    return dequantized_linear(activation.to(x.dtype), weights.w2)


def _quantized_expert(
    x: Quantized, dtype: torch.dtype, weights: ExpertWeights, limit: float, weight: Tensor | None
) -> Tensor:
    gate = scaled_product(x, weights.w1).to(dtype)
    up = scaled_product(x, weights.w3).to(dtype)
    activation = swiglu(gate, up, limit, weight).to(dtype)
    return scaled_product(quantize_fp8_32(activation), weights.w2).to(dtype)


def routed_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    bank: ExpertBank,
    limit: float,
    quantize_input: bool,
) -> Tensor:
    """FP32 sum over each row's experts, added in ascending expert id: x [T, D], ids and weights [T, k].

    Rows are grouped by expert, so that each expert's bytes are read once; a row's result does not depend on its group.
    """
    total = torch.zeros(x.shape, dtype=torch.float32)
    quantized = quantize_fp8_32(x) if quantize_input else None
    for expert_id in ids.unique().tolist():
        rows, slots = (ids == expert_id).nonzero(as_tuple=True)
        weight = weights[rows, slots].unsqueeze(1)
        if quantized is None:
            output = expert(x[rows], bank(expert_id), limit, weight, False)
        else:
            output = _quantized_expert(quantized.rows(rows), x.dtype, bank(expert_id), limit, weight)
        total[rows] += output.float()
    return total
