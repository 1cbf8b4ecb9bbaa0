"""The indexer's mathematics: scores, the selection of rows, candidate blocks.

    I(p, j) = sum_h w_h * relu(q_h . k_j)

The ReLU acts on each head's dot product, before the head weight; folding heads first is another function.
Ties: higher score, then smaller position or block.  spec: attention.md sections 11.1 to 11.4.
"""

import torch
from torch import Tensor

from flash41.kernels.reference.arithmetic import matmul
from flash41.numerics.stored_rows import Keys, as_keys

SCRATCH_ELEMENTS = 1 << 24
"""Head scores held at a time; bounds scratch memory, never changes a result."""


def index_scores(q: Tensor, keys: Keys, weights: Tensor) -> Tensor:
    """FP32 scores [S, L, N]: q [S, L, heads, d], keys [S, N, d], weights FP32 [S, L, heads]."""
    keys = as_keys(keys)
    wide, wide_keys, wide_weights = q.double(), keys.double().mT.unsqueeze(1), weights.double().unsqueeze(2)
    step = max(1, SCRATCH_ELEMENTS // max(1, q.shape[0] * q.shape[2] * keys.shape[1]))
    bands = []
    for first in range(0, q.shape[1], step):
        heads = torch.matmul(wide[:, first : first + step], wide_keys).relu_()
        band = torch.matmul(wide_weights[:, first : first + step], heads)
        bands.append(band.squeeze(2).float())
    return bands[0] if len(bands) == 1 else torch.cat(bands, 1)


def index_scores_bf16_chain(q: Tensor, keys: Keys, weights: Tensor) -> Tensor:
    """The official demo's chain: dot to BF16, ReLU, product with BF16 weights, head sum to BF16 (profile `demo`)."""
    heads = matmul(q, as_keys(keys).transpose(1, 2).unsqueeze(1)).to(torch.bfloat16).relu()
    weighted = heads * weights.to(torch.bfloat16).unsqueeze(-1)
    return weighted.double().sum(2).to(torch.bfloat16).float()


def select_rows(scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
    """The best `topk` allowed rows of each query, int64 [T, topk], ascending, -1 tail.

    scores FP32 [T, N]; allowed bool [T, N] is the visible prefix, for a bounded scorer inside its candidates.  NaN and
    negative infinity rank last among allowed rows; a row that is not allowed is never returned.
    """
    return _best(finite(scores).masked_fill(~allowed, -torch.inf), topk)


def candidate_blocks(scores: Tensor, visible: Tensor, num_blocks: int, block_size: int) -> Tensor:
    """Blocks of rows kept per query, int64 [T, min(num_blocks, blocks)], ascending, -1 tail.

    scores FP32 [T, N]; visible int64 [T].  A block scores the maximum of its visible rows; the block that holds the
    newest visible row is always kept and counts among `num_blocks`; a block with nothing visible is dropped.
    """
    total = -(-scores.shape[1] // block_size)
    rows = torch.arange(scores.shape[1])
    masked = finite(scores).masked_fill(rows >= visible.unsqueeze(1), -torch.inf)
    padded = torch.nn.functional.pad(masked, (0, total * block_size - scores.shape[1]), value=-torch.inf)
    best = padded.view(scores.shape[0], total, block_size).amax(2)
    blocks = torch.arange(total)
    # No visible score is infinite any more, so the pin wins every tie.  The pinned block of a query that sees nothing
    # would be block -1: there is none, and everything is dropped.
    best = best.masked_fill(blocks == ((visible - 1) // block_size).unsqueeze(1), torch.inf)
    return _best(best, min(num_blocks, total))


def inside_blocks(candidates: Tensor, num_rows: int, block_size: int) -> Tensor:
    """Which rows lie in the blocks of `candidates` [T, n] (-1 = none): bool [T, num_rows]."""
    total = -(-num_rows // block_size)
    marks = torch.zeros(candidates.shape[0], total + 1, dtype=torch.bool)
    marks.scatter_(1, torch.where(candidates < 0, total, candidates), True)
    return marks[:, :total].repeat_interleave(block_size, 1)[:, :num_rows]


def finite(scores: Tensor) -> Tensor:
    """NaN and -inf become the lowest finite value, +inf the largest: `-inf` is left for rows that do not exist."""
    limit = torch.finfo(scores.dtype).max
    return torch.nan_to_num(scores, nan=-limit, posinf=limit, neginf=-limit)


def _best(scores: Tensor, count: int) -> Tensor:
    """int64 [T, count]: the highest entries of scores [T, N] above -inf, ascending by position, -1 tail.

    The sort is stable, so equal scores (0.0 and -0.0 too) go to the smaller position.
    """
    num_entries = scores.shape[1]
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
    chosen = torch.where(scores.gather(1, order) > -torch.inf, order, num_entries).sort(dim=1).values
    chosen = torch.where(chosen < num_entries, chosen, -1)
    return torch.nn.functional.pad(chosen, (0, count - chosen.shape[1]), value=-1)
