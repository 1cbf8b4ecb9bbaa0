"""What the HTTP process and the engine's process say to each other, and how it travels: one JSON array a line.

    to the engine      open {...} | job ID {...} | abort ID | stop
    from the engine    ready {...} | refused KIND TEXT          once, in answer to `open`
                       report TOKENS FAILURES FIGURES           at most one per step, and when nothing is computed

Plain numbers and texts only, so that reading a message can do nothing but fill records.  A float is read back to the
bit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flash41.chat.image_plan import ImageSizes
from flash41.errors import Flash41Error, ProtocolError, complaint
from flash41.server.message_values import (
    failure_values,
    figures_of,
    job_values,
    read_failure,
    read_job,
    read_token,
    stats_of,
    token_values,
    tupled,
)
from flash41.server.service import GeneratedToken, Job, ModelFacts, ServiceStats

END = b"\n"
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
    return line("refused", *failure_values(error))


def read_answer(message: Sequence[Any]) -> Ready:
    """The answer to an opening; raises the error that the engine was refused with."""
    if message[0] == "refused":
        raise read_failure(message[1], message[2])
    _, facts, directory, image_token_id, figures = message
    sizes = None if facts["image_sizes"] is None else ImageSizes(**facts["image_sizes"])
    return Ready(
        facts=ModelFacts(**{**tupled(facts), "image_sizes": sizes}),
        directory=directory,
        image_token_id=image_token_id,
        stats=stats_of(figures),
    )


def order_line(order: Order) -> bytes:
    """An order to the engine."""
    if isinstance(order, Submit):
        return line("job", order.job_id, job_values(order.job))
    return line("abort", order.job_id) if isinstance(order, Abort) else line("stop")


def read_order(message: Sequence[Any]) -> Order:
    """An order to the engine."""
    if message[0] == "job":
        return Submit(message[1], read_job(message[2]))
    if message[0] == "abort":
        return Abort(message[1])
    if message[0] == "stop":
        return Stop()
    raise ProtocolError(complaint("order to the engine", message[0], "job, abort or stop"))


def report_line(report: Report) -> bytes:
    """What has come of jobs."""
    tokens = [token_values(job_id, token) for job_id, token in report.tokens]
    failures = [(job_id, *failure_values(error)) for job_id, error in report.failures]
    return line("report", tokens, failures, report.figures)


def read_report(message: Sequence[Any]) -> Report:
    """What has come of jobs."""
    _, tokens, failures, figures = message
    read = [(job_id, read_failure(kind, text)) for job_id, kind, text in failures]
    return Report(
        tokens=[(job_id, read_token(values)) for job_id, *values in tokens],
        failures=[(job_id, error) for job_id, error in read if isinstance(error, Flash41Error)],
        figures=figures,
    )
