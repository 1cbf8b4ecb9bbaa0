"""The choices of one call, as the engine computes them: events to be sent, or one body at the end.

One choice goes through untouched.  With several, chunks carry the index of their choice and only the last one of all
carries the usage, which is the sum.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flash41.chat.parsing import EngineFinish
from flash41.chat.protocols import ACCEPTED, REJECTED, WireEvent, WireReply, compact, draft_details
from flash41.engine.request import FinishReason
from flash41.errors import Flash41Error
from flash41.server.conversations import Call
from flash41.server.service import GeneratedToken, Generation, Service

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    item: T


class Tally:
    """What a call has cost so far."""

    def __init__(self) -> None:
        self.num_cached_tokens = 0
        self.num_generated_tokens = 0

    def take(self, items: Sequence[GeneratedToken]) -> None:
        """Books tokens."""
        self.num_generated_tokens += len(items)
        for item in items:
            self.num_cached_tokens = max(self.num_cached_tokens, item.num_cached_tokens)


def drafts_of(item: GeneratedToken) -> dict[str, Any]:
    """What the usage tells of the drafts of an answer up to a token."""
    return draft_details(item.num_draft_tokens, item.num_accepted_tokens, item.undrafted_because)


def engine_finish(reason: FinishReason) -> EngineFinish:
    """Why an answer ended, in the words of the codec."""
    return "length" if reason is FinishReason.LENGTH else "stop"


class Replies:
    """The replies to one call.  Must be closed."""

    def __init__(self, service: Service, call: Call, name: str, created: int) -> None:
        self._service = service
        self._call = call
        self._identity: dict[str, Any] = {"name": name, "model": service.facts.names[0], "created": created}
        self._generations: list[Generation] = []
        self.tally = Tally()

    def close(self) -> None:
        """Gives up what is not finished."""
        for generation in self._generations:
            generation.close()

    def expire(self, failure: Flash41Error) -> None:
        """Gives up what is not finished, with a reason."""
        for generation in self._generations:
            generation.expire(failure)

    async def body(self) -> dict[str, Any]:
        """The whole reply."""
        replies = [self._reply(keeps=True) for _ in self._call.jobs]
        self._submit()
        for generation, reply in zip(self._generations, replies, strict=True):
            async for _ in self._pieces(generation, reply):
                pass  # the others' tokens wait in their generations meanwhile
        return merged([reply.body() for reply in replies])

    def events(self) -> AsyncGenerator[list[WireEvent]]:
        """Events as they become certain."""
        replies = [self._reply(keeps=False) for _ in self._call.jobs]
        self._submit()
        return self._pieces(self._generations[0], replies[0]) if len(replies) == 1 else self._several(replies)

    def _submit(self) -> None:
        for job in self._call.jobs:
            self._generations.append(self._service.submit(job))

    def _reply(self, *, keeps: bool) -> WireReply:
        return self._service.codec.reply(self._call.conversation, **self._identity, keeps=keeps)

    async def _pieces(self, generation: Generation, reply: WireReply) -> AsyncGenerator[list[WireEvent]]:
        eos, num_prompt = self._service.facts.eos_token_id, self._call.num_prompt_tokens
        has_begun = False
        while not reply.is_finished:
            items, events = await generation.take(), list[WireEvent]()
            self.tally.take(items)
            for item in items:
                if not has_begun:
                    events += reply.begin(num_prompt, item.num_cached_tokens)
                    has_begun = True
                if self._service.facts.drafts:
                    reply.tell_drafts(drafts_of(item))
                token = item.token
                if token.token_id == eos:
                    reply.count()
                else:
                    events += reply.push(token.token_id, token.logprob, token.top_logprobs)
                if item.finish_reason is not None:
                    events += reply.finish(engine_finish(item.finish_reason))
            yield events
        generation.close()  # the text ended before the engine knew

    async def _several(self, replies: Sequence[WireReply]) -> AsyncGenerator[list[WireEvent]]:
        usages = list[dict[str, Any]]()
        sources = [self._indexed(index, reply) for index, reply in enumerate(replies)]
        async with contextlib.aclosing(interleaved(sources)) as found:
            async for index, events in found:
                yield [_numbered(event, index, usages, len(replies), self._call.includes_usage) for event in events]

    async def _indexed(self, index: int, reply: WireReply) -> AsyncGenerator[tuple[int, list[WireEvent]]]:
        async for events in self._pieces(self._generations[index], reply):
            yield index, events


async def interleaved(sources: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[T]:
    """What several sources give, as it comes; the first failure of one ends all."""
    if len(sources) == 1:  # no tasks for the usual case
        async with contextlib.aclosing(sources[0]) as source:
            async for item in source:
                yield item
        return
    queue: asyncio.Queue[_Item[T] | Exception | None] = asyncio.Queue()

    async def pump(source: AsyncGenerator[T]) -> None:
        try:
            async for item in source:
                queue.put_nowait(_Item(item))
            queue.put_nowait(None)
        except Exception as error:  # raised again by whoever reads the queue
            queue.put_nowait(error)

    tasks, num_left = [asyncio.create_task(pump(source)) for source in sources], len(sources)
    try:
        while num_left:
            found = await queue.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                num_left -= 1
            else:
                yield found.item
    finally:
        for task in tasks:
            task.cancel()


def _numbered(event: WireEvent, index: int, usages: list[dict[str, Any]], count: int, shows_empty: bool) -> WireEvent:
    """A chunk of one of several choices."""
    chunk = json.loads(event.data)
    chunk["choices"][0]["index"] = index
    if chunk.get("usage") is not None:
        usages.append(chunk["usage"])
        if len(usages) == count:
            chunk["usage"] = summed(usages)
        elif shows_empty:
            chunk["usage"] = None
        else:
            del chunk["usage"]
    return WireEvent(name=event.name, data=compact(chunk))


def merged(bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One body of the bodies of several choices."""
    first = bodies[0]
    if len(bodies) == 1:
        return first
    choices = [{**body["choices"][0], "index": index} for index, body in enumerate(bodies)]
    return {**first, "choices": choices, "usage": summed([body["usage"] for body in bodies])}


def summed(usages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Usage of several choices of one prompt: the prompt counts once, answers add up."""
    total = dict(usages[0])
    total["completion_tokens"] = sum(usage["completion_tokens"] for usage in usages)
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    if "completion_tokens_details" in total:
        details = [usage["completion_tokens_details"] for usage in usages]
        total["completion_tokens_details"] = summed_details(details)
    return total


def summed_details(details: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Details of several choices: counts add up, and what is no count is that of the first choice that has it."""
    total = {key: value for one in reversed(details) for key, value in one.items()}
    counts = total.keys() & {"reasoning_tokens", ACCEPTED, REJECTED}
    return total | {key: sum(one.get(key, 0) for one in details) for key in counts}
