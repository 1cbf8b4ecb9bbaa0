"""POST /v1/completions over a scripted service."""

from typing import Any

import pytest

from flash41.chat.conversation import ChatCodec
from helpers.serving import COMPLETIONS, Scripted


def test_a_text_stands_behind_bos_and_may_hold_control_tokens(codec: ChatCodec) -> None:
    scripted = Scripted(codec, " world")
    found = scripted.post(COMPLETIONS, {"prompt": "hello<｜User｜>", "seed": 3}).json
    assert scripted.service.jobs[0].prompt_ids == (0, *codec.tokenizer.encode_with_control("hello<｜User｜>"))
    assert found["choices"] == [{"index": 0, "text": " world", "logprobs": None, "finish_reason": "stop"}]
    assert (found["object"], found["seed"]) == ("text_completion", 3)
    num_prompt, num_output = len(scripted.service.jobs[0].prompt_ids), len(codec.tokenizer.encode(" world")) + 1
    assert found["usage"]["prompt_tokens"] == num_prompt
    assert found["usage"]["completion_tokens"] == num_output


def test_ids_are_taken_as_they_are(codec: ChatCodec) -> None:
    scripted = Scripted(codec)
    assert scripted.post(COMPLETIONS, {"prompt": [5, 6, 1023]}).status == 200
    assert scripted.service.jobs[0].prompt_ids == (5, 6, 1023)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [["a", "b"], [[5, 6], [7]]])
def test_prompts_and_choices_are_numbered_together(codec: ChatCodec, prompt: list[Any], stream: bool) -> None:
    scripted = Scripted(codec, lambda job: f"{len(job.prompt_ids)} {job.seed}")
    reply = scripted.post(COMPLETIONS, {"prompt": prompt, "n": 2, "seed": 10, "max_tokens": 50, "stream": stream})
    texts: dict[int, str] = {}
    for chunk in reply.chunks if stream else [reply.json]:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    lengths = [len(job.prompt_ids) for job in scripted.service.jobs]
    assert texts == {k: f"{lengths[k]} {10 + k}" for k in range(4)}
    usage = (reply.chunks[-1] if stream else reply.json)["usage"]
    assert usage["prompt_tokens"] == lengths[0] + lengths[2]
    assert all("usage" not in chunk for chunk in (reply.chunks[:-1] if stream else ()))


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_is_cut_and_never_shown(codec: ChatCodec, stream: bool) -> None:
    reply = Scripted(codec, "one ST STOP two").post(
        COMPLETIONS, {"prompt": "x", "stop": ["STOP"], "max_tokens": 99, "stream": stream}
    )
    chunks = reply.chunks if stream else [reply.json]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "one ST "
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_length_limit_is_told_and_sixteen_is_the_default(codec: ChatCodec) -> None:
    scripted = Scripted(codec, "a b c d e f g h i j k l m n o p q r s t u v w x y z")
    choice = scripted.post(COMPLETIONS, {"prompt": "x"}).json["choices"][0]
    assert choice["finish_reason"] == "length"
    assert scripted.service.jobs[0].params.max_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_lists_per_token(codec: ChatCodec, stream: bool) -> None:
    reply = Scripted(codec, "hi a").post(COMPLETIONS, {"prompt": "x", "logprobs": 1, "stream": stream})
    parts = [chunk["choices"][0]["logprobs"] for chunk in (reply.chunks if stream else [reply.json])]
    joined = {key: [entry for part in parts for entry in part[key]] for key in parts[0]}
    tokens = [*codec.tokenizer.encode("hi a"), 1]
    assert joined["tokens"] == [codec.tokenizer.token_text(token) for token in tokens]
    assert joined["token_logprobs"] == [-0.5] * len(tokens)
    assert joined["text_offset"][:2] == [0, len(joined["tokens"][0])]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": "x", "echo": True}, "echo is not supported"),
        ({"prompt": "x", "suffix": "y"}, "suffix is not supported"),
        ({"prompt": "x", "best_of": 2}, "best_of is not supported"),
        ({"prompt": []}, "at least one token"),
        ({"prompt": [5, 1024]}, "below 1024"),
        ({"prompt": [-1]}, "greater than or equal to 0"),
        ({"prompt": [[5], "x"]}, "prompt"),
        ({"prompt": ["x"] * 65}, "at most 64 prompts"),
        ({"prompt": [5] * 8192}, "together may have 8192"),
        ({"prompt": "x", "max_tokens": 8191}, "at most 8190"),
        ({}, "prompt: Field required"),
    ],
)
def test_refusals_say_what_is_wrong(codec: ChatCodec, body: dict[str, Any], words: str) -> None:
    scripted = Scripted(codec)
    reply = scripted.post(COMPLETIONS, body)
    assert reply.status == 400
    assert words in reply.json["error"]["message"]
    assert scripted.service.jobs == []
    assert scripted.app.context.gate.num_open == 0
