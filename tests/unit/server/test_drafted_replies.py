"""A server that drafts answers as one that does not, and its usage and figures tell what came of the drafts."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flash41.engine.drafting import Forced
from flash41.engine.llm import LLM
from flash41.engine.request import Request
from flash41.engine.stats import EngineStats
from flash41.server.app import create_app
from flash41.server.engine_client import EngineClient
from flash41.server.settings import ServerSettings
from helpers.engine_thread import engine_over
from helpers.serving import CHAT, COMPLETIONS, HELLO, MESSAGES, NAME, RESPONSES, Reply, call, run

CHAT_MODE = {**HELLO, "thinking": {"type": "disabled"}, "max_tokens": 12}
COLOUR = {
    "type": "object",
    "properties": {
        "tone": {"type": "string", "enum": ["dark", "light"]},
    },
    "required": ["tone"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR, "strict": True}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "seeded": (CHAT, {**HELLO, "max_tokens": 12, "seed": 5, "logprobs": True, "top_logprobs": 2}),
    "greedy": (CHAT, {**CHAT_MODE, "temperature": 0, "seed": 6, "frequency_penalty": 0.5}),
    "schema": (CHAT, {**CHAT_MODE, "seed": 3, "max_tokens": 120, "response_format": SCHEMA}),
    "choices": (CHAT, {**CHAT_MODE, "seed": 8, "n": 2}),
    "texts": (COMPLETIONS, {"prompt": ["Once", "for i in"], "max_tokens": 11, "seed": 20, "n": 2, "logprobs": 1}),
    "responses": (RESPONSES, {"input": "hello", "max_output_tokens": 9, "seed": 30}),
    "messages": (MESSAGES, {**HELLO, "max_tokens": 9, "seed": 40}),
}
TELLING = ("seeded", "greedy", "schema", "choices", "texts")
"""Those whose protocol has a place for counts of drafts."""
VOCAB = 1024
PREDICTIONS = ("accepted_prediction_tokens", "rejected_prediction_tokens")


@dataclass
class Engine:
    """An engine for several servers, one after the other, and the requests it has computed."""

    llm: LLM
    requests: list[Request] = field(default_factory=list)

    def replies(self, *asked: tuple[str, dict[str, Any]]) -> list[Reply]:
        """Replies of a server, and what it then says at /metrics."""

        async def served(engine: EngineClient) -> list[Reply]:
            app = create_app(engine, ServerSettings())
            await engine.start(lambda: None)
            try:
                json_body = {"content-type": "application/json"}
                found = [await call(app, "POST", path, json.dumps(body).encode(), json_body) for path, body in asked]
                while engine.stats().engine != self.llm.engine.stats:  # figures follow the tokens of a step
                    await asyncio.sleep(0.01)
                return [*found, await call(app, "GET", "/metrics")]
            finally:
                assert await engine.stop(30)
                engine.close()

        with engine_over(self.llm, [NAME]) as (engine, _):
            return run(served(engine))

    def force(self, forced: Forced | None) -> None:
        """Verifies what `forced` says in the place of drafts."""
        assert self.llm.engine.drafting is not None
        self.llm.engine.drafting.forced = forced


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Replies to all bodies of a server without drafts, and of one with forced ones."""

    plain: list[Reply]
    drafted: list[Reply]
    requests: list[Request]
    """Those of the drafting server."""
    before: EngineStats
    after: EngineStats
    metrics: str
    """Behind all."""


def noted(llm: LLM) -> Engine:
    engine, own = Engine(llm), llm.engine.add

    def add(request: Request) -> None:
        engine.requests.append(request)
        own(request)

    llm.engine.add = add  # type: ignore[method-assign]
    return engine


@pytest.fixture(scope="module")
def plain(tiny_directory: Path) -> Engine:
    return noted(LLM(tiny_directory, max_num_seqs=2, max_model_len=512))


@pytest.fixture(scope="module")
def drafting(tiny_directory: Path) -> Engine:
    return noted(LLM(tiny_directory, max_num_seqs=2, max_model_len=512, draft="on"))


