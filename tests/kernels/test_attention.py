"""Sparse attention over a list of rows.  spec: attention.md section 7."""

import math

import numpy as np
import pytest
import torch

from flash41.kernels.interface import Kernels
from helpers.tensors import assert_close, assert_rows_stand_alone, normal
from oracles.products import bf16

HEADS, WIDTH = 3, 64
SCALE = WIDTH**-0.5
COUNTS = [0, 1, 2, 63, 64, 65, 127, 128, 129, 200]


def lists(num_queries: int, width: int, num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, num_rows, (num_queries, width), generator=torch.Generator().manual_seed(seed))


def exact(
    q: torch.Tensor, rows: torch.Tensor, index: torch.Tensor, counts: torch.Tensor, sink: torch.Tensor, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """FP64 outputs, and the same sum over magnitudes."""
    outputs = np.zeros(tuple(q.shape))
    sizes = np.zeros(tuple(q.shape))
    for t in range(q.shape[0]):
        if counts[t] == 0:
            continue
        keys = rows[index[t, : counts[t]]].double().numpy()
        for h in range(q.shape[1]):
            logits = keys @ q[t, h].double().numpy() * scale
            top = logits.max()
            weights = np.exp(logits - top)
            weights /= weights.sum() + math.exp(sink[h].item() - top)
            outputs[t, h], sizes[t, h] = weights @ keys, weights @ np.abs(keys)
    return outputs, sizes


def in_blocks_of_64(q: np.ndarray, keys: np.ndarray, sink: float, scale: float) -> np.ndarray:
    """The reference arithmetic of one head and one query: online softmax, FP32, probabilities as BF16."""
    f32 = np.float32
    top, denominator, total = f32(-1e30), f32(0.0), np.zeros(keys.shape[1], dtype=f32)
    for first in range(0, len(keys), 64):
        block = keys[first : first + 64]
        logits = (block @ q).astype(f32) * f32(scale)
        new_top = max(top, logits.max())
        weights = np.exp((logits - new_top).astype(float)).astype(f32)
        shrink = f32(np.exp(float(top - new_top)))
        denominator = denominator * shrink + f32(weights.astype(float).sum())
        total = total * shrink + (bf16(weights) @ block).astype(f32)
        top = new_top
    denominator = denominator + f32(np.exp(float(f32(sink) - top)))
    return bf16(total / denominator)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_length_of_list_is_one_softmax_with_a_sink(kernels: Kernels, dtype: torch.dtype) -> None:
    q, rows = normal(len(COUNTS), HEADS, WIDTH, seed=1, sigma=3.0, dtype=dtype), normal(300, WIDTH, seed=2, dtype=dtype)
    index, counts = lists(len(COUNTS), 200, 300), torch.tensor(COUNTS)
    sink = torch.tensor([0.0, 2.5, -3.0])
    got = kernels.sparse_attention(q, rows, index, counts, sink, SCALE)
    assert got.dtype is dtype
    expected, sizes = exact(q, rows, index, counts, sink, SCALE)
    # Each probability is rounded to the dtype of q; logits of up to about 16 lose 2^-20 in FP32.
    assert_close(got, expected, (2.0**-8 if dtype is torch.bfloat16 else 2.0**-18) * sizes)


def test_blocks_of_64_keys_meet_in_an_online_softmax(kernels: Kernels) -> None:
    if kernels.name != "reference":
        pytest.skip("the blocks bind the reference backend only")
    q, rows = normal(len(COUNTS), HEADS, WIDTH, seed=3, sigma=3.0), normal(300, WIDTH, seed=4)
    index, counts = lists(len(COUNTS), 200, 300, seed=1), torch.tensor(COUNTS)
    sink = torch.tensor([0.0, 2.5, -3.0])
    got = kernels.sparse_attention(q, rows, index, counts, sink, SCALE).double().numpy()
    for t, count in enumerate(COUNTS):
        keys = rows[index[t, :count]].double().numpy()
        for h in range(HEADS):
            if count:
                expected = in_blocks_of_64(q[t, h].double().numpy(), keys, sink[h].item(), SCALE)
                assert np.array_equal(got[t, h], expected), (count, h)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [0, 1, 100])
