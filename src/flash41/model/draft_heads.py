"""What turns the hidden rows of a draft block into tokens: the Markov head and the confidence head.

    x_0 = anchor;   logits_k = U_k + HM . EM[x_k];   x_{k+1} = choice of logits_k            k = 0 .. g-1
    confidence_k = w . (z_k ++ EM[x_k])                                          z before the final norm, raw logit

U are the logits of the shared head.  Tokens follow each other, so this part is sequential; the block itself is not.
spec: dspark.md section 4.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flash41.model.linear import Linear

Choice = Callable[[int, Tensor], Tensor]
"""(k, FP32 logits [n, vocab]) -> int64 [n]: the k-th draft of every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """What the drafter proposes for n requests, g tokens each."""

    ids: Tensor
    """int64 [n, g]: draft k stands k + 1 positions behind the anchor."""
    base_logits: Tensor
    """FP32 [n, g, vocab] of the block, before the Markov term."""
    logits: Tensor
    """FP32 [n, g, vocab] after it: what draft k was chosen from."""
    confidence: Tensor
    """FP32 [n, g]: raw logit of the probability that draft k is accepted once those before it are."""


def most_likely(_: int, logits: Tensor) -> Tensor:
    """The choice at temperature 0; ties go to the lowest id."""
    return logits.argmax(-1)


class DraftHeads(nn.Module):
    """`markov_head` and `confidence_head` of the last stage."""

    def __init__(self, markov_embed: Tensor, markov_head: Linear, confidence: Linear) -> None:
        super().__init__()
        self.markov_embed = markov_embed
        self.markov_head = markov_head
        self.confidence = confidence

    def forward(self, anchors: Tensor, hidden: Tensor, base_logits: Tensor, choose: Choice) -> Drafts:
        """Drafts behind int64 anchors [n] from pre-norm rows [n, g, D] and their logits FP32 [n, g, vocab]."""
        ids, last, logits = [anchors], list[Tensor](), list[Tensor]()
        for k in range(hidden.shape[1]):
            last.append(self.markov_embed[ids[-1]].to(hidden.dtype))
            logits.append(base_logits[:, k] + self.markov_head(last[-1]))
            ids.append(choose(k, logits[-1]))
        seen = torch.cat((hidden, torch.stack(last, 1)), 2)  # confidence decides no token, so it can wait for all
        return Drafts(
            ids=torch.stack(ids[1:], 1),
            base_logits=base_logits,
            logits=torch.stack(logits, 1),
            confidence=self.confidence(seen).squeeze(2),
        )