def as_answered(plain: Engine) -> Forced:
    """Drafts of which 0 to 5 are right, in turn, and the next one is not, for requests that `plain` has answered."""

    def tokens(request: Request, drafts: Sequence[int]) -> Sequence[int]:
        same = (one for one in plain.requests if (one.seed, one.prompt_ids) == (request.seed, request.prompt_ids))
        rest = next(same).output_ids[len(request.output_ids) :]
        count = (len(request.output_ids) + request.seed) % 6
        return [*rest[:count], *((token + 1) % VOCAB for token in rest[count : count + 1])][: len(drafts)]

    return tokens


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "stream"])
def answered(plain: Engine, drafting: Engine, request: pytest.FixtureRequest) -> Answered:
    asked = [(path, {**body, "stream": request.param}) for path, body in BODIES.values()]
    *expected, _ = plain.replies(*asked)
    before, num_before = drafting.llm.engine.stats, len(drafting.requests)
    drafting.force(as_answered(plain))
    *found, metrics = drafting.replies(*asked)
    drafting.force(None)
    assert [reply.status for reply in (*expected, *found)] == [200] * 2 * len(asked)
    return Answered(
        plain=expected,
        drafted=found,
        requests=drafting.requests[num_before:],
        before=before,
        after=drafting.llm.engine.stats,
        metrics=metrics.body.decode(),
    )


def shared(reply: Reply) -> Any:
    """What of a reply does not depend on when it was made, how it was cut into events, or on drafts."""
    found = [reply.json] if "json" in reply.headers["content-type"] else reply.chunks
    texts: dict[str, str] = {}
    usages = []
    for chunk in found:
        told = chunk.get("usage") or chunk.get("response", {}).get("usage") or chunk.get("message", {}).get("usage")
        if told:
            for name in PREDICTIONS:
                told.get("completion_tokens_details", {}).pop(name, None)
            if not told.get("completion_tokens_details", True):
                del told["completion_tokens_details"]
            usages.append(told)
        for choice in chunk.get("choices", ()):
            told = choice.get("delta") or choice.get("message") or {"text": choice.get("text")}
            for key in ("text", "content", "reasoning_content"):
                place = f"{choice['index']} {key}"
                texts[place] = texts.get(place, "") + (told.get(key) or "")
            texts["ends"] = texts.get("ends", "") + str(choice["finish_reason"] or "")
            logs = (choice.get("logprobs") or {}).get("token_logprobs") or (choice.get("logprobs") or {}).get("content")
            texts[f"{choice['index']} logprobs"] = texts.get(f"{choice['index']} logprobs", "") + str(logs or "")
        for key in ("delta", "output", "content"):
            if "choices" not in chunk and key in chunk:
                parts = chunk[key] if isinstance(chunk[key], list) else [chunk[key]]
                texts[key] = texts.get(key, "") + "".join(
                    part if isinstance(part, str) else words(part) for part in parts
                )
    return usages, {place: text.replace("][", ", ") for place, text in texts.items()}


def words(part: dict[str, Any]) -> str:
    """Text of a part of a reply of Responses or Messages."""
    inner = "".join(words(one) for one in part.get("content") or () if isinstance(one, dict))
    return inner + "".join(str(part.get(key) or "") for key in ("text", "thinking", "partial_json"))


def usage(reply: Reply) -> dict[str, Any]:
    last = reply.json if "json" in reply.headers["content-type"] else reply.chunks[-1]
    found: dict[str, Any] = last["usage"]
    return found


