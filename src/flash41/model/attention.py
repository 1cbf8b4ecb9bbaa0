"""CSA2 attention of one layer, in all four modes.

    qr  = RMS(wq_a x; q_norm);   q = RoPE_p(wq_b qr)                 per head, no norm after wq_b
    kv  = round(RoPE_p(RMS(wkv x; kv_norm)))                          this layer's own window row, K and V at once
    FULL             latent -> index key -> (scores) -> rotated, rounded main row
    FULL, REINDEX    scores -> selection;     REUSE takes the selection its scorer made in this forward
    o   = attention(q, window rows ++ selected rows)
    y   = wo_b(wo_a(RoPE_p^-1(o) in groups))

Every layer computes its own query and its own window row; only compressed rows, index keys, selections and candidates
are shared.  spec: attention.md sections 3, 5, 8 and 9.
"""

import torch
from torch import Tensor, nn

from flash41.cache.views import Rows, WindowRows
from flash41.config.architecture import AttentionConfig
from flash41.config.topology import LayerSpec
from flash41.kernels.interface import Kernels
from flash41.model.batch import Angles, RowLists, Selection, Selections, Step
from flash41.model.compressor import Compressor
from flash41.model.indexer import Indexer
from flash41.model.linear import GroupedOutput, RMSNorm, ScaledLinear
from flash41.model.rope import Rope
from flash41.model.rounding import Roundings, as_tensor
from flash41.numerics.stored_rows import AttendedRows, RowStack


class Attention(nn.Module):
    """`layers.L.attn` or `mtp.s.attn`; `compressor` and `indexer` are None in the modes that have none."""

    def __init__(
        self,
        spec: LayerSpec,
        name: str,
        config: AttentionConfig,
        *,
        wq_a: ScaledLinear,
        q_norm: RMSNorm,
        wq_b: ScaledLinear,
        wkv: ScaledLinear,
        kv_norm: RMSNorm,
        attn_sink: Tensor,
        wo_a: GroupedOutput,
        wo_b: ScaledLinear,
        compressor: Compressor | None,
        indexer: Indexer | None,
        rope: Rope,
        roundings: Roundings,
        kernels: Kernels,
    ) -> None:
        super().__init__()
        self.wq_a, self.q_norm, self.wq_b = wq_a, q_norm, wq_b
        self.wkv, self.kv_norm = wkv, kv_norm
        self.attn_sink = attn_sink
        self.wo_a, self.wo_b = wo_a, wo_b
        self.compressor = compressor
        self.indexer = indexer
        self._rope = rope
        self._spec = spec
        self._config = config
        self._name = name
        self._round = roundings
        self._kernels = kernels

    def forward(self, x: Tensor, step: Step, selections: Selections) -> Tensor:
        """[T, D] normed inputs -> [T, D]."""
        probe, angles = step.probe, step.angles[self._spec.ratio]
        query, row = self.wq_a.beside(self.wkv, x)
        qr = self.q_norm(query)
        if self.indexer is None:
            heads, index_heads = self.wq_b(qr), None
        else:
            heads, index_heads = self.wq_b.beside(self.indexer.wq_b, qr)
        # Query heads and the window row turn by the same angles, so they turn together.
        q = heads.view(-1, self._config.num_heads, self._config.head_dim)
        turned = self._kernels.rotate(torch.cat((q, self.kv_norm(row).unsqueeze(1)), 1), *angles)
        q, kv = turned[:, :-1], self._round.window(turned[:, -1])
        probe(f"{self._name}.attn.q", q)
        if probe.active:
            probe(f"{self._name}.attn.window_row", as_tensor(kv, x.dtype))
        window = step.view.window(self._spec.layer_id, kv)
        if self.compressor is not None:
            self._write_plane(x, self.compressor, step)
        if self.indexer is not None:
            self._score(self.indexer, x, index_heads, step, selections)
        rows, lists = self._rows(window, step, selections)
        scale = self._config.head_dim**-0.5
        o = self._kernels.sparse_attention(q, rows, lists.index, lists.counts, self.attn_sink, scale)
        o = self._kernels.rotate(o, *angles, inverse=True)
        return self.wo_b(self.wo_a(o.reshape(o.shape[0], self._config.o_groups, -1)))

    def context_row(self, x: Tensor, angles: Angles) -> Rows:
        """[n, D] -> [n, d]: window rows of inputs that ask nothing; what the target hands to a draft stage."""
        row = self.kv_norm(self.wkv(x)).unsqueeze(1)
        return self._round.window(self._kernels.rotate(row, *angles).squeeze(1))

    def _write_plane(self, x: Tensor, compressor: Compressor, step: Step) -> None:
        """Latent, index key, main row of the groups this batch closes, in that order; scoring follows."""
        owner = self._spec.layer_id
        latent = compressor(x, step.view, owner)
        if len(latent) == 0:
            return  # every group of this batch stays open
        angles = self._rope.angles(step.view.closed_groups(compressor.ratio).positions, compressor.ratio)
        assert self.indexer is not None, "an owner scores its own plane"
        assert self.indexer.key is not None, "an owner makes its own keys"
        key = self.indexer.key(latent, angles)
        step.view.append_index(owner, key)
        main = self._round.main(self._kernels.rotate(latent, *angles))
        step.view.append_main(owner, main)
        if step.probe.active:
            step.probe(f"{self._name}.attn.latent", latent)
            step.probe(f"{self._name}.index.key", as_tensor(key, x.dtype))
            step.probe(f"{self._name}.attn.main_row", as_tensor(main, x.dtype))

    def _score(self, indexer: Indexer, x: Tensor, heads: Tensor | None, step: Step, selections: Selections) -> None:
        """Chooses rows for this layer and all that reuse its choice in this forward."""
        assert heads is not None, "a scorer projects its index heads beside its query"
        selections.by_owner[self._spec.layer_id] = indexer(x, heads, step, selections)

    def _rows(self, window: WindowRows, step: Step, selections: Selections) -> tuple[AttendedRows, RowLists]:
        """The rows this layer reads where they lie, and each query's list of them."""
        owner, topk_owner = self._spec.kv_owner, self._spec.topk_owner
        if owner is None or topk_owner is None or selections.by_owner[topk_owner].width == 0:
            return window.rows, RowLists(index=window.index, counts=window.counts)
        key = (topk_owner, self._spec.ratio)
        if key not in selections.lists:  # layers that reuse a choice read the same numbers, each in its own plane
            selection = selections.by_owner[topk_owner]
            numbers = step.view.main_numbers(owner, selection.rows[:, : selection.width])
            selections.lists[key] = join(window, selection, numbers)
        return RowStack(own=window.rows, plane=step.view.main_rows(owner)), selections.lists[key]


def join(window: WindowRows, selection: Selection, numbers: Tensor) -> RowLists:
    """Lists of window rows with the selected rows appended, whose numbers [T, width] in their plane are given.

    [window 0 .. c-1 | selected 0 .. s-1 | unused ...]      c, s differ from query to query
    """
    width, counts = selection.width, window.counts
    slot = torch.arange(window.index.shape[1] + width) - counts.unsqueeze(1)
    padded = torch.nn.functional.pad(window.index, (0, width))
    far = len(window.rows) + numbers.gather(1, slot.clamp(min=0, max=width - 1))
    return RowLists(index=torch.where(slot < 0, padded, far), counts=counts + selection.counts)
