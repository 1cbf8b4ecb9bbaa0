"""Answers that are open side by side: whoever waits for one of them drives the engine for all.

    open       the request is queued
    advance    one step of the engine; each token goes to its answer, whoever waits for that one
    close      the request is aborted if it still runs, and its answer forgotten

What is opened here is closed here, whatever ends the wait: the last token, an error, a caller that goes away.
"""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from flash41.engine.answers import Answer, StreamEvent
from flash41.engine.engine import Engine
from flash41.engine.request import FinishReason, Request
from flash41.errors import ProtocolError, complaint

Progress = Callable[[int, int], None]
"""Called with (answers finished, answers in all)."""


class OpenAnswers:
    """The open answers of one engine, which nobody else steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers: dict[int, Answer] = {}

    def run(self, requests: Sequence[Request], progress: Progress | None) -> list[Answer]:
        """Finished answers to all requests, which are aborted together if anything fails."""
        answers: list[Answer] = []
        num_done = 0
        try:
            answers += (self._open(request) for request in requests)
            while num_done < len(answers):
                self._advance()
                for _ in range(num_done, sum(answer.is_finished for answer in answers)):
                    num_done += 1
                    if progress is not None:
                        progress(num_done, len(answers))
        finally:
            for answer in answers:
                self._close(answer)
        return answers

    def events(self, request: Request) -> Generator[StreamEvent, None, None]:
        """Tokens of one answer as they come; the request is queued when the first is asked for.

        Raises ProtocolError where the answer was ended by an error in a step that another one had asked for.
        """
        answer, num_sent = self._open(request), 0
        try:
            while num_sent < len(answer.tokens) or not answer.is_finished:
                if num_sent == len(answer.tokens):
                    self._advance()
                    continue
                num_sent += 1
                yield answer.event(num_sent - 1)
        finally:
            self._close(answer)
        if request.finish_reason is FinishReason.ABORT:
            thing = f"request {request.request_id} after {num_sent} tokens"
            raise ProtocolError(complaint(thing, "abort", "an end of its own", "a step failed that computed it too"))

    def as_finished(self, requests: Iterable[Request], num_open: int) -> Iterator[Answer]:
        """Answers in the order they end; the next request is taken whenever fewer than `num_open` are open."""
        waiting, answers = iter(requests), list[Answer]()
        try:
            while True:
                for request in itertools.islice(waiting, num_open - len(answers)):
                    answers.append(self._open(request))
                if not answers:
                    return
                self._advance()
                finished = [answer for answer in answers if answer.is_finished]
                answers = [answer for answer in answers if not answer.is_finished]
                for answer in finished:
                    self._close(answer)
                yield from finished
        finally:
            for answer in answers:
                self._close(answer)

    def _open(self, request: Request) -> Answer:
        self._engine.add(request)
        self._answers[request.request_id] = Answer(request)
        return self._answers[request.request_id]

    def _advance(self) -> None:
        """One step; its tokens go to all answers that are open, whoever waits for them."""
        for event in self._engine.step():
            self._answers[event.request_id].take(event)

    def _close(self, answer: Answer) -> None:
        self._engine.abort(answer.request.request_id)
        del self._answers[answer.request.request_id]