def details(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = usage(reply)["completion_tokens_details"]
    return found


def test_replies_are_those_of_a_server_without_drafts(answered: Answered) -> None:
    for name, right, drafted in zip(BODIES, answered.plain, answered.drafted, strict=True):
        assert shared(drafted) == shared(right), name
        assert any(shared(right)[1].values()), name
    assert sum(answered.after.accepted_tokens) - sum(answered.before.accepted_tokens) > 20


def test_a_stop_string_inside_a_block_cuts_as_without_drafts(plain: Engine, drafting: Engine) -> None:
    body = {**CHAT_MODE, "seed": 11}
    (whole, _) = plain.replies((CHAT, body))
    text = whole.json["choices"][0]["message"]["content"]
    starts = range(1, len(text) - 2, 4)
    asked = [(CHAT, {**body, "stop": text[start : start + 2], "stream": start % 8 == 1}) for start in starts]
    drafting.force(as_answered(plain))
    *found, _ = drafting.replies(*asked)
    drafting.force(None)
    *expected, _ = plain.replies(*asked)
    lengths = set()
    for right, drafted in zip(expected, found, strict=True):
        assert shared(drafted) == shared(right)
        lengths.add(shared(right)[0][-1]["completion_tokens"])
    assert len(lengths) > 2
    assert min(lengths) < whole.json["usage"]["completion_tokens"]


def test_usage_and_figures_add_up(answered: Answered) -> None:
    told = {name: details(reply) for name, reply in zip(BODIES, answered.drafted, strict=True) if name in TELLING}
    of = {seed: [one for one in answered.requests if one.seed == seed] for seed in (3, 5, 6, 8, 9, 20, 21, 22, 23)}
    assert [len(found) for found in of.values()] == [1] * len(of)
    for name, seeds in {"seeded": [5], "greedy": [6], "schema": [3], "choices": [8, 9], "texts": range(20, 24)}.items():
        asked = [of[seed][0] for seed in seeds]
        accepted = sum(one.num_accepted_tokens for one in asked)
        assert told[name]["accepted_prediction_tokens"] == accepted
        assert told[name]["rejected_prediction_tokens"] == sum(one.num_draft_tokens for one in asked) - accepted
        # At least the first token of each answer was no draft.
        assert usage(answered.drafted[[*BODIES].index(name)])["completion_tokens"] - accepted >= len(asked)
    before, after = answered.before, answered.after
    assert sum(one.num_accepted_tokens for one in answered.requests) == risen(
        before.accepted_tokens, after.accepted_tokens
    )
    assert sum(one.num_draft_tokens for one in answered.requests) == risen(before.drafted_tokens, after.drafted_tokens)
    # A verification gives the accepted drafts and one token of the target's own, which a draft that is an end lacks.
    num_tokens = after.num_block_tokens - before.num_block_tokens
    num_blocks = after.num_draft_blocks - before.num_draft_blocks
    ends = sum(one.output_ids[-1] == one.eos_token_id for one in answered.requests)
    assert 0 <= risen(before.accepted_tokens, after.accepted_tokens) + num_blocks - num_tokens <= ends


def risen(before: Sequence[int], after: Sequence[int]) -> int:
    return sum(after) - sum(before)


def test_figures_for_prometheus_count_by_position(answered: Answered) -> None:
    stats, lines = answered.after, answered.metrics.splitlines()
    assert len(stats.drafted_tokens) == 5
    for name, counts in (("drafted", stats.drafted_tokens), ("accepted", stats.accepted_tokens)):
        for position, count in enumerate(counts, 1):
            assert f'flash41_engine_{name}_tokens_total{{position="{position}"}} {float(count)}' in lines
    assert f"flash41_engine_draft_blocks_total {float(stats.num_draft_blocks)}" in lines
    assert f"flash41_engine_draft_block_tokens_total {float(stats.num_block_tokens)}" in lines


def test_only_chat_and_texts_have_a_place_for_drafts_and_only_where_there_are_any(answered: Answered) -> None:
    for name, right, drafted in zip(BODIES, answered.plain, answered.drafted, strict=True):
        assert "prediction_tokens" not in right.body.decode(), name
        assert ("prediction_tokens" in drafted.body.decode()) == (name in TELLING), name


def test_an_answer_without_drafts_says_why(drafting: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    own = drafting.llm.request

    def request(*args: Any, **values: Any) -> Request:
        found = own(*args, **values)
        found.undrafted_because = "images in the request"
        return found

    monkeypatch.setattr(drafting.llm, "request", request)
    (chat, texts, _) = drafting.replies(BODIES["seeded"], BODIES["texts"])
    assert details(chat)["undrafted_because"] == "images in the request"
    assert details(texts) == {"undrafted_because": "images in the request"}
    assert drafting.requests[-1].num_draft_tokens == 0
