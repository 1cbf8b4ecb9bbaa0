"""Kernels with one operation left out or replaced, for showing that a comparison notices.

A subclass of `Wrapped` computes as the kernels inside it do, but for what it replaces.
"""

from typing import Any

import torch
from torch import Tensor

from flash41.kernels.interface import ExpertBank, ExpertWeights, Kernels
from flash41.numerics.stored_rows import AttendedRows, Keys, as_keys


class Wrapped:
    """Kernels that compute as the inner ones do, but for what a subclass replaces."""

    def __init__(self, inner: Kernels) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class WithoutRelu(Wrapped):
    """Scores heads without their ReLU."""

    def index_scores(self, q: Tensor, keys: Keys, weights: Tensor) -> Tensor:
        """Folds the heads into one query."""
        folded = (q.double() * weights.double().unsqueeze(-1)).sum(2)
        return torch.matmul(folded, as_keys(keys).double().transpose(1, 2)).float()


class WithTransposedComb(Wrapped):
    """Mixes streams by destination instead of by source."""

    def mhc_apply(self, x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """Turns the matrix over."""
        return self.inner.mhc_apply(x, y, post, comb.transpose(1, 2).contiguous())


class WithoutEngram(Wrapped):
    """Adds no n-gram rows."""

    def engram_apply(self, x: Tensor, _gate: Tensor, _value: Tensor) -> Tensor:
        """Hands the streams on."""
        return x


class WithoutCandidates(Wrapped):
    """Lets every scorer choose among all rows."""

    def inside_blocks(self, candidates: Tensor, num_rows: int, _block_size: int) -> Tensor:
        """Every row."""
        return torch.ones(candidates.shape[0], num_rows, dtype=torch.bool)


class WithoutExpert(Wrapped):
    """One expert answers zero, as if its tensors had never been filled."""

    def __init__(self, inner: Kernels, expert: int) -> None:
        super().__init__(inner)
        self._expert = expert

    def experts(self, x: Tensor, ids: Tensor, weights: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        """Gives the expert no weight."""
        return self.inner.experts(x, ids, weights.masked_fill(ids == self._expert, 0.0), *rest)


class WithoutSharedExpert(Wrapped):
    """Adds routed experts only."""

    def experts(self, x: Tensor, ids: Tensor, weights: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        """Drops the shared output."""
        routed, shared = self.inner.experts(x, ids, weights, *rest)
        return routed, torch.zeros_like(shared)


class WithWeightAfterDown(Wrapped):
    """Multiplies an expert's output with the routing weight, not its activation."""

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
        """One expert of each token at a time, unweighted, then weighted."""
        total, alone = torch.zeros(x.shape), torch.zeros_like(x)
        for column in range(ids.shape[1]):
            one = ids[:, column : column + 1]
            whole = torch.ones(one.shape)
            routed, alone = self.inner.experts(x, one, whole, bank, shared, limit, quantize_input)
            total += routed * weights[:, column : column + 1]
        return total, alone


class WithoutRouteScale(Wrapped):
    """Leaves the weights of a token's experts at a sum of 1."""

    def route(self, logits: Tensor, bias: Tensor, topk: int, _route_scale: float) -> tuple[Tensor, Tensor]:
        """Scale 1."""
        return self.inner.route(logits, bias, topk, 1.0)


class WithoutRouterBias(Wrapped):
    """Chooses experts by their scores alone."""

    def route(self, logits: Tensor, bias: Tensor, topk: int, route_scale: float) -> tuple[Tensor, Tensor]:
        """Bias 0."""
        return self.inner.route(logits, torch.zeros_like(bias), topk, route_scale)


class WithoutOutputRotation(Wrapped):
    """Does not turn attention's output back."""

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
        """Turns forward only."""
        return x if inverse else self.inner.rotate(x, cos, sin)


class WithoutSink(Wrapped):
    """Attends without the sink in the denominator."""

    def sparse_attention(
        self, q: Tensor, rows: AttendedRows, index: Tensor, counts: Tensor, sink: Tensor, scale: float
    ) -> Tensor:
        """A sink of minus infinity weighs nothing."""
        return self.inner.sparse_attention(q, rows, index, counts, torch.full_like(sink, -torch.inf), scale)


class WithFirstStream(Wrapped):
    """Feeds every sub-layer the first stream instead of the mix that was asked for."""

    def mhc_collapse(self, x: Tensor, _pre: Tensor) -> Tensor:
        """Stream 0."""
        return x[:, 0].contiguous()


class WithLatestRows(Wrapped):
    """Selects the newest rows instead of the best."""

    def select_rows(self, scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
        """Scores rows by their number."""
        newest = torch.arange(scores.shape[1], dtype=torch.float32).expand_as(scores).contiguous()
        return self.inner.select_rows(newest, allowed, topk)


class WithMeanPooling(Wrapped):
    """Folds the tokens of a group with equal weights."""

    def pool_group(self, values: Tensor, _scores: Tensor) -> Tensor:
        """The mean."""
        return values.mean(1)
