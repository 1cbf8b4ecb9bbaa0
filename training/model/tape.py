"""What a forward leaves for the rules that no gradient of the answer serves: the indexer and the router.

Indexer.  A selection is discrete, so the answer teaches the selected rows and not who selected them.  Each scorer is
taught to imitate attention: with m_j the mass that the heads of a layer gave to selected row j (no gradient), and s_j
the scorer's scores of the same rows,

    loss = - sum_j  m_j log softmax(s)_j ,      mean over the queries that selected anything

once for every layer that used the selection.  Behind a bounded scorer the candidate source is asked for the blocks: the
same loss, with M_b the mass inside block b and the maximum of the source's scores in it, over all visible blocks.  So
the source ranks rows as its own layer needs them and blocks as the later layers do.  The losses reach the trunk too:
latent and query rows learn to be found.

Hidden rows.  Some rows are hidden from the attention of layers up to the source, so that the source gives them no score
and only a bounded scorer finds them.  In other sequences the bounded scorers are confined to the source's selection, so
that nothing but the hidden rows needs them.

Router.  Ids of the chosen experts, layer after layer.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from training.model.dense import visible_bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One scorer's selection, with the scores it came from."""

    scores: Tensor
    """FP32 [T, N] with gradient."""
    allowed: Tensor
    """bool [T, N]: rows it could select."""
    selected: Tensor
    """int64 [T, topk], -1 tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a forward's rows lie: R sequences of L tokens, and what they may see."""

    num_sequences: int
    length: int
    window: int


