"""The training kernels against the engine's reference: the same numbers up to FP32 sums."""

import torch
from torch import Tensor

from flash41.kernels.interface import ExpertWeights
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.scaled import quantize_fp4_32
from training.model.kernels import TrainingKernels
from training.model.masters import RoundedWeight
from training.model.tape import Tape

OURS, REFERENCE = TrainingKernels(Tape(), stores_bf16=False), ReferenceKernels()
CLOSE = {"atol": 3e-6, "rtol": 3e-6}
"""Sums of at most 256 terms of order one in FP32."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_linear_maps_agree() -> None:
    x, weight = drawn(5, 64), quantize_fp4_32(drawn(32, 64, seed=1) / 8)
    record = RoundedWeight(weight.dequantize())
    torch.testing.assert_close(OURS.scaled_linear(x, record), REFERENCE.scaled_linear(x, weight), **CLOSE)
    torch.testing.assert_close(OURS.dequantized_linear(x, record), REFERENCE.dequantized_linear(x, weight), **CLOSE)
    ours, theirs = OURS.scaled_linears(x, [record, record]), REFERENCE.scaled_linears(x, [weight, weight])
    torch.testing.assert_close(ours, theirs, **CLOSE)
    groups, halves = x.view(5, 2, 32), [quantize_fp4_32(drawn(32, 32, seed=n)) for n in (2, 3)]
    records = [RoundedWeight(half.dequantize()) for half in halves]
    torch.testing.assert_close(
        OURS.grouped_linear(groups, records), REFERENCE.grouped_linear(groups, halves), atol=2e-5, rtol=2e-5
    )


def test_norm_rotation_and_pooling_agree() -> None:
    x, weight = drawn(5, 3, 32), drawn(32, seed=1)
    torch.testing.assert_close(OURS.rms_norm(x, weight, 1e-20), REFERENCE.rms_norm(x, weight, 1e-20), **CLOSE)
    angle = drawn(5, 4, seed=2)
    for inverse in (False, True):
        ours, theirs = (k.rotate(x, angle.cos(), angle.sin(), inverse) for k in (OURS, REFERENCE))
        torch.testing.assert_close(ours, theirs, **CLOSE)
    members = drawn(4, 2, 8, seed=3), drawn(4, 2, 8, seed=4)
    torch.testing.assert_close(OURS.pool_group(*members), REFERENCE.pool_group(*members), **CLOSE)


def test_hyper_connections_agree() -> None:
    x, fn, base, scale = drawn(5, 4, 16), drawn(24, 64, seed=1) / 8, drawn(24, seed=2), drawn(3, seed=3)
    ours, theirs = (k.mhc_mixes(x, fn, base, scale, 8, 1e-6, 1e-20) for k in (OURS, REFERENCE))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    pre, post, comb = theirs
    y = drawn(5, 16, seed=4)
    torch.testing.assert_close(OURS.mhc_collapse(x, pre), REFERENCE.mhc_collapse(x, pre), **CLOSE)
    torch.testing.assert_close(OURS.mhc_apply(x, y, post, comb), REFERENCE.mhc_apply(x, y, post, comb), **CLOSE)


def test_scores_and_full_attention_agree() -> None:
    q, keys, weights = drawn(2, 5, 3, 32), drawn(2, 7, 32, seed=1), drawn(2, 5, 3, seed=2)
    ours, theirs = (k.index_scores(q, keys, weights) for k in (OURS, REFERENCE))
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)
    heads = [drawn(6, 2, 8, seed=n) for n in range(3)]
    torch.testing.assert_close(OURS.full_attention(*heads, 0.3), REFERENCE.full_attention(*heads, 0.3), **CLOSE)


def test_experts_and_router_agree_and_the_bias_gets_no_gradient() -> None:
    x, logits = drawn(6, 32), drawn(6, 4, seed=1).requires_grad_()
    bias = drawn(4, seed=2).requires_grad_()
    ids, weights = OURS.route(logits, bias, 2, 1.5)
    expected_ids, expected = REFERENCE.route(logits.detach(), bias.detach(), 2, 1.5)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights.detach(), expected, **CLOSE)
    (weights * drawn(6, 2, seed=3)).sum().backward()
    assert bias.grad is None
    assert logits.grad is not None
    assert (logits.grad != 0).sum() == ids.numel()
    stored = [[quantize_fp4_32(drawn(32, 32, seed=10 * e + n)) for n in range(3)] for e in range(5)]
    theirs = [ExpertWeights(w1=a, w3=b, w2=c) for a, b, c in stored]
    ours = [ExpertWeights(**{n: RoundedWeight(getattr(w, n).dequantize()) for n in ("w1", "w3", "w2")}) for w in theirs]
    for quantize in (True, False):
        mine = OURS.experts(x, ids, expected, ours.__getitem__, ours[4], 10.0, quantize)
        other = REFERENCE.experts(x, ids, expected, theirs.__getitem__, theirs[4], 10.0, quantize)
        # Products of order 30; no activation of this seed lies on a midpoint of E4M3, where FP32 and FP64 could part.
        torch.testing.assert_close(mine, other, atol=2e-4, rtol=1e-4)


def test_the_engram_gate_agrees() -> None:
    x, key = drawn(5, 4, 16), drawn(5, 4, 16, seed=1)
    gains = drawn(4, 16, seed=2), drawn(4, 16, seed=3)
    gate = REFERENCE.engram_gate(x, key, *gains, 1e-20)
    torch.testing.assert_close(OURS.engram_gate(x, key, *gains, 1e-20), gate, atol=1e-5, rtol=1e-5)
    value = drawn(5, 16, seed=4)
    torch.testing.assert_close(OURS.engram_apply(x, gate, value), REFERENCE.engram_apply(x, gate, value), **CLOSE)


def test_stores_round_to_bf16_only_where_a_profile_stores_bf16() -> None:
    x, weight = drawn(3, 32), drawn(32, seed=1)
    coarse = TrainingKernels(Tape(), stores_bf16=True)
    stored = coarse.rms_norm(x, weight, 1e-20)
    assert torch.equal(stored, stored.to(torch.bfloat16).float())
    assert torch.equal(stored, OURS.rms_norm(x, weight, 1e-20).to(torch.bfloat16).float())
