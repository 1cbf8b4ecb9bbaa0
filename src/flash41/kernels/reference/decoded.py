"""Weights decoded to FP64 for the products of this backend, the most recently used ones kept.

Weights stay in their stored formats; a product decodes what it needs.  For a small model decoding costs more than the
product, so decoded weights are kept while they fit a budget of bytes, and the least recently used go first.  A weight
larger than a band is never kept: it is decoded band by band at every use.  Keeping changes no result.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from flash41.numerics.scaled import Quantized

GROUP = 32
"""Channels of K that share an activation scale and a weight scale."""

ELEMENTS_PER_BAND = 1 << 21
"""Weight elements decoded at a time; bounds scratch memory, never changes a result."""

DEFAULT_BUDGET_BYTES = 256 << 20

Key = tuple[str | int, ...]


class DecodedWeights:
    """Decodes weights and keeps what fits into `budget_bytes`."""

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.held_bytes = 0
        # Sources are kept beside their result: while they live, their identity names nothing else.
        self._kept: OrderedDict[Key, tuple[tuple[Quantized | Tensor, ...], Tensor]] = OrderedDict()

    def blocks(self, *weights: Quantized) -> Iterable[Tensor]:
        """FP64 [K / 32, 32, n] of scaled weights [N, K] stacked along N, in bands of output rows."""
        kept = self._find("blocks", weights)
        if kept is not None:
            return (kept,)
        if sum(weight.shape[0] for weight in weights) * weights[0].shape[1] <= ELEMENTS_PER_BAND:
            return (self._keep("blocks", weights, torch.cat([_blocks(weight) for weight in weights], -1)),)
        return (_blocks(part) for weight in weights for part in _bands(weight))

    def matrix(self, weight: Quantized) -> Iterable[Tensor]:
        """FP64 [K, n] of a scaled weight [N, K], in bands of output rows."""
        kept = self._find("matrix", (weight,))
        if kept is not None:
            return (kept,)
        bands = _bands(weight)
        if len(bands) == 1:
            return (self._keep("matrix", (weight,), weight.dequantize(torch.float64).t()),)
        return (part.dequantize(torch.float64).t() for part in bands)

    def groups(self, *weights: Quantized) -> Iterable[Tensor]:
        """FP64 [groups, K, n] of scaled weights [N, K] of one shape, in bands of their output rows."""
        kept = self._find("groups", weights)
        if kept is not None:
            return (kept,)
        num_rows, width = weights[0].shape
        step = max(GROUP, ELEMENTS_PER_BAND // (len(weights) * width) // GROUP * GROUP)
        if step >= num_rows:
            return (self._keep("groups", weights, _stack(weights, 0, num_rows)),)
        return (_stack(weights, first, min(first + step, num_rows)) for first in range(0, num_rows, step))

    def plain(self, weight: Tensor) -> Iterable[Tensor]:
        """FP64 transpose [..., K, n] of an unscaled weight [..., N, K], in bands of output rows."""
        kept = self._find("plain", (weight,))
        if kept is not None:
            return (kept,)
        if weight.numel() <= ELEMENTS_PER_BAND:
            return (self._keep("plain", (weight,), weight.double().mT),)
        step = max(1, ELEMENTS_PER_BAND * weight.shape[-2] // weight.numel())
        return (part.double().mT for part in weight.split(step, dim=-2))

    def num_in_a_band(self, *weights: Quantized) -> int:
        """How many stacks of weights like these fit into one band; 1 where not even one does."""
        num_elements = sum(weight.shape[0] * weight.shape[1] for weight in weights)
        return max(1, ELEMENTS_PER_BAND // num_elements)

    def spread(self, values: Tensor, counts: tuple[int, ...]) -> Tensor:
        """Each entry of a vector repeated as often as `counts` says."""
        kind = f"spread {counts}"
        kept = self._find(kind, (values,))
        if kept is None:
            kept = self._keep(kind, (values,), values.repeat_interleave(torch.tensor(counts)))
        return kept

    def _find(self, kind: str, sources: tuple[Quantized | Tensor, ...]) -> Tensor | None:
        """A decoded weight that is kept.  Looked up before anything else: a small model asks for nothing new."""
        key: Key = (kind, *map(id, sources))
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[1]

    def _keep(self, kind: str, sources: tuple[Quantized | Tensor, ...], decoded: Tensor) -> Tensor:
        self._kept[kind, *map(id, sources)] = (sources, decoded)
        self.held_bytes += decoded.nbytes
        while self.held_bytes > self.budget_bytes:
            self.held_bytes -= self._kept.popitem(last=False)[1][1].nbytes
        return decoded


def _stack(weights: Sequence[Quantized], first: int, last: int) -> Tensor:
    return torch.stack([weight.slice_rows(first, last).dequantize(torch.float64) for weight in weights]).mT


def _bands(weight: Quantized) -> list[Quantized]:
    num_rows, width = weight.shape
    step = max(GROUP, ELEMENTS_PER_BAND // width // GROUP * GROUP)
    if step >= num_rows:
        return [weight]
    return [weight.slice_rows(first, min(first + step, num_rows)) for first in range(0, num_rows, step)]


def _blocks(weight: Quantized) -> Tensor:
    num_rows, width = weight.shape
    values = weight.dequantize(torch.float64).view(num_rows, width // GROUP, GROUP)
    return values.permute(1, 2, 0).contiguous()
