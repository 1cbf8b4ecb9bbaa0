"""Operations about which rows or experts are read, through the compiled library: scores, selections, attention, router.

Logits and denominators are FP32, sums of index scores over heads FP64; the blocks of attention are those of the
reference.  Rows of a plane are read in the format they are stored in, with the bits they would have as BF16.

A dot of an index query with a key, both on the FP4/32 grid, is a sum of integers in each group of 32 channels, exact,
and FP32 over groups, ascending; every other dot is FP32, lane by lane.  What the library cannot take goes to the
reference backend.
"""

import ctypes

import torch
from torch import Tensor

from flash41.kernels.cpu.library import DTYPES, Attention, FullAttention, Library, Scores, StoredRecord
from flash41.kernels.cpu.stored import described
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.numerics.stored_rows import AttendedRows, Keys, PagedRows, RowStack, StoredRows

MOST_ENTRIES = 1 << 32
"""Rows a selection can number."""

NO_PLANE = (1 << 63) - 1
"""Own rows of a stack that has no others: no number reaches a plane."""


class ListOperations:
    """Attention, indexer and router of one library."""

    def __init__(self, library: Library, reference: ReferenceKernels) -> None:
        self._library = library
        self._reference = reference

    def sparse_attention(
        self, q: Tensor, rows: AttendedRows, index: Tensor, counts: Tensor, sink: Tensor, scale: float
    ) -> Tensor:
        """See `Kernels.sparse_attention`."""
        own = rows.own if isinstance(rows, RowStack) else rows
        plane = described(rows.plane) if isinstance(rows, RowStack) else StoredRecord()
        if q.dtype not in DTYPES or own.dtype is not q.dtype or sink.dtype is not torch.float32 or plane is None:
            return self._reference.sparse_attention(q, rows, index, counts, sink, scale)
        q, own, counts, sink = q.contiguous(), own.contiguous(), counts.contiguous(), sink.contiguous()
        if index.stride(-1) != 1:
            index = index.contiguous()
        out = torch.empty_like(q)
        job = Attention(
            q=q.data_ptr(),
            own=described(StoredRows.of(own)),
            plane=plane,
            num_own=len(own) if isinstance(rows, RowStack) else NO_PLANE,
            index=index.data_ptr(),
            counts=counts.data_ptr(),
            sink=sink.data_ptr(),
            out=out.data_ptr(),
            rows=q.shape[0],
            heads=q.shape[1],
            width=q.shape[2],
            length=index.shape[1],
            index_stride=index.stride(0),
            dtype=DTYPES[q.dtype],
            scale=scale,
        )
        self._library.call("attention", ctypes.byref(job))
        return out

    def full_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See `Kernels.full_attention`."""
        if q.dtype not in DTYPES or not q.dtype is k.dtype is v.dtype:
            return self._reference.full_attention(q, k, v, scale)
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = torch.empty_like(q)
        job = FullAttention(
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            out=out.data_ptr(),
            rows=q.shape[0],
            heads=q.shape[1],
            width=q.shape[2],
            dtype=DTYPES[q.dtype],
            scale=scale,
        )
        self._library.call("full_attention", ctypes.byref(job))
        return out

    def inside_blocks(self, candidates: Tensor, num_rows: int, block_size: int) -> Tensor:
        """See `Kernels.inside_blocks`."""
        candidates = candidates.contiguous()
        out = torch.zeros(len(candidates), num_rows, dtype=torch.bool)
        self._library.call(
            "inside_blocks", candidates.data_ptr(), *candidates.shape, num_rows, block_size, out.data_ptr()
        )
        return out

    def index_scores(self, q: Tensor, keys: Keys, weights: Tensor) -> Tensor:
        """See `Kernels.index_scores`."""
        paged = keys if isinstance(keys, PagedRows) else PagedRows.of(keys)
        record = described(paged.rows)
        if q.dtype not in DTYPES or weights.dtype is not torch.float32 or record is None:
            return self._reference.index_scores(q, keys, weights)
        requests, length, heads, width = q.shape
        q, weights, pages = q.contiguous(), weights.contiguous(), paged.pages.contiguous()
        blocks = None if paged.blocks is None else paged.blocks.contiguous()
        # Rows that nobody wants scores of get none.
        scores = (
            torch.full((requests, length, paged.num_rows), -torch.inf)
            if blocks is not None
            else torch.empty(requests, length, paged.num_rows)
        )
        job = Scores(
            q=q.data_ptr(),
            weights=weights.data_ptr(),
            keys=record,
            pages=pages.data_ptr(),
            scores=scores.data_ptr(),
            requests=requests,
            length=length,
            heads=heads,
            width=width,
            dtype=DTYPES[q.dtype],
            num_pages=pages.shape[1],
            rows_per_page=paged.rows_per_page,
            num_keys=paged.num_rows,
            blocks=None if blocks is None else blocks.data_ptr(),
            num_blocks=0 if blocks is None else blocks.shape[2],
            block_size=paged.block_size,
        )
        self._library.call("index_scores", ctypes.byref(job))
        return scores

    def select_rows(self, scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
        """See `Kernels.select_rows`."""
        if scores.dtype is not torch.float32 or scores.shape[1] >= MOST_ENTRIES:
            return self._reference.select_rows(scores, allowed, topk)
        scores, allowed = scores.contiguous(), allowed.contiguous()
        out = torch.empty(len(scores), topk, dtype=torch.int64)
        self._library.call("select_rows", scores.data_ptr(), allowed.data_ptr(), *scores.shape, topk, out.data_ptr())
        return out

    def candidate_blocks(self, scores: Tensor, visible: Tensor, num_blocks: int, block_size: int) -> Tensor:
        """See `Kernels.candidate_blocks`."""
        if scores.dtype is not torch.float32 or scores.shape[1] >= MOST_ENTRIES:
            return self._reference.candidate_blocks(scores, visible, num_blocks, block_size)
        scores, visible = scores.contiguous(), visible.contiguous()
        count = min(num_blocks, -(-scores.shape[1] // block_size))
        out = torch.empty(len(scores), count, dtype=torch.int64)
        self._library.call(
            "candidate_blocks",
            scores.data_ptr(),
            visible.data_ptr(),
            *scores.shape,
            count,
            block_size,
            out.data_ptr(),
        )
        return out

    def route(self, logits: Tensor, bias: Tensor, topk: int, route_scale: float) -> tuple[Tensor, Tensor]:
        """See `Kernels.route`."""
        if logits.dtype is not torch.float32 or bias.dtype is not torch.float32:
            return self._reference.route(logits, bias, topk, route_scale)
        logits, bias = logits.contiguous(), bias.contiguous()
        num_rows, num_experts = logits.shape
        ids = torch.empty(num_rows, topk, dtype=torch.int64)
        weights = torch.empty(num_rows, topk)
        self._library.call(
            "route",
            logits.data_ptr(),
            bias.data_ptr(),
            num_experts if bias.dim() == 2 else 0,
            num_rows,
            num_experts,
            topk,
            route_scale,
            ids.data_ptr(),
            weights.data_ptr(),
        )
        return ids, weights
