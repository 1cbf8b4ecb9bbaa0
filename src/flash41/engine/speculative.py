"""Which drafts a target forward confirms, and the token that follows them: pure functions, one request at a time.

A verify step runs the anchor and g drafts; row k of the target, k = 0 .. g, says what comes behind the anchor and k
drafts.  What is emitted is one token more than what is accepted.

    equality     t_k = the target's own token of row k;  accept while draft_k = t_k;  emit t_0 .. t_a
    rejection    accept draft_k with probability min(1, p_k(draft_k) / q_k(draft_k)), p target, q draft; at the first
                 rejection emit a token of  max(p_k - q_k, 0) / sum;  behind g accepted ones a token of p_g

Equality serves temperature 0, where t_k is the argmax, and seeded sampling, where draft and target add the same noise:

    t_k = argmax(target scores + noise),   draft_k = argmax(draft scores + noise),   noise from (seed, position)

There every emitted token is the one that decoding without drafts gives, so a seeded text cannot change.  Rejection
accepts more and keeps the distribution, not the text.  `equality` and `rejection` take their rows one by one, so that
penalties, constraints and stops can follow the tokens inside a block.  spec: dspark.md section 6.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_RESIDUAL = 1e-8
"""Where target and draft differ by no more mass than this, the residual is noise and the target itself is drawn."""


Ends = Callable[[int], bool]
"""Whether a token ends the answer: nothing is asked behind one that does."""


def never(_: int) -> bool:
    """No token ends anything."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verify step commits."""

    num_accepted: int
    """Drafts confirmed, from the first one on."""
    tokens: tuple[int, ...]
    """Tokens emitted: the accepted drafts and one more, the next anchor; no more where a draft ended the answer."""


def equality(drafts: Sequence[int], target_tokens: Iterable[int], ends: Ends = never) -> Verdict:
    """Accepts while the target's own token equals the draft.

    `target_tokens` has a token for each draft and one more; those behind the first difference are not asked for.
    """
    targets = iter(target_tokens)
    tokens: list[int] = []
    for draft in drafts:
        tokens.append(next(targets))
        if tokens[-1] != draft:
            return Verdict(num_accepted=len(tokens) - 1, tokens=tuple(tokens))
        if ends(draft):
            return Verdict(num_accepted=len(tokens), tokens=tuple(tokens))
    return Verdict(num_accepted=len(drafts), tokens=(*tokens, next(targets)))


def shared_noise_token(scores: Tensor, noise: Tensor) -> int:
    """The token of FP64 scores [vocab] under a position's noise; draft and target call it with the same noise.

    `scores` are logits after all processors, divided by the temperature, -inf where a token may not come.
    """
    return int((scores + noise).argmax())


def acceptance(target: Tensor, draft: Tensor, token: int) -> float:
    """Probability that a draft drawn from `draft` stays, both FP64 probabilities [vocab]."""
    return min(1.0, float(target[token]) / float(draft[token])) if draft[token] > 0 else 0.0


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """FP64 [vocab]: what a rejected draft is replaced from; the target itself where nothing is left of it."""
    left = (target - draft).clamp(min=0.0)
    mass = left.sum()
    return left / mass if mass > LEAST_RESIDUAL else target


def drawn(probabilities: Tensor, uniform: float) -> int:
    """The token at `uniform` in (0, 1) of the cumulated probabilities [vocab]; never one of probability 0."""
    total = probabilities.cumsum(0)
    token = int(torch.searchsorted(total, uniform * total[-1], right=True))
    return token if token < len(total) else int(probabilities.nonzero()[-1])


def rejection(
    drafts: Sequence[int],
    draft_rows: Iterable[Tensor],
    target_rows: Iterable[Tensor],
    uniforms: Sequence[tuple[float, float]],
    ends: Ends = never,
) -> Verdict:
    """The standard rule on FP64 probabilities [vocab]: a draft row for each draft, a target row for each and one more.

    `uniforms` has for every target row two independent numbers in (0, 1): one accepts, one draws.  Rows behind the
    first rejection are not asked for.
    """
    assert len(uniforms) == len(drafts) + 1, f"{len(uniforms)} pairs of numbers for {len(drafts) + 1} rows"
    targets = iter(target_rows)
    for k, (token, draft) in enumerate(zip(drafts, draft_rows, strict=True)):
        target, (accepts, draws) = next(targets), uniforms[k]
        if accepts >= acceptance(target, draft, token):
            return Verdict(num_accepted=k, tokens=(*drafts[:k], drawn(residual(target, draft), draws)))
        if ends(token):
            return Verdict(num_accepted=k + 1, tokens=tuple(drafts[: k + 1]))
    return Verdict(num_accepted=len(drafts), tokens=(*drafts, drawn(next(targets), uniforms[-1][1])))
