"""From bodies to jobs: what only the checkpoint repository's encoder knows.  spec: chat.md sections 6 and 7."""

from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec
from helpers.serving import CHAT, MESSAGES, RESPONSES, Scripted

EARLIER = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name it.<｜title｜>", "task": "title"},
    {"role": "assistant", "content": "A name"},
]
NOW = [{"role": "user", "content": "Why?"}]
PROMPT = "<｜User｜>Why?<｜Assistant｜><think>"


@pytest.mark.parametrize("stream", [False, True])
def test_a_context_is_no_part_of_the_prompt(codec: ChatCodec, stream: bool) -> None:
    scripted = Scripted(codec)
    reply = scripted.post(CHAT, {"context": EARLIER, "messages": NOW, "stream": stream, "reasoning_effort": 9})
    assert reply.status == 200
    (job,) = scripted.service.jobs
    assert job.prompt_ids == tuple(codec.tokenizer.encode_with_control(PROMPT))
    usage = (reply.chunks[-1] if stream else reply.json)["usage"]
    assert usage["prompt_tokens"] == len(job.prompt_ids)


def test_an_earlier_task_is_one_token_and_its_answer_has_no_header(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    assert scripted.post(CHAT, {"messages": EARLIER + NOW}).status == 200
    ids = scripted.service.jobs[0].prompt_ids
    task, header = codec.tokenizer.id_of("<｜title｜>"), codec.tokenizer.id_of("<｜Assistant｜>")
    assert (ids.count(task), ids.count(header)) == (1, 1)
    end = tuple(codec.tokenizer.encode_with_control("A name<｜end▁of▁sentence｜>" + PROMPT))
    assert ids[-len(end) - 1 :] == (task, *end)


def test_tokenize_leaves_the_context_out_too(codec: ChatCodec) -> None:
    found = Scripted(codec).post("/v1/tokenize", {"context": EARLIER, "messages": NOW}).json
    assert found["tokens"] == list(codec.tokenizer.encode_with_control(PROMPT))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"context": "x", "messages": NOW}),
        (CHAT, {"context": [5], "messages": NOW}),
        (CHAT, {"context": [{"role": "user"}], "messages": NOW}),
        (CHAT, {"context": EARLIER[:2], "messages": NOW}),
        (CHAT, {"context": EARLIER, "messages": []}),
        (CHAT, {"context": EARLIER[:2], "messages": [{"role": "assistant", "content": "", "prefix": True}]}),
        (RESPONSES, {"context": EARLIER, "input": "Why?"}),
        (MESSAGES, {"context": EARLIER, "messages": NOW, "max_tokens": 9}),
    ],
)
def test_a_context_that_cannot_be_is_refused_before_the_engine(codec: ChatCodec, path: str, body: Any) -> None:
    scripted = Scripted(codec)
    assert scripted.post(path, body).status == 400
    assert scripted.service.jobs == []
