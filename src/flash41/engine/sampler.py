"""From logits to tokens.

The order is fixed, per row and independent of the batch:

    repetition, presence and frequency penalties -> logit bias -> constraint -> (temperature 0: argmax)
    -> divide by temperature -> top-k -> top-p -> min-p -> argmax of what is kept plus Gumbel noise

Log-probabilities are those of the model: the log-softmax of the raw logits, in FP64.  Ties go to the lowest id.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from flash41.engine.noise import gumbel
from flash41.engine.request import Request, SamplingParams
from flash41.engine.scheduler import SampledToken
from flash41.errors import ProtocolError, complaint


def sample_step(logits: Tensor, requests: Sequence[Request]) -> dict[int, SampledToken]:
    """The next token of each request from FP32 logits [n, vocab], by request id.

    Raises ProtocolError naming the row when it holds NaN or +inf, or when no token is possible: nothing is chosen from
    what is not a number.
    """
    return {request.request_id: sample(row, request) for row, request in zip(logits.unbind(), requests, strict=True)}


def sample(logits: Tensor, request: Request) -> SampledToken:
    """The next token of one request from FP32 logits [vocab]."""
    if not bool((logits < torch.inf).all()):
        thing = f"request {request.request_id}: logits at position {_position(request)}"
        remedy = "the forward is broken; trace it with `flash41 trace`"
        raise ProtocolError(complaint(thing, "NaN or infinity", "finite numbers", remedy))
    token_id = _choose(processed(logits, request), request)
    if request.constraint is not None:
        request.constraint.push(token_id)
    if request.params.logprobs is None:
        return SampledToken(token_id=token_id)
    logprobs = logits.double().log_softmax(0)
    best = logprobs.sort(descending=True, stable=True)
    count = request.params.logprobs
    top = tuple(zip(best.indices[:count].tolist(), best.values[:count].tolist(), strict=True))
    return SampledToken(token_id=token_id, logprob=float(logprobs[token_id]), top_logprobs=top)


def _position(request: Request) -> int:
    """Position the next token will have; keys its noise."""
    return len(request.prompt_ids) + len(request.output_ids)


def processed(logits: Tensor, request: Request) -> Tensor:
    """FP64 [vocab] after penalties, bias and constraint; -inf where a token may not come."""
    params, scores = request.params, logits.double()
    scores = _penalised(scores, request)
    for token_id, bias in params.logit_bias.items():
        if token_id < len(scores):
            scores[token_id] += bias
    if request.constraint is not None:
        scores = scores.masked_fill(~torch.from_numpy(request.constraint.allowed()), -torch.inf)
    return scores


def _penalised(scores: Tensor, request: Request) -> Tensor:
    params, size = request.params, len(scores)
    if params.repetition_penalty != 1.0:
        seen = torch.tensor([*request.prompt_ids, *request.output_ids]).unique()
        kept = scores[seen]
        factor = params.repetition_penalty
        scores = scores.index_copy(0, seen, torch.where(kept > 0, kept / factor, kept * factor))
    if request.output_ids and (params.presence_penalty or params.frequency_penalty):
        counts = torch.bincount(torch.tensor(request.output_ids), minlength=size).double()
        scores = scores - params.frequency_penalty * counts - params.presence_penalty * (counts > 0).double()
    return scores


def _choose(scores: Tensor, request: Request) -> int:
    params, largest = request.params, scores.max()
    if largest == -torch.inf:
        thing = f"request {request.request_id}: tokens possible at position {_position(request)}"
        raise ProtocolError(complaint(thing, 0, "at least one", "the constraint allows nothing"))
    if params.temperature == 0:
        return int(scores.argmax())  # the first of equal maxima
    # Shifted first: no temperature, however small, pushes the largest score out of range.
    kept = kept_tokens((scores - largest) / params.temperature, params)
    noise = torch.from_numpy(gumbel(request.seed, _position(request), len(scores)))
    return int((kept + noise).argmax())


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
