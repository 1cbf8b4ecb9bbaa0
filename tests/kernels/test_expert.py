"""Routed and shared experts.  spec: moe.md sections 2 and 3."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flash41.kernels.interface import ExpertWeights, Kernels
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.scaled import Quantized
from helpers.tensors import (
    assert_close,
    assert_rows_stand_alone,
    dense,
    dense_weight,
    expert_weights,
    in_bands,
    normal,
    vectors,
)
from oracles import products as oracle

MOE = vectors("moe")
LIMIT = MOE["swiglu_limit"]
WIDTH, INNER, NUM_EXPERTS = 96, 64, 8
BANK = [expert_weights(WIDTH, INNER, seed=100 * number) for number in range(NUM_EXPERTS)]
SHARED = expert_weights(WIDTH, INNER, seed=5000, shared=True)


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
    return gate / (1 + np.exp(np.minimum(-gate, 700.0))) * up


def stored_expert(x: np.ndarray, weights: ExpertWeights, weight: float, late: bool = False) -> np.ndarray:
    """One BF16 row through one expert, every store written out; `late` weighs the output instead (the wrong place)."""
    quantized = oracle.fp8_32(x[None])
    gate = oracle.bf16(oracle.contract(quantized, oracle.weight(weights.w1)))
    up = oracle.bf16(oracle.contract(quantized, oracle.weight(weights.w3)))
    activation = oracle.bf16(swiglu(gate, up) * (1.0 if late else weight))
    output = oracle.bf16(oracle.contract(oracle.fp8_32(activation), oracle.weight(weights.w2)))
    return (output * (weight if late else 1.0))[0]


def routing(num_rows: int, topk: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    scores = normal(num_rows, NUM_EXPERTS, seed=seed, dtype=torch.float32)
    ids = scores.topk(topk, -1).indices.sort(-1).values
    return ids, scores.gather(1, ids).sigmoid()


def run(
    kernels: Kernels,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    bank: list[ExpertWeights] | None = None,
    shared: ExpertWeights = SHARED,
    quantize: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    return kernels.experts(x, ids, weights, (bank or BANK).__getitem__, shared, LIMIT, quantize)


def assert_same_grid(kernels: Kernels, got: torch.Tensor, expected: np.ndarray) -> None:
    """Equal to the reference; elsewhere a rounding near a tie may fall to the other side of a few FP8 codes."""
    if kernels.name == "reference":
        assert np.array_equal(got.double().numpy(), expected)
    else:
        difference = np.linalg.norm(got.double().numpy() - expected)
        assert difference <= 0.01 * np.linalg.norm(expected)


def test_a_routed_sum_follows_every_store(kernels: Kernels) -> None:
    x, (ids, weights) = normal(7, WIDTH, seed=1, sigma=2.0), routing(7, 3)
    routed, _ = run(kernels, x, ids, weights)
    assert routed.dtype is torch.float32
    expected = np.zeros((7, WIDTH), dtype=np.float32)
    late = np.zeros((7, WIDTH))
    for row in range(7):
        for expert_id, weight in zip(ids[row].tolist(), weights[row].tolist(), strict=True):
            values = oracle.numbers(x[row])
            expected[row] += stored_expert(values, BANK[expert_id], weight).astype(np.float32)
            late[row] += stored_expert(values, BANK[expert_id], weight, late=True)
    assert_same_grid(kernels, routed, expected.astype(float))
    # The weight after w2 re-rolls the FP8 rounding: a difference far above the roundings that are left.
    assert np.linalg.norm(routed.double().numpy() - late) > 0.01 * np.linalg.norm(late)


def test_the_shared_expert_has_the_clamps_and_no_weight(kernels: Kernels) -> None:
    x, (ids, weights) = normal(5, WIDTH, seed=2, sigma=2.0), routing(5, 2)
    _, shared = run(kernels, x, ids, weights)
    assert shared.dtype is torch.bfloat16
    expected = np.stack([stored_expert(oracle.numbers(row), SHARED, 1.0) for row in x])
    assert_same_grid(kernels, shared, expected)
    gates = oracle.contract(oracle.fp8_32(oracle.numbers(x)), oracle.weight(SHARED.w1))
    assert gates.max() > LIMIT  # the clamp was at work


def diagonal() -> Quantized:
    codes = torch.zeros(32, 32, dtype=torch.uint8)
    codes.fill_diagonal_(0x38)
    return dense(codes, torch.full((1, 1), 127, dtype=torch.uint8))


@pytest.mark.parametrize("case", MOE["swiglu"], ids=lambda case: f"gate{case['gate']}up{case['up']}")
def test_swiglu_vectors(kernels: Kernels, case: dict[str, Any]) -> None:
    # Channel 0 of x scales to the gate, channel 1 to the up projection; w2 passes the activation on.
    to_gate, to_up = diagonal(), diagonal()
    to_up.codes[0, 0], to_up.codes[0, 1] = 0, 0x38
    weights = ExpertWeights(w1=to_gate, w3=to_up, w2=diagonal())
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1] = case["gate"], case["up"]
    _, shared = run(kernels, x, torch.tensor([[0]]), torch.ones(1, 1), [weights], weights, quantize=False)
    assert_close(shared[:, 0], np.array([case["value"]]), abs(case["value"]) * 1e-6)


def test_without_quantisation_nothing_but_fp32_is_rounded(kernels: Kernels) -> None:
    x, (ids, weights) = normal(5, WIDTH, seed=3, dtype=torch.float32), routing(5, 2)
    routed, shared = run(kernels, x, ids, weights, quantize=False)
    assert shared.dtype is torch.float32

    def exact(row: np.ndarray, expert: ExpertWeights) -> np.ndarray:
        w1, w3, w2 = (oracle.weight(w) for w in (expert.w1, expert.w3, expert.w2))
        return w2 @ swiglu(w1 @ row, w3 @ row)

    rows = oracle.numbers(x)
    expected = np.array([exact(row, SHARED) for row in rows])
    assert_close(shared, expected, 1e-5 * np.abs(expected).max())
    expected = np.array(
        [
            sum(w * exact(row, BANK[e]) for e, w in zip(ids[t].tolist(), weights[t].tolist(), strict=True))
            for t, row in enumerate(rows)
        ]
    )
    assert_close(routed, expected, 1e-5 * np.abs(expected).max())


def test_experts_are_added_in_ascending_id_whatever_their_order_in_the_row(kernels: Kernels) -> None:
    if kernels.name != "reference":
        pytest.skip("the order of FP32 additions is compared bit by bit")
    large = expert_weights(WIDTH, INNER, seed=1)
    large = replace(large, w2=replace(large.w2, scales=large.w2.scales + 60))
    negative = replace(large, w2=replace(large.w2, codes=large.w2.codes ^ 0x88))
    small = expert_weights(WIDTH, INNER, seed=2)
    x, weights = normal(1, WIDTH, seed=4), torch.full((1, 3), 0.5)
    alone = run(kernels, x, torch.tensor([[0]]), weights[:, :1], [small])[0]
    assert alone.count_nonzero() > WIDTH // 2
    cases = [([large, small, negative], torch.zeros_like(alone)), ([large, negative, small], alone)]
    for bank, expected in cases:
        for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
            routed, _ = run(kernels, x, torch.tensor([order]), weights, bank)
            assert torch.equal(routed, expected)


def test_a_weight_goes_with_its_expert(kernels: Kernels) -> None:
    x, (ids, weights) = normal(6, WIDTH, seed=5), routing(6, 3)
    expected, _ = run(kernels, x, ids, weights)
    shuffled = torch.tensor([2, 0, 1])
    got, _ = run(kernels, x, ids[:, shuffled], weights[:, shuffled])
    assert torch.equal(got, expected)


def test_only_visited_experts_are_asked_for_and_each_once(kernels: Kernels) -> None:
    asked: list[int] = []

    def bank(expert_id: int) -> ExpertWeights:
        asked.append(expert_id)
        return BANK[expert_id]

    ids = torch.tensor([[1, 6], [1, 3], [3, 6], [1, 6]])
    kernels.experts(normal(4, WIDTH), ids, torch.ones(4, 2), bank, SHARED, LIMIT, True)
    assert sorted(asked) == [1, 3, 6]


def test_an_expert_with_a_weight_of_zero_adds_nothing(kernels: Kernels) -> None:
    x, ids = normal(3, WIDTH, seed=6), torch.tensor([[0, 5]] * 3)
    got, _ = run(kernels, x, ids, torch.tensor([[0.7, 0.0]] * 3))
    expected, _ = run(kernels, x, ids[:, :1], torch.full((3, 1), 0.7))
    assert torch.equal(got, expected)


def test_rows_of_zeros_give_zeros(kernels: Kernels) -> None:
    for quantize in (True, False):
        x, (ids, weights) = torch.zeros(3, WIDTH, dtype=torch.bfloat16), routing(3, 2)
        routed, shared = run(kernels, x, ids, weights, quantize=quantize)
        assert torch.equal(routed, torch.zeros(3, WIDTH))
        assert torch.equal(shared, torch.zeros(3, WIDTH, dtype=torch.bfloat16))


def test_an_outlier_channel_follows_every_store(kernels: Kernels) -> None:
    x, ids = normal(4, WIDTH, seed=7), torch.tensor([[3]] * 4)
    x[:, 40] *= 1000.0
    routed, shared = run(kernels, x, ids, torch.full((4, 1), 0.75))
    rows = oracle.numbers(x)
    assert_same_grid(kernels, routed, np.stack([stored_expert(row, BANK[3], 0.75) for row in rows]))
    assert_same_grid(kernels, shared, np.stack([stored_expert(row, SHARED, 1.0) for row in rows]))
    # The outlier coarsens the grid of its own 32 channels and of no others.
    error = np.abs(oracle.fp8_32(rows) - rows) / np.abs(rows)
    assert error[:, 32:64].max() > 0.9
    assert error[:, :32].max() < 0.07


@pytest.mark.parametrize(("dtype", "quantize"), [(torch.bfloat16, True), (torch.float32, False)])
def test_rows_stand_alone_whoever_visits_the_same_experts(kernels: Kernels, dtype: torch.dtype, quantize: bool) -> None:
    x, (ids, weights) = normal(64, WIDTH, seed=8, dtype=dtype), routing(64, 3)
    assert_rows_stand_alone(lambda rows: run(kernels, x[rows], ids[rows], weights[rows], quantize=quantize))


def test_shared_experts_may_be_stored_in_fp8_and_routed_ones_in_fp4(kernels: Kernels) -> None:
    x, (ids, weights) = normal(2, WIDTH, seed=9), routing(2, 2)
    fp4 = run(kernels, x, ids, weights, shared=BANK[0])[1]
    expected = np.stack([stored_expert(oracle.numbers(row), BANK[0], 1.0) for row in x])
    assert_same_grid(kernels, fp4, expected)
    wide = ExpertWeights(w1=dense_weight(INNER, WIDTH, seed=6), w3=SHARED.w3, w2=dense_weight(WIDTH, INNER))
    fp8 = run(kernels, x, torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1), [wide])[0]
    expected = np.stack([stored_expert(oracle.numbers(row), wide, 1.0) for row in x])
    assert_same_grid(kernels, fp8, expected)


def test_experts_in_bands_have_the_same_bits(kernels: Kernels) -> None:
    rows = [expert_weights(128, 64, seed=100 * number) for number in range(NUM_EXPERTS)]
    shared = expert_weights(128, 64, seed=5000, shared=True)
    bands = [ExpertWeights(w1=in_bands(one.w1), w3=in_bands(one.w3), w2=in_bands(one.w2)) for one in (*rows, shared)]
    for count in (1, 6, 40):
        x, (ids, weights) = normal(count, 128, seed=11), routing(count, 3)
        # Levels that read no bands leave them to the reference.
        expected = run(kernels if kernels.reads_bands else ReferenceKernels(), x, ids, weights, rows, shared)
        for got, wanted in zip(run(kernels, x, ids, weights, bands, bands[-1]), expected, strict=True):
            assert torch.equal(got, wanted)
