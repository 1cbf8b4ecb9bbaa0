"""The engine behind a connection: answers are the library's, failures end nothing else.

The loop runs in a thread of this process and not in one of its own, so that its model can be broken on purpose.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from flash41.chat.protocols import Protocol
from flash41.engine.llm import LLM
from flash41.engine.request import FinishReason, SamplingParams
from flash41.errors import RequestError
from flash41.server.engine_client import EngineClient
from flash41.server.engine_loop import EngineLoop
from flash41.server.engine_orders import ALONE
from flash41.server.service import (
    MOST_FAILURES,
    ConversationWish,
    EngineStoppedError,
    GeneratedToken,
    Generation,
    GenerationError,
    Job,
)
from helpers.engine_thread import engine_over

T = TypeVar("T")

PROMPT = (0, 17, 42, 99)
PARAMS = SamplingParams(max_tokens=6)
Work = Callable[[EngineClient], Coroutine[Any, Any, T]]


@pytest.fixture(scope="module")
def llm(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_num_seqs=2, max_model_len=1024)


def job(seed: int = 1, **changes: Any) -> Job:
    return Job(**{"prompt_ids": PROMPT, "params": PARAMS, "seed": seed} | changes)


async def drain(generation: Generation) -> list[GeneratedToken]:
    found: list[GeneratedToken] = []
    while not found or found[-1].finish_reason is None:
        found += await generation.take()
    return found


def served(llm: LLM, work: "Work[T]", deaths: list[str] | None = None) -> T:
    """The result of work on a running engine, which is stopped behind it."""

    async def main(engine: EngineClient) -> T:
        await engine.start(lambda: deaths.append("died") if deaths is not None else None)
        async with asyncio.timeout(60):
            try:
                return await work(engine)
            finally:
                assert await engine.stop(30)
                engine.close()
                await asyncio.sleep(0.01)

    with engine_over(llm) as (engine, _):
        return asyncio.run(main(engine))


def settled(engine: EngineClient) -> bool:
    stats = engine.stats()
    return (stats.engine.num_running, stats.engine.num_waiting, stats.num_used_pages) == (0, 0, 0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_answers_are_those_of_the_library_whoever_computes_beside_them(llm: LLM) -> None:
    alone = {seed: llm.generate([PROMPT], SamplingParams(max_tokens=6, seed=seed))[0] for seed in range(5)}

    async def work(engine: EngineClient) -> list[list[GeneratedToken]]:
        return await asyncio.gather(*(drain(engine.submit(job(seed))) for seed in range(5)))

    for seed, tokens in enumerate(served(llm, work)):
        assert tuple(item.token.token_id for item in tokens) == alone[seed].output_ids
        assert tokens[-1].finish_reason is alone[seed].finish_reason


def test_figures_add_up_and_nothing_is_left(llm: LLM) -> None:
    async def work(engine: EngineClient) -> None:
        answers = await asyncio.gather(*(drain(engine.submit(job(seed))) for seed in range(3)))
        await until(lambda: settled(engine))
        stats = engine.stats()
        assert stats.num_finished == 3
        assert stats.num_generated_tokens == sum(map(len, answers))
        assert stats.engine.num_pages == llm.plan.num_pages
        assert stats.step_seconds > 0
        llm.engine.scheduler.check_integrity()

    served(llm, work)


def test_a_prompt_that_was_read_before_is_cached_for_those_of_its_salt(llm: LLM) -> None:
    long = tuple(range(3, 3 + llm.plan.block_size + 20))

    async def work(engine: EngineClient) -> list[int]:
        found = []
        for salt in (b"a", b"a", b"b"):
            tokens = await drain(engine.submit(job(prompt_ids=long, salt=salt)))
            found.append(tokens[0].num_cached_tokens)
        return found

    first, again, other = served(llm, work)
    assert (first, other) == (0, 0)
    assert again > 0


def test_a_closed_generation_frees_its_place(llm: LLM) -> None:
    async def work(engine: EngineClient) -> None:
        generations = [engine.submit(job(params=SamplingParams(max_tokens=50))) for _ in range(4)]  # two must wait
        await generations[0].take()
        for generation in generations:
            generation.close()
        await until(lambda: settled(engine))
        assert len(await drain(engine.submit(job()))) == 6
        assert not engine._generations  # nothing is kept of those that ended

    served(llm, work)


def test_a_stop_string_ends_an_answer_in_the_engine(llm: LLM) -> None:
    text = llm.generate([PROMPT], SamplingParams(max_tokens=6, seed=3))[0].text

    async def work(engine: EngineClient) -> list[GeneratedToken]:
        return await drain(engine.submit(job(3, stop=(text[:3],))))

    tokens = served(llm, work)
    assert tokens[-1].finish_reason is FinishReason.STOP
    assert len(tokens) < 6


def test_what_the_engine_refuses_fails_alone(llm: LLM) -> None:
    async def work(engine: EngineClient) -> None:
        good, bad = engine.submit(job()), engine.submit(job(prompt_ids=(0,) * 1024))
        with pytest.raises(RequestError, match="max_model_len"):
            await drain(bad)
        assert len(await drain(good)) == 6
        assert engine.is_ready

    served(llm, work)


def test_a_step_that_fails_takes_its_requests_and_no_more(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = llm.engine.runner.run, list[int]()

    def breaking(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the hardware is gone")
        return step(batch)

    monkeypatch.setattr(llm.engine.runner, "run", breaking)

    async def work(engine: EngineClient) -> None:
        first, second, waiting = (engine.submit(job(seed)) for seed in range(3))
        for generation in (first, second):
            with pytest.raises(GenerationError, match="RuntimeError") as caught:
                await drain(generation)
            assert "hardware" not in str(caught.value)
        assert len(await drain(waiting)) == 6
        assert engine.stats().num_failed_steps == 1
        assert engine.is_ready

    deaths: list[str] = []
    served(llm, work, deaths)
    assert deaths == []


def test_an_engine_whose_steps_all_fail_is_not_ready(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(batch: Any) -> Any:
        raise MemoryError

    async def work(engine: EngineClient) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine.runner, "run", broken)
            for _ in range(MOST_FAILURES):
                assert engine.is_ready
                with pytest.raises(GenerationError, match="MemoryError"):
                    await drain(engine.submit(job()))
            assert not engine.is_ready
            assert engine.is_alive, "a broken engine is still there"
        await drain(engine.submit(job()))
        assert engine.is_ready, "a step that works again shows it"

    served(llm, work)


def test_an_engine_that_ends_unasked_fails_everything_and_says_so(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise SystemError("unforeseen")

    deaths: list[str] = []

    async def work(engine: EngineClient) -> None:
        first = engine.submit(job(params=SamplingParams(max_tokens=50)))
        second = engine.submit(job(params=SamplingParams(max_tokens=50)))
        await first.take()
        with monkeypatch.context() as patch:
            patch.setattr(EngineLoop, "_publish", broken)
            for generation in (first, second):
                with pytest.raises(GenerationError, match="ended"):
                    await drain(generation)
        assert deaths == ["died"]
        assert not engine.is_ready
        with pytest.raises(EngineStoppedError):
            engine.submit(job())

    served(llm, work, deaths)


def test_a_stop_fails_what_is_open_and_kills_nobody(llm: LLM) -> None:
    deaths: list[str] = []

    async def work(engine: EngineClient) -> None:
        generation = engine.submit(job(params=SamplingParams(max_tokens=50)))
        await generation.take()
        assert await engine.stop(30)
        with pytest.raises(EngineStoppedError):
            await drain(generation)

    served(llm, work, deaths)
    assert deaths == []


def test_an_idle_engine_computes_nothing(llm: LLM) -> None:
    async def work(engine: EngineClient) -> None:
        await drain(engine.submit(job()))
        num_steps = engine.stats().num_steps
        before = time.thread_time()
        await asyncio.sleep(0.1)
        assert engine.stats().num_steps == num_steps
        assert time.thread_time() - before < 0.1
        assert sum(thread.name == "engine" for thread in threading.enumerate()) == 1

    served(llm, work)


class Broken:
    """A constraint that allows everything and is found, at the end, to have given up."""

    def __init__(self, vocab_size: int) -> None:
        self._mask = np.ones(vocab_size, np.bool_)

    def allowed(self) -> Any:
        return self._mask

    def push(self, token_id: int) -> None:
        pass

    def check(self) -> None:
        raise RequestError("constrained answer: gave up")


def wish(**body: Any) -> ConversationWish:
    body = {"messages": [{"role": "user", "content": "hi json"}], "thinking": {"type": "disabled"}, **body}
    return ConversationWish(protocol=Protocol.CHAT, body=body, thinks_by_default=True)


HELD = wish(response_format={"type": "json_object"})


def test_an_answer_that_its_constraint_gave_up_is_an_error_of_its_own(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm, "answer_constraint", lambda *_: Broken(llm.config.vocab_size))

    async def work(engine: EngineClient) -> None:
        bad, good = engine.submit(job(conversation=HELD)), engine.submit(job())
        with pytest.raises(RequestError, match="gave up"):
            await drain(bad)
        assert len(await drain(good)) == 6
        assert engine.stats().num_failed_steps == 0

    served(llm, work)


def test_a_described_format_holds_the_answer(llm: LLM) -> None:
    async def work(engine: EngineClient) -> list[GeneratedToken]:
        return await drain(engine.submit(job(conversation=HELD)))

    first = served(llm, work)[0].token.token_id
    assert llm.tokenizer.token_text(first).startswith("{")


def test_a_described_stop_string_ends_the_content_of_a_conversation(llm: LLM) -> None:
    text = llm.generate([PROMPT], SamplingParams(max_tokens=6, seed=3))[0].text

    async def work(engine: EngineClient) -> list[GeneratedToken]:
        return await drain(engine.submit(job(3, conversation=wish(stop=[text[:3]]))))

    tokens = served(llm, work)
    assert tokens[-1].finish_reason is FinishReason.STOP
    assert len(tokens) < 6


def test_what_cannot_be_prepared_fails_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(engine: EngineClient) -> None:
        bad = engine.submit(job(conversation=wish(response_format={"type": "json_schema", "json_schema": {}})))
        with pytest.raises(RequestError):
            await drain(bad)
        with monkeypatch.context() as patch:
            patch.setattr(llm, "answer_constraint", lambda *_: 1 / 0)
            with pytest.raises(GenerationError, match="ZeroDivisionError"):
                await drain(engine.submit(job(conversation=HELD)))
        assert len(await drain(engine.submit(job()))) == 6

    served(llm, work)


def test_a_job_that_is_closed_while_it_is_prepared_is_never_computed(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        begun.set()
        assert go.wait(30)

    monkeypatch.setattr(llm, "answer_constraint", slow)

    async def work(engine: EngineClient) -> None:
        generation = engine.submit(job(conversation=HELD))
        assert await asyncio.to_thread(begun.wait, 30)
        generation.close()
        # Orders are read in turn: behind this answer the closing was read too.
        assert len(await drain(engine.submit(job()))) == 6, "others go on meanwhile"
        num_tokens = engine.stats().num_generated_tokens
        go.set()
        answer = await drain(engine.submit(job(conversation=HELD)))  # prepared behind the closed one
        assert engine.stats().num_generated_tokens == num_tokens + len(answer)

    served(llm, work)


def test_a_connection_that_closes_lets_the_process_leave(llm: LLM) -> None:
    async def main(engine: EngineClient) -> None:
        await engine.start(lambda: None)
        engine.submit(job(params=SamplingParams(max_tokens=50)))
        engine.close()
        await asyncio.sleep(0.01)

    with engine_over(llm) as (engine, worker):
        asyncio.run(main(engine))
        assert worker.wait(30)
        assert ALONE in worker.left