def test_an_empty_list_gives_zero(kernels: Kernels, dtype: torch.dtype, width: int) -> None:
    q, rows = normal(2, HEADS, WIDTH, dtype=dtype), torch.full((4, WIDTH), math.nan, dtype=dtype)
    index, counts = torch.zeros(2, width, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    got = kernels.sparse_attention(q, rows, index, counts, torch.zeros(HEADS), SCALE)
    assert torch.equal(got, torch.zeros_like(q))


def test_the_sink_is_a_raw_logit_in_the_denominator_only(kernels: Kernels) -> None:
    # One key with logit 0: the sink alone decides, without the softmax scale.
    q, rows = torch.zeros(1, 5, WIDTH), torch.ones(1, WIDTH)
    sink = torch.tensor([0.0, 1.0, -1.0, 20.0, -1e4])
    got = kernels.sparse_attention(q, rows, torch.zeros(1, 1, dtype=torch.int64), torch.tensor([1]), sink, SCALE)
    expected = 1 / (1 + np.exp(sink.double().numpy()))
    assert_close(got[0, :, 0], expected, 1e-6 * expected)


def test_a_sink_far_above_every_logit_leaves_almost_nothing(kernels: Kernels) -> None:
    q, rows = normal(1, 2, WIDTH, seed=5), normal(8, WIDTH, seed=6)
    index, counts = lists(1, 8, 8), torch.tensor([8])
    got = kernels.sparse_attention(q, rows, index, counts, torch.tensor([80.0, 1000.0]), SCALE)
    assert got.isfinite().all()
    assert got.abs().max() < 1e-30


def test_a_row_listed_twice_counts_twice(kernels: Kernels) -> None:
    q = torch.zeros(1, 1, 2, dtype=torch.float32)
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    no_sink = torch.tensor([-1e4])
    got = kernels.sparse_attention(q, rows, torch.tensor([[0, 1, 0]]), torch.tensor([3]), no_sink, 1.0)
    assert_close(got, np.array([[[2 / 3, 1 / 3]]]), 1e-6)


def test_unused_entries_of_a_list_change_no_bit(kernels: Kernels) -> None:
    q, rows = normal(4, HEADS, WIDTH, seed=7), normal(50, WIDTH, seed=8)
    rows[17] = math.nan
    index = lists(4, 70, 17, seed=2)
    counts = torch.tensor([0, 3, 64, 66])
    unused = torch.arange(70) >= counts.unsqueeze(1)
    expected = kernels.sparse_attention(q, rows, index.masked_fill(unused, 0), counts, torch.zeros(HEADS), SCALE)
    for filler in (-1, 17, 49):
        filled = index.masked_fill(unused, filler)
        got = kernels.sparse_attention(q, rows, filled, counts, torch.zeros(HEADS), SCALE)
        assert torch.equal(got, expected)
        wider = torch.nn.functional.pad(filled, (0, 90), value=filler)
        assert torch.equal(kernels.sparse_attention(q, rows, wider, counts, torch.zeros(HEADS), SCALE), expected)


def test_a_nan_row_reaches_only_the_queries_that_list_it(kernels: Kernels) -> None:
    q, rows = normal(3, HEADS, WIDTH, seed=9), normal(10, WIDTH, seed=10)
    rows[0] = math.nan
    index = torch.tensor([[1, 2, 0], [1, 0, 2], [3, 4, 5]])
    got = kernels.sparse_attention(q, rows, index, torch.tensor([2, 2, 3]), torch.zeros(HEADS), SCALE)
    assert got[[0, 2]].isfinite().all()
    assert got[1].isnan().all()


@pytest.mark.parametrize("channel", [0, 31, 32, 63, 64, 127, 128, 255, 256, 448, 511])
def test_every_channel_of_a_512_wide_head_is_reduced(kernels: Kernels, channel: int) -> None:
    q, rows = torch.zeros(1, 1, 512, dtype=torch.bfloat16), torch.zeros(2, 512, dtype=torch.bfloat16)
    q[0, 0, channel] = 8.0
    rows[0, channel], rows[1, channel] = 4.0, -4.0
    got = kernels.sparse_attention(q, rows, torch.tensor([[0, 1]]), torch.tensor([2]), torch.tensor([-1e4]), 1.0)
    assert got[0, 0, channel] == 4.0
    assert got.count_nonzero() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_queries_stand_alone(kernels: Kernels, dtype: torch.dtype) -> None:
    q, rows = normal(64, HEADS, 512, seed=11, dtype=dtype), normal(256, 512, seed=12, dtype=dtype)
    index, counts = lists(64, 140, 256, seed=3), torch.arange(64) * 140 // 63
    sink = torch.tensor([0.0, 1.0, -1.0])

    def attend(numbers: torch.Tensor) -> torch.Tensor:
        width = int(counts[numbers].max())  # a batch is only as wide as its longest list
        return kernels.sparse_attention(q[numbers], rows, index[numbers, :width], counts[numbers], sink, 512**-0.5)

    assert_rows_stand_alone(attend)
