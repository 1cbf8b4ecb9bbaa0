"""Experts: gated MLPs whose clamps come before the product and whose routing weight comes before the store.

    G = w1 h,  U = w3 h                      quantised products, stored
    U = clamp(U, -limit, limit);  G = min(G, limit)
    a = silu(G) * U * weight                 FP32; the shared expert's weight is 1
    out = w2 store(a)

The work is done in three sweeps, gate and up, activation, down, over "visits": a visit is one row at one expert, and
the visits of an expert lie together, so that its bytes are read once.  Experts with equally many visits are multiplied
as one batch: a single token visits all its experts, the shared one among them, once.  spec: moe.md sections 2 and 3.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flash41.kernels.interface import ExpertBank, ExpertWeights
from flash41.kernels.reference.decoded import GROUP, DecodedWeights
from flash41.kernels.reference.linear import added_blocks, block_product, dequantized_linear
from flash41.numerics.scaled import Quantized, round_fp8_32


def swiglu(projected: Tensor, limit: float, weight: Tensor) -> Tensor:
    """FP32 activation [n, F] of gate and up side by side, [n, 2F]; weight FP32 [n, 1]."""
    gate, up = projected.float().chunk(2, -1)
    gate = gate.clamp(max=limit)
    return gate.double().sigmoid_().float().mul_(gate).mul_(up.clamp(-limit, limit)).mul_(weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visits:
    """Who visits which expert.  Visit number row * topk + i; behind these every row visits the shared expert."""

    batches: list[tuple[list[ExpertWeights], int]]
    """Experts with equally many visits, and the visits of all of them together."""
    order: list[int]
    """Visits, batch after batch, expert after expert, rows ascending."""
    rows: list[int]
    """Row of each of them."""
    places: list[int]
    """Where its output goes: row * topk + rank of the expert among those of the row; the shared expert's behind."""


def _visits(ids: Tensor, bank: ExpertBank, shared: ExpertWeights, most: int) -> _Visits:
    """Visits of ids [T, topk] in batches of at most `most` experts."""
    num_rows, topk = ids.shape
    visitors: dict[int, list[int]] = {}
    for visit, expert_id in enumerate(ids.flatten().tolist()):
        visitors.setdefault(expert_id, []).append(visit)
    groups = [(bank(expert_id), visitors[expert_id]) for expert_id in sorted(visitors)]
    free = list(range(0, num_rows * topk, topk))  # next place of each row, handed out in ascending expert id
    place = {}
    for _, visits in groups:
        for visit in visits:
            place[visit] = free[visit // topk]
            free[visit // topk] += 1
    groups.append((shared, list(range(num_rows * topk, num_rows * topk + num_rows))))
    batches, order = list[tuple[list[ExpertWeights], int]](), list[int]()
    for count in {len(visits): None for _, visits in groups}:
        alike = [group for group in groups if len(group[1]) == count]
        for first in range(0, len(alike), most):
            chosen = alike[first : first + most]
            batches.append(([expert for expert, _ in chosen], count * len(chosen)))
            order += [visit for _, visits in chosen for visit in visits]
    return _Visits(
        batches=batches,
        order=order,
        rows=[visit // topk if visit in place else visit - num_rows * topk for visit in order],
        places=[place.get(visit, visit) for visit in order],
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
    num_rows, topk = ids.shape
    visits = _visits(ids, bank, shared, decoded.num_in_a_band(shared.w1, shared.w3))
    order, rows, places = torch.tensor((visits.order, visits.rows, visits.places)).unbind()
    every_weight = torch.cat((weights.flatten(), weights.new_ones(num_rows)))
    weight = every_weight.index_select(0, order).unsqueeze(1)
    inputs = (round_fp8_32(x) if quantize_input else x).index_select(0, rows)
    projected = _products(inputs, visits, _gate_up, quantize_input, decoded).to(x.dtype)
    activation = swiglu(projected, limit, weight).to(x.dtype)
    middle = round_fp8_32(activation) if quantize_input else activation
    outputs = _products(middle, visits, _down, quantize_input, decoded).to(x.dtype)
    stored = torch.empty_like(outputs).index_copy_(0, places, outputs)
    routed, alone = stored.split_with_sizes((num_rows * topk, num_rows))
    total = torch.zeros(x.shape, dtype=torch.float32)
    for output in routed.view(num_rows, topk, -1).unbind(1):
        total += output
    return total, alone


def _gate_up(expert: ExpertWeights) -> tuple[Quantized, ...]:
    return expert.w1, expert.w3


def _down(expert: ExpertWeights) -> tuple[Quantized, ...]:
    return (expert.w2,)


def _products(
    x: Tensor,
    visits: _Visits,
    parts: Callable[[ExpertWeights], tuple[Quantized, ...]],
    quantized: bool,
    decoded: DecodedWeights,
) -> Tensor:
    """FP32 [visits, n] of inputs [visits, K] with each visit's own expert, its `parts` side by side."""
    product = _scaled if quantized else _dequantized
    inputs = x.split_with_sizes([num_visits for _, num_visits in visits.batches])
    outputs = [
        product(part, [parts(expert) for expert in batch], decoded)
        for part, (batch, _) in zip(inputs, visits.batches, strict=True)
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _scaled(x: Tensor, weights: Sequence[tuple[Quantized, ...]], decoded: DecodedWeights) -> Tensor:
    if len(weights) == 1:
        return block_product(x, decoded.blocks(*weights[0]))  # band by band where it is large
    num_experts, num_blocks = len(weights), x.shape[1] // GROUP
    left = x.view(num_experts, -1, num_blocks, GROUP).transpose(1, 2).flatten(0, 1)
    right = torch.cat([band for parts in weights for band in decoded.blocks(*parts)])  # [experts * blocks, 32, n]
    sums = torch.bmm(left, right).float().view(num_experts, num_blocks, -1, right.shape[-1])
    return added_blocks(sums.unbind(1)).flatten(0, 1)


def _dequantized(x: Tensor, weights: Sequence[tuple[Quantized, ...]], decoded: DecodedWeights) -> Tensor:
    return torch.cat(
        [
            torch.cat([dequantized_linear(part, weight, decoded) for weight in parts], -1)
            for part, parts in zip(x.chunk(len(weights)), weights, strict=True)
        ]
    )
