"""What the HTTP process and the engine's process say to each other, and how it travels: one JSON array a line.

    to the engine      open {...} | job ID {...} | abort ID | stop
    from the engine    ready {...} | refused KIND TEXT          once, in answer to `open`
                       report TOKENS FAILURES FIGURES           at most one per step, and when nothing is computed

Plain numbers and texts only, so that reading a message can do nothing but fill records.  A float is read back to the
bit.
"""

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from flash41.chat.image_plan import ImagePlan, ImageSizes
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
    complaint,
)
from flash41.server.service import (
    ConversationWish,
    GeneratedToken,
    GenerationError,
    Job,
    ModelFacts,
    ServiceStats,
)

END = b"\n"
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
_WRITER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What the engine's process is to do."""

    options: Mapping[str, Any]
    """Keyword arguments of `LLM`."""
    names: tuple[str, ...]
    """Names of the model."""
    logs_json: bool
    """Whether its log is JSON lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """An engine that was opened."""

    facts: ModelFacts
    directory: str
    """Where the tokenizer lies."""
    image_token_id: int
    """Its placeholder of images."""
    stats: ServiceStats


@dataclass(frozen=True, slots=True)
class Submit:
    """A job for the engine."""

    job_id: int
    job: Job


@dataclass(frozen=True, slots=True)
class Abort:
    """A job that nobody waits for any more."""

    job_id: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The end, behind the current step."""


Order = Submit | Abort | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What has come of jobs since the last report."""

    tokens: Sequence[tuple[int, GeneratedToken]]
    """Job and token, in order."""
    failures: Sequence[tuple[int, Flash41Error]]
    """Jobs that ended with an error."""
    figures: Sequence[Any]
    """`ServiceStats` as it travels: whoever gets it reads it when somebody asks, which is seldom."""


def line(*message: object) -> bytes:
    """A message as it travels."""
    return _WRITER.encode(message).encode() + END


def message_of(line: bytes) -> list[Any]:
    """The message of a line."""
    found: list[Any] = json.loads(line)
    return found


class Lines:
    """Messages of bytes that come in pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> list[Any]:
        """The messages that are complete with this piece."""
        if END not in piece:
            self._pieces.append(piece)
            return []
        *whole, rest = b"".join([*self._pieces, piece]).split(END)
        self._pieces = [rest]
        return [message_of(one) for one in whole]


def opening_line(opening: Opening) -> bytes:
    """What is to be opened."""
    return line("open", asdict(opening))


def read_opening(message: Sequence[Any]) -> Opening:
    """What is to be opened; its names are a tuple again."""
    found = message[1]
    return Opening(**{**found, "names": tuple(found["names"])})


def ready_line(ready: Ready) -> bytes:
    """An engine that was opened."""
    return line("ready", asdict(ready.facts), ready.directory, ready.image_token_id, figures_of(ready.stats))


def refusal_line(error: Exception) -> bytes:
    """Why none was opened."""
    return line("refused", *_failure(error))


def read_answer(message: Sequence[Any]) -> Ready:
    """The answer to an opening; raises the error that the engine was refused with."""
    if message[0] == "refused":
        raise _read_failure(message[1], message[2])
    _, facts, directory, image_token_id, figures = message
    sizes = None if facts["image_sizes"] is None else ImageSizes(**facts["image_sizes"])
    return Ready(
        facts=ModelFacts(**{**_tupled(facts), "image_sizes": sizes}),
        directory=directory,
        image_token_id=image_token_id,
        stats=stats_of(figures),
    )


def order_line(order: Order) -> bytes:
    """An order to the engine."""
    if isinstance(order, Submit):
        return line("job", order.job_id, _job(order.job))
    return line("abort", order.job_id) if isinstance(order, Abort) else line("stop")


def read_order(message: Sequence[Any]) -> Order:
    """An order to the engine."""
    if message[0] == "job":
        return Submit(message[1], _read_job(message[2]))
    if message[0] == "abort":
        return Abort(message[1])
    if message[0] == "stop":
        return Stop()
    raise ProtocolError(complaint("order to the engine", message[0], "job, abort or stop"))


def report_line(report: Report) -> bytes:
    """What has come of jobs."""
    tokens = [_token(job_id, token) for job_id, token in report.tokens]
    failures = [(job_id, *_failure(error)) for job_id, error in report.failures]
    return line("report", tokens, failures, report.figures)


def read_report(message: Sequence[Any]) -> Report:
    """What has come of jobs."""
    _, tokens, failures, figures = message
    read = [(job_id, _read_failure(kind, text)) for job_id, kind, text in failures]
    return Report(
        tokens=[
            (job_id, _plain_token(*values) if len(values) == NUM_PLAIN else _read_token(*values))
            for job_id, *values in tokens
        ],
        failures=[(job_id, error) for job_id, error in read if isinstance(error, Flash41Error)],
        figures=figures,
    )


def _job(job: Job) -> dict[str, Any]:
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


def _read_job(values: Mapping[str, Any]) -> Job:
    params = values["params"]
    wish = None
    if values["conversation"] is not None:
        protocol, body, default = values["conversation"]
        wish = ConversationWish(protocol=Protocol(protocol), body=body, thinks_by_default=default)
    return Job(
        prompt_ids=tuple(values["prompt_ids"]),
        params=SamplingParams(**{**_tupled(params), "logit_bias": dict(params["logit_bias"])}),
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


def _token(job_id: int, item: GeneratedToken) -> tuple[object, ...]:
    """Without log-probabilities and drafts where there are none, which is nearly always."""
    token, reason = item.token, item.finish_reason
    found = (job_id, token.token_id, None if reason is None else reason.value, item.num_cached_tokens)
    if token.logprob is None and not item.num_draft_tokens and item.undrafted_because is None:
        return found
    drafts = (item.num_draft_tokens, item.num_accepted_tokens, item.undrafted_because)
    return (*found, token.logprob, token.top_logprobs, *drafts)


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


def _failure(error: Exception) -> tuple[str, str]:
    """The kind that is known on the other side, and what it says."""
    known = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in FAILURES), Flash41Error.__name__)
    return known, str(error)


def _read_failure(kind: str, text: str) -> Exception:
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
    return ServiceStats(engine=EngineStats(**_tupled(known)), **dict(zip(_FIGURES, own, strict=True)))


def _tupled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of a message as the tuples they were."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
