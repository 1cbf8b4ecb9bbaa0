"""What a forward leaves for the rules that no gradient of the answer serves: the indexer and the router.

Indexer.  A selection is discrete, so the answer teaches the selected rows and not who selected them.  Each scorer is
taught to imitate attention: with m_j the mass that the heads of a layer gave to selected row j (no gradient), and s_j
the scorer's scores of the same rows,

    loss = - sum_j  m_j log softmax(s)_j ,      mean over the queries that selected anything

once for every layer that used the selection.  What is attended to behind a bounded scorer is also asked of the
candidate source, whose blocks bound it.  The loss reaches the trunk too: latent and query rows learn to be found.

Router.  Ids of the chosen experts, layer after layer.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.model.dense import visible_bias


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One scorer's selection, with the scores it came from."""

    scores: Tensor
    """FP32 [T, N] with gradient."""
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

    layout: Layout | None = None
    """Of the forward, where every visible row is selected; None where scorers choose."""
    scoring: bool = True
    """Whether scorers score; only without choice may they be left out."""

    routes: list[Tensor] = field(default_factory=list)
    """int64 [T, k] of every router, in order of the layers."""
    imitation: list[Tensor] = field(default_factory=list)
    """Scalar losses of the scorers."""
    _scored: dict[int, Scored] = field(default_factory=dict)
    _scorer: int = -1
    _readers: tuple[int, ...] = ()
    _biases: dict[int, Tensor] = field(default_factory=dict)

    def bias(self, layout: Layout, ratio: int) -> Tensor:
        """`visible_bias` of a ratio, made once."""
        if ratio not in self._biases:
            self._biases[ratio] = visible_bias(layout.length, layout.window, ratio)
        return self._biases[ratio]

    def scores(self, layer_id: int) -> None:
        """The next selection is this layer's."""
        self._scorer = layer_id

    def reads(self, scorers: tuple[int, ...]) -> None:
        """The next attention reads the first one's selection; all of them should have wanted what it attends to."""
        self._readers = scorers

    @property
    def reading(self) -> bool:
        """Whether the next attention reads compressed rows."""
        return bool(self._readers)

    def attended_all(self, mass: Tensor) -> None:
        """A layer attended to every visible row of its plane: mass [T, n] of all heads."""
        if not self.scoring:
            return
        for scorer in self._readers:
            found = self._scored[scorer]
            self.imitation.append(imitation(found.scores, found.selected[:, : mass.shape[1]], mass))

    def selected(self, scores: Tensor, selected: Tensor) -> None:
        """A scorer selected, for all rows of the forward at once."""
        self._scored[self._scorer] = Scored(scores=scores, selected=selected)

    def attended(self, masses: Tensor, counts: Tensor) -> None:
        """A layer attended: masses [T, H, n], of whose counts [T] real entries the last ones are the selection."""
        if not self._readers:
            return
        selected = self._scored[self._readers[0]].selected
        width = int((selected >= 0).sum(1).max())
        if width == 0:
            return
        rows = selected[:, :width]
        real = rows >= 0
        slots = (counts - real.sum(1)).unsqueeze(1) + torch.arange(width)
        mass = masses.sum(1).gather(1, slots.clamp(max=masses.shape[2] - 1)).masked_fill(~real, 0.0)
        self.imitation += [imitation(self._scored[scorer].scores, rows, mass) for scorer in self._readers]


def imitation(scores: Tensor, rows: Tensor, mass: Tensor) -> Tensor:
    """Cross entropy of scores [T, N] at rows int64 [T, k] (-1 = none) with what attention gave them, mass [T, k]."""
    real = rows >= 0
    logits = scores.gather(1, rows.clamp(min=0)).masked_fill(~real, -1e30)
    target = mass / mass.sum(1, keepdim=True).clamp(min=1e-9)
    loss = -(target * torch.log_softmax(logits, 1)).sum(1)
    return loss.sum() / real.any(1).sum()
