"""Jobs, tokens, errors and figures as plain numbers and texts, and back: what messages between processes are made of.

    Job              object; its pictures as bytes in base64, its salt in hexadecimal digits
    GeneratedToken   array of 4 values, the number of its job first; of 9 where it has log-probabilities or drafts
    error            kind and text
    ServiceStats     array in the order of its fields

Reading them fills records and calls nothing else.
"""

import base64
import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from flash41.chat.image_plan import ImagePlan
from flash41.chat.images import Picture
from flash41.chat.protocols import Protocol
from flash41.checkpoint.expert_counts import ExpertCounts
from flash41.engine.events import SampledToken
from flash41.engine.request import FinishReason, SamplingParams
from flash41.engine.stats import EngineStats
from flash41.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    Flash41Error,
    KernelError,
    ProtocolError,
    RequestError,
)
from flash41.server.service import ConversationWish, GeneratedToken, GenerationError, Job, ServiceStats

FAILURES: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        CapacityError,
        CheckpointError,
        ConfigError,
        Flash41Error,
        GenerationError,
        KernelError,
        OSError,
        ProtocolError,
        RequestError,
    )
}
"""Errors that keep their kind on the way."""

NUM_PLAIN = 3
"""Values of a token with nothing beside it: its id, why it is the last, and the cached tokens of its prompt."""
MOST_KNOWN_TOKENS = 16_384
"""Records of such tokens that are kept; frozen, so that they may stand in many answers."""

_REASONS = {reason.value: reason for reason in FinishReason}
_ENGINE_FIGURES = tuple(field.name for field in fields(EngineStats) if field.name != "experts")
_FIGURES = tuple(field.name for field in fields(ServiceStats) if field.name != "engine")
_PARAMS = tuple(field.name for field in fields(SamplingParams))


def job_values(job: Job) -> dict[str, Any]:
    """A job as it travels: what the engine needs of it, and no tensor."""
    params = {name: getattr(job.params, name) for name in _PARAMS}
    wish = job.conversation
    return {
        "prompt_ids": job.prompt_ids,
        "params": {**params, "logit_bias": list(job.params.logit_bias.items())},
        "seed": job.seed,
        "stop": job.stop,
        "salt": job.salt.hex(),
        "pictures": [_picture(one) for one in job.pictures],
        "conversation": None if wish is None else (wish.protocol.value, wish.body, wish.thinks_by_default),
    }


def read_job(values: Mapping[str, Any]) -> Job:
    """A job that travelled."""
    params = values["params"]
    wish = None
    if values["conversation"] is not None:
        protocol, body, default = values["conversation"]
        wish = ConversationWish(protocol=Protocol(protocol), body=body, thinks_by_default=default)
    return Job(
        prompt_ids=tuple(values["prompt_ids"]),
        params=SamplingParams(**{**tupled(params), "logit_bias": dict(params["logit_bias"])}),
        seed=values["seed"],
        stop=tuple(values["stop"]),
        salt=bytes.fromhex(values["salt"]),
        pictures=tuple(_read_picture(*one) for one in values["pictures"]),
        conversation=wish,
    )


def _picture(one: Picture) -> tuple[object, ...]:
    """A picture: its name, its plan, and its patches as they lie in memory."""
    return one.identity.hex(), asdict(one.plan), base64.b64encode(one.patches.tobytes()).decode("ascii")


def _read_picture(identity: str, plan: Mapping[str, Any], patches: str) -> Picture:
    found = ImagePlan(**plan)
    values = np.frombuffer(base64.b64decode(patches), dtype=np.uint8)
    return Picture(identity=bytes.fromhex(identity), plan=found, patches=values.reshape(found.num_patches, -1))


def token_values(job_id: int, item: GeneratedToken) -> tuple[object, ...]:
    """A token as it travels: without log-probabilities and drafts where there are none, which is nearly always."""
    token, reason = item.token, item.finish_reason
    found = (job_id, token.token_id, None if reason is None else reason.value, item.num_cached_tokens)
    if token.logprob is None and not item.num_draft_tokens and item.undrafted_because is None:
        return found
    drafts = (item.num_draft_tokens, item.num_accepted_tokens, item.undrafted_because)
    return (*found, token.logprob, token.top_logprobs, *drafts)


def read_token(values: Sequence[Any]) -> GeneratedToken:
    """A token that travelled, without the number of its job."""
    return _plain_token(*values) if len(values) == NUM_PLAIN else _read_token(*values)


@functools.lru_cache(MOST_KNOWN_TOKENS)
def _plain_token(token_id: int, reason: str | None, num_cached_tokens: int) -> GeneratedToken:
    """A token with nothing beside it: nearly all are, and making the records would cost more than all else here."""
    return _read_token(token_id, reason, num_cached_tokens)


def _read_token(
    token_id: int,
    reason: str | None,
    num_cached_tokens: int,
    logprob: float | None = None,
    top: Sequence[Sequence[Any]] = (),
    num_draft_tokens: int = 0,
    num_accepted_tokens: int = 0,
    undrafted_because: str | None = None,
) -> GeneratedToken:
    sampled = SampledToken(token_id=token_id, logprob=logprob, top_logprobs=tuple((pair[0], pair[1]) for pair in top))
    return GeneratedToken(
        token=sampled,
        finish_reason=None if reason is None else _REASONS[reason],
        num_cached_tokens=num_cached_tokens,
        num_draft_tokens=num_draft_tokens,
        num_accepted_tokens=num_accepted_tokens,
        undrafted_because=undrafted_because,
    )


def failure_values(error: Exception) -> tuple[str, str]:
    """An error as it travels: the kind that is known on the other side, and what it says."""
    known = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in FAILURES), Flash41Error.__name__)
    return known, str(error)


def read_failure(kind: str, text: str) -> Exception:
    """An error that travelled, of its own kind."""
    return FAILURES[kind](text)


def figures_of(stats: ServiceStats) -> list[Any]:
    """Figures as they travel."""
    own = [getattr(stats, name) for name in _FIGURES]
    experts = [asdict(counts) for counts in stats.engine.experts]
    return [*own, experts, [getattr(stats.engine, name) for name in _ENGINE_FIGURES]]


def stats_of(values: Sequence[Any]) -> ServiceStats:
    """Figures that travelled."""
    *own, experts, engine = values
    known = dict(zip(_ENGINE_FIGURES, engine, strict=True))
    known["experts"] = [ExpertCounts(**counts) for counts in experts]
    return ServiceStats(engine=EngineStats(**tupled(known)), **dict(zip(_FIGURES, own, strict=True)))


def tupled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of a message as the tuples they were."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
