"""From logits to tokens.

The order is fixed, per row and independent of the batch:

    repetition, presence and frequency penalties -> logit bias -> constraint -> (temperature 0: argmax)
    -> divide by temperature -> top-k -> top-p -> min-p -> argmax of what is kept plus Gumbel noise

Log-probabilities are those of the model: the log-softmax of the raw logits, in FP64.  Ties go to the lowest id.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flash41.engine.events import SampledToken
from flash41.engine.noise import gumbel
from flash41.engine.request import Request, SamplingParams
from flash41.engine.speculative import shared_noise_token
from flash41.errors import ProtocolError, complaint


def sample_step(logits: Tensor, requests: Sequence[Request]) -> dict[int, SampledToken]:
    """The next token of each request from FP32 logits [n, vocab], by request id.

    Raises ProtocolError naming the row when it holds NaN or +inf, or when no token is possible: nothing is chosen from
    what is not a number.
    """
    return {request.request_id: sample(row, request) for row, request in zip(logits.unbind(), requests, strict=True)}


def sample(logits: Tensor, request: Request, ahead: Sequence[int] = ()) -> SampledToken:
    """The next token of one request from FP32 logits [vocab].

    `ahead` are tokens that the same step has chosen for it already and that are not in `output_ids` yet.
    """
    check_numbers(logits, request, len(ahead))
    token_id = _choose(processed(logits, request, ahead), request, len(ahead))
    if request.constraint is not None:
        request.constraint.push(token_id)
    return reported(logits, token_id, request)


def check_numbers(logits: Tensor, request: Request, num_ahead: int = 0) -> None:
    """Raises ProtocolError where logits FP32 [vocab] hold NaN or +inf."""
    if not bool((logits < torch.inf).all()):
        thing = f"request {request.request_id}: logits at position {request.num_known + num_ahead}"
        remedy = "the forward is broken; trace it with `flash41 trace`"
        raise ProtocolError(complaint(thing, "NaN or infinity", "finite numbers", remedy))


def reported(logits: Tensor, token_id: int, request: Request) -> SampledToken:
    """A chosen token with what is to be told of it, from FP32 logits [vocab]."""
    if request.params.logprobs is None:
        return SampledToken(token_id=token_id)
    logprobs = logits.double().log_softmax(0)
    best = logprobs.sort(descending=True, stable=True)
    count = request.params.logprobs
    top = tuple(zip(best.indices[:count].tolist(), best.values[:count].tolist(), strict=True))
    return SampledToken(token_id=token_id, logprob=float(logprobs[token_id]), top_logprobs=top)


def processed(logits: Tensor, request: Request, ahead: Sequence[int] = (), constrained: bool = True) -> Tensor:
    """FP64 [vocab] after penalties, bias and constraint; -inf where a token may not come.

    Without `constrained` the constraint is left out: it knows only what follows the tokens it was given.
    """
    params, scores = request.params, logits.double()
    scores = _penalised(scores, request, ahead)
    for token_id, bias in params.logit_bias.items():
        if token_id < len(scores):
            scores[token_id] += bias
    if request.constraint is not None and constrained:
        scores = scores.masked_fill(~torch.from_numpy(request.constraint.allowed()), -torch.inf)
    return scores


def _penalised(scores: Tensor, request: Request, ahead: Sequence[int]) -> Tensor:
    params, size = request.params, len(scores)
    output_ids = [*request.output_ids, *ahead]
    if params.repetition_penalty != 1.0:
        seen = torch.tensor([*request.prompt_ids, *output_ids]).unique()
        kept = scores[seen]
        factor = params.repetition_penalty
        scores = scores.index_copy(0, seen, torch.where(kept > 0, kept / factor, kept * factor))
    if output_ids and (params.presence_penalty or params.frequency_penalty):
        counts = torch.bincount(torch.tensor(output_ids), minlength=size).double()
        scores = scores - params.frequency_penalty * counts - params.presence_penalty * (counts > 0).double()
    return scores


def _choose(scores: Tensor, request: Request, num_ahead: int) -> int:
    if request.params.temperature == 0:
        check_possible(scores, request, num_ahead)
        return int(scores.argmax())  # the first of equal maxima
    return noisy_token(tempered(scores, request, num_ahead), request, num_ahead)


def check_possible(scores: Tensor, request: Request, num_ahead: int) -> None:
    """Raises ProtocolError where processed scores [vocab] leave no token."""
    if scores.max() == -torch.inf:
        thing = f"request {request.request_id}: tokens possible at position {request.num_known + num_ahead}"
        raise ProtocolError(complaint(thing, 0, "at least one", "the constraint allows nothing"))


def tempered(scores: Tensor, request: Request, num_ahead: int = 0) -> Tensor:
    """What is drawn from: processed scores over the temperature, -inf where top-k, top-p or min-p drop a token."""
    check_possible(scores, request, num_ahead)
    # Shifted first: no temperature, however small, pushes the largest score out of range.
    return kept_tokens((scores - scores.max()) / request.params.temperature, request.params)


def noisy_token(kept: Tensor, request: Request, num_ahead: int) -> int:
    """The token of tempered scores [vocab] under the noise of a position, `num_ahead` behind the known tokens."""
    return shared_noise_token(kept, torch.from_numpy(gumbel(request.seed, request.num_known + num_ahead, len(kept))))


def kept_tokens(scores: Tensor, params: SamplingParams) -> Tensor:
    """Scores FP64 [vocab] with what top-k, top-p and min-p drop set to -inf; the likeliest token always stays."""
    if params.top_k is None and params.top_p >= 1.0 and params.min_p <= 0.0:
        return scores
    best = scores.sort(descending=True, stable=True)
    keep = torch.ones_like(best.values, dtype=torch.bool)
    if params.top_k is not None:
        keep[params.top_k :] = False
    probabilities = best.values.masked_fill(~keep, -torch.inf).softmax(0)
    # A token stays while the mass before it has not reached top_p.
    before = probabilities.cumsum(0) - probabilities
    keep &= before < params.top_p
    keep &= probabilities >= params.min_p * probabilities[0]
    keep[0] = True
    return scores.masked_fill(~torch.zeros_like(keep).scatter(0, best.indices, keep), -torch.inf)