@dataclass(slots=True)
class Tape:
    """Notes of one forward; a new forward gets a new tape."""

    block_size: int = 8
    """Rows of a candidate block."""
    topk: int = 32
    """Rows of a selection, when scorers choose."""
    source: int | None = None
    """Layer id of the candidate source."""
    scoring: bool = True
    """Whether scorers score; only where every visible row is selected may they be left out."""
    layout: Layout | None = None
    """Of the forward, where every visible row is selected; None where scorers choose."""
    hidden: Tensor | None = None
    """bool [R, L]: tokens whose compressed rows layers up to the candidate source do not read."""
    confined: Tensor | None = None
    """bool [T]: queries whose bounded scorers are given the source's selection."""
    tableless: Tensor | None = None
    """bool [T]: tokens to which no n-gram row is added."""
    unbounded: Tensor | None = None
    """bool [T]: queries whose bounded scorers choose among all visible rows."""
    importance: Tensor | None = None
    """FP32 [T]: weight of each query where scorers imitate; None: all alike."""
    misrouted: Tensor | None = None
    """bool [T]: tokens that choose experts with the bias of text, whatever they are."""
    blocked: Tensor | None = None
    """bool [plane rows]: `hidden` for the plane that the next attention reads."""
    routes: list[Tensor] = field(default_factory=list)
    """int64 [T, k] of every router, in order of the layers."""
    imitation: list[Tensor] = field(default_factory=list)
    """Scalar losses of the scorers."""
    shunned: list[Tensor] = field(default_factory=list)
    """Scalar losses of the source, for hidden rows that it would select."""
    _scored: dict[int, Scored] = field(default_factory=dict)
    _scorer: int = -1
    _bounded_by: int | None = None
    _reader: int | None = None
    _source: int | None = None
    _biases: dict[int, Tensor] = field(default_factory=dict)

    def bias(self, layout: Layout, ratio: int) -> Tensor:
        """`visible_bias` of a ratio, made once."""
        if ratio not in self._biases:
            self._biases[ratio] = visible_bias(layout.length, layout.window, ratio)
        return self._biases[ratio]

    def scores(self, layer_id: int, source: int | None) -> None:
        """The next selection is this layer's, inside the blocks of `source` if there is one."""
        self._scorer, self._bounded_by = layer_id, source

    def reads(self, scorer: int | None, source: int | None) -> None:
        """The next attention reads a scorer's selection, which lies inside the blocks of `source` if there is one."""
        self._reader, self._source, self.blocked = scorer, source, None

    def block(self, ratio: int | None) -> None:
        """The next attention does not read hidden rows of its plane, whose ratio is told; None: it reads all."""
        if ratio is None or self.hidden is None:
            return
        self.blocked = self._hidden_rows(ratio).flatten()

    def selected(self, scores: Tensor, allowed: Tensor, selected: Tensor) -> Tensor:
        """A scorer selected, for all rows of the forward at once; returns what its layers shall read."""
        if self._bounded_by is not None and self.confined is not None and self.layout is None:
            source = self._scored[self._bounded_by].selected
            selected = torch.where(self.confined.unsqueeze(1), source, selected)
        if self._scorer == self.source and self.hidden is not None:
            self._shun(scores, allowed, self.hidden)
        self._scored[self._scorer] = Scored(scores=scores, allowed=allowed, selected=selected)
        return selected

    def _shun(self, scores: Tensor, allowed: Tensor, hidden: Tensor) -> None:
        kept, num_rows = hidden.any(1), scores.shape[1]
        rows = self._hidden_rows(hidden.shape[1] // num_rows)[kept].unsqueeze(1)
        by_sequence = (*hidden.shape, num_rows)
        self.shunned.append(excess(scores.view(by_sequence)[kept], allowed.view(by_sequence)[kept], rows, self.topk))

    def attended(self, masses: Tensor, counts: Tensor) -> None:
        """A layer attended: masses [T, H, n], of whose counts [T] real entries the last ones are the selection."""
        if self._reader is None:
            return
        selected = self._scored[self._reader].selected
        width = int((selected >= 0).sum(1).max())
        if width == 0:
            return
        rows = selected[:, :width]
        real = rows >= 0
        slots = (counts - real.sum(1)).unsqueeze(1) + torch.arange(width)
        mass = masses.sum(1).gather(1, slots.clamp(max=masses.shape[2] - 1)).masked_fill(~real, 0.0)
        self._imitate(rows, mass)

    def attended_all(self, mass: Tensor) -> None:
        """A layer attended to every visible row of its plane: mass [T, n] of all heads."""
        if self._reader is not None and self.scoring:
            self._imitate(self._scored[self._reader].selected[:, : mass.shape[1]], mass)

    def _imitate(self, rows: Tensor, mass: Tensor) -> None:
        assert self._reader is not None
        self.imitation.append(imitation(self._scored[self._reader].scores, rows, mass, self.importance))
        if self._source is not None:
            found = self._scored[self._source]
            visible = found.allowed
            if self.hidden is not None:  # a block is found by its other rows
                length = self.hidden.shape[1]
                visible = visible & ~self._hidden_rows(length // visible.shape[1]).repeat_interleave(length, 0)
            self.imitation.append(block_imitation(found.scores, visible, rows, mass, self.block_size, self.importance))

    def _hidden_rows(self, ratio: int) -> Tensor:
        """Compressed rows of a ratio that hold a hidden token, bool [R, n]."""
        assert self.hidden is not None
        groups = self.hidden[:, : self.hidden.shape[1] // ratio * ratio].view(len(self.hidden), -1, ratio)
        return groups.any(2)


def imitation(scores: Tensor, rows: Tensor, mass: Tensor, importance: Tensor | None = None) -> Tensor:
    """Cross entropy of scores [T, N] at rows int64 [T, k] (-1 = none) with what attention gave them, mass [T, k].

    The mean over queries that saw anything, weighted by `importance` [T].
    """
    real = rows >= 0
    return _cross_entropy(scores.gather(1, rows.clamp(min=0)), real, mass, importance)


def block_imitation(
    scores: Tensor, visible: Tensor, rows: Tensor, mass: Tensor, block_size: int, importance: Tensor | None = None
) -> Tensor:
    """The same of the highest visible score of each block, with the mass of the rows inside it."""
    total = -(-scores.shape[1] // block_size)
    lacking = total * block_size - scores.shape[1]
    hidden = pad(scores.masked_fill(~visible, -torch.inf), (0, lacking), value=-torch.inf)
    best = hidden.unflatten(1, (total, block_size)).amax(2)
    gathered = torch.zeros_like(best).scatter_add(1, rows.clamp(min=0) // block_size, mass.masked_fill(rows < 0, 0.0))
    real = best.detach() > -torch.inf
    # A block of which only hidden rows are visible yet is asked for nothing.
    return _cross_entropy(best.masked_fill(~real, 0.0), real, gathered.masked_fill(~real, 0.0), importance)


def excess(scores: Tensor, allowed: Tensor, hidden: Tensor, topk: int) -> Tensor:
    """Mean over hidden rows of how far their scores reach above the last of `topk` other rows, and one more.

    Scores FP32 and allowed bool [R, L, N], hidden bool [R, 1, N].
    """
    others = allowed & ~hidden
    best = scores.masked_fill(~others, -torch.inf).topk(min(topk, scores.shape[2]), 2).values
    last = others.sum(2, keepdim=True).clamp(max=best.shape[2]) - 1
    limit = best.gather(2, last.clamp(min=0))
    asked = allowed & hidden & (last >= 0)
    above = (scores - limit.where(last >= 0, 0.0) + 1.0).clamp(min=0.0)
    return above.masked_fill(~asked, 0.0).sum() / asked.sum().clamp(min=1)


def _cross_entropy(scores: Tensor, real: Tensor, mass: Tensor, importance: Tensor | None) -> Tensor:
    target = mass / mass.sum(1, keepdim=True).clamp(min=1e-9)
    loss = -(target * torch.log_softmax(scores.masked_fill(~real, -1e30), 1)).sum(1)
    counted = real.any(1).float() if importance is None else real.any(1) * importance
    return (loss * counted).sum() / counted.sum()
