"""Experts: gated MLPs whose clamps come before the product and whose routing weight comes before the store.

    G = w1 h,  U = w3 h                      quantised products, stored
    U = clamp(U, -limit, limit);  G = min(G, limit)
    a = silu(G) * U * weight                 FP32; the shared expert's weight is 1
    out = w2 store(a)

The work is done in three sweeps, gate and up, activation, down, over "visits": a visit is one row at one expert, and
the visits of an expert lie together, so that its bytes are read once.  spec: moe.md sections 2 and 3.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from flash41.kernels.interface import ExpertBank, ExpertWeights
from flash41.kernels.reference.decoded import DecodedWeights
from flash41.kernels.reference.linear import block_product, dequantized_linear
from flash41.numerics.scaled import round_fp8_32


def swiglu(gate: Tensor, up: Tensor, limit: float, weight: Tensor) -> Tensor:
    """FP32 activation; gate and up [n, F], weight FP32 [n, 1]."""
    gate = gate.float().clamp(max=limit)
    up = up.float().clamp(-limit, limit)
    return gate.double().sigmoid().float().mul_(gate).mul_(up).mul_(weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visits:
    """Which rows visit which expert, expert after expert in ascending id."""

    expert_ids: list[int]
    lengths: list[int]
    rows: Tensor
    """int64 [visits]."""
    weights: Tensor
    """FP32 [visits, 1]."""


def _visits(ids: Tensor, weights: Tensor) -> _Visits:
    # A stable sort by expert keeps the rows of one expert in order.
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    visitors = sorted(Counter(flat.tolist()).items())
    rows = order.div(ids.shape[1], rounding_mode="floor")
    return _Visits(
        expert_ids=[expert_id for expert_id, _ in visitors],
        lengths=[count for _, count in visitors],
        rows=rows,
        weights=weights.flatten()[order].unsqueeze(1),
    )


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    bank: ExpertBank,
    shared: ExpertWeights,
    limit: float,
    quantize_input: bool,
    decoded: DecodedWeights,
) -> tuple[Tensor, Tensor]:
    """Routed sum FP32 [T, D], added in ascending expert id, and the shared expert's output [T, D] in x's dtype.

    x [T, D], ids int64 and weights FP32 [T, k].  A row's result does not depend on who else visits its experts.
    """
    num_rows = x.shape[0]
    visits = _visits(ids, weights)
    chosen = [*(bank(expert_id) for expert_id in visits.expert_ids), shared]
    lengths = [*visits.lengths, num_rows]
    rows = torch.cat((visits.rows, torch.arange(num_rows)))
    weight = torch.cat((visits.weights, torch.ones(num_rows, 1)))
    inputs = (round_fp8_32(x) if quantize_input else x)[rows].split_with_sizes(lengths)
    projected = [_gate_up(part, w, quantize_input, decoded) for part, w in zip(inputs, chosen, strict=True)]
    gate, up = torch.cat(projected).to(x.dtype).chunk(2, -1)
    activation = swiglu(gate, up, limit, weight).to(x.dtype)
    middle = (round_fp8_32(activation) if quantize_input else activation).split_with_sizes(lengths)
    outputs = [_down(part, w, quantize_input, decoded) for part, w in zip(middle, chosen, strict=True)]
    stored = torch.cat(outputs).to(x.dtype)
    routed, alone = stored.split_with_sizes((len(visits.rows), num_rows))
    total = torch.zeros(x.shape, dtype=torch.float32)
    for part, output in zip(
        visits.rows.split_with_sizes(visits.lengths), routed.float().split_with_sizes(visits.lengths), strict=True
    ):
        total.index_add_(0, part, output)  # a row is named once per expert: one addition, no order to choose
    return total, alone


def _gate_up(x: Tensor, weights: ExpertWeights, quantized: bool, decoded: DecodedWeights) -> Tensor:
    """FP32 [n, 2F]: gate and up side by side."""
    if quantized:
        return block_product(x, decoded.blocks(weights.w1, weights.w3))
    return torch.cat([dequantized_linear(x, w, decoded) for w in (weights.w1, weights.w3)], -1)


def _down(x: Tensor, weights: ExpertWeights, quantized: bool, decoded: DecodedWeights) -> Tensor:
    """FP32 [n, D]."""
    if quantized:
        return block_product(x, decoded.blocks(weights.w2))
    return dequantized_linear(x, weights.w2, decoded)
