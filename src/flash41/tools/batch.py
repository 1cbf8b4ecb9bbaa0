"""A file of calls to a file of results, many at a time.

    lines -> those without a result yet -> requests, refused ones answered at once -> results as they finish

A line that cannot be answered becomes a result with an error, and the others are answered all the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flash41.engine.answers import Answer
from flash41.engine.llm import LLM
from flash41.engine.request import Request
from flash41.errors import RequestError
from flash41.tools.batch_lines import CHAT_URL, BatchLine, LineFault, fingerprint, read_lines
from flash41.tools.batch_output import BatchOutput, open_output
from flash41.tools.batch_replies import chat_reply, refusal, text_reply
from flash41.tools.batch_requests import ChatJob, TextJob, chat_job, text_job

Progress = Callable[[int, int], None]
"""Called with (results there, lines in all)."""

OK = 200
REFUSED = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWish:
    """What to answer and where to put it; options as on the command line."""

    source: Path
    target: Path
    force: bool = False
    model: Path | None = None
    options: tuple[str | None, ...] = ()
    """Options that decide the model's numbers; results under others belong to another batch."""


@dataclass(slots=True, kw_only=True)
class Totals:
    """Results of a whole output."""

    num_ok: int = 0
    num_failed: int = 0
    num_kept: int = 0
    """Those of them that earlier runs left."""


class Batch:
    """A batch whose files were checked; no model is open yet.  Raises RequestError for what a file refuses."""

    def __init__(self, wish: BatchWish) -> None:
        self.lines = read_lines(wish.source, fingerprint(wish.model, wish.options))
        ids = {line.result_id for line in self.lines}
        self._output: BatchOutput = open_output(wish.source, wish.target, ids, wish.force)
        num_kept, num_failed = len(self._output.done), self._output.num_failed
        self.totals = Totals(num_ok=num_kept - num_failed, num_failed=num_failed, num_kept=num_kept)

    @property
    def num_left(self) -> int:
        """Lines without a result."""
        return len(self.lines) - self.totals.num_kept

    def run(self, llm: LLM | None, progress: Progress | None = None) -> Totals:
        """Answers the lines that are left, with a model if there are any; the output appears at the end."""
        self._output.begin()
        if llm is not None:
            self._answer(llm, progress)
        assert self.totals.num_ok + self.totals.num_failed == len(self.lines), (self.totals, len(self.lines))
        self._output.finish()
        return self.totals

    def _answer(self, llm: LLM, progress: Progress | None) -> None:
        jobs: dict[int, tuple[BatchLine, ChatJob | TextJob]] = {}

        def put(result: dict[str, Any]) -> None:
            self._put(result)
            if progress is not None:
                progress(self.totals.num_ok + self.totals.num_failed, len(self.lines))

        def requests() -> Iterator[Request]:
            for line in self.lines:
                if line.result_id in self._output.done:
                    continue
                try:
                    job = _job(llm, line)
                except RequestError as error:
                    put(_failed(line, line.fault, str(error)))
                    continue
                jobs[job.request.request_id] = (line, job)
                yield job.request

        for answer in llm.as_finished(requests()):
            line, job = jobs.pop(answer.request.request_id)
            put(_answered(llm, line, job, answer))

    def _put(self, result: dict[str, Any]) -> None:
        self._output.append(result)
        if result["error"] is None:
            self.totals.num_ok += 1
        else:
            self.totals.num_failed += 1


def _job(llm: LLM, line: BatchLine) -> ChatJob | TextJob:
    if line.fault is not None:
        raise RequestError(line.fault.message)
    return chat_job(llm, line.body) if line.url == CHAT_URL else text_job(llm, line.body)


def _answered(llm: LLM, line: BatchLine, job: ChatJob | TextJob, answer: Answer) -> dict[str, Any]:
    """The result of a call that ran; an answer that its constraint broke off is a failure."""
    if isinstance(job, ChatJob) and job.constraint is not None:
        try:
            job.constraint.check()
        except RequestError as error:
            return _failed(line, None, str(error))
    return _result(line, OK, _reply(llm, line, job, answer), None)


def _reply(llm: LLM, line: BatchLine, job: ChatJob | TextJob, answer: Answer) -> dict[str, Any]:
    if isinstance(job, ChatJob):
        return chat_reply(job, answer, llm.tokenizer, line.digest, line.body)
    return text_reply(job, answer, llm.tokenizer, line.digest, line.body)


def _failed(line: BatchLine, fault: LineFault | None, message: str) -> dict[str, Any]:
    """A result for a line that is no call (no response), or whose call was refused (response 400)."""
    if fault is not None:
        return _result(line, None, None, {"code": fault.code, "message": message})
    return _result(line, REFUSED, refusal(message), {"code": "invalid_request", "message": message})


def _result(
    line: BatchLine, status_code: int | None, body: dict[str, Any] | None, error: dict[str, str] | None
) -> dict[str, Any]:
    response = {"status_code": status_code, "request_id": f"req_{line.digest}", "body": body}
    return {
        "id": line.result_id,
        "custom_id": line.custom_id,
        "response": None if body is None else response,
        "error": error,
    }
