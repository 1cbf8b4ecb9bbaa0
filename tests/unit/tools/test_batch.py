import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from flash41.chat.conversation import Message
from flash41.chat.parts import data_url
from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.errors import ProtocolError
from flash41.tools.batch import Batch, BatchWish, Totals
from flash41.tools.batch_output import partial_of
from flash41.tools.batch_replies import text_reply
from flash41.tools.batch_requests import chat_job, text_job
from helpers.constrained import asks_for, of_object, tool
from helpers.image_files import encoded, pattern
from helpers.scripted import SAMPLER, scripted

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]
PLAIN = {"messages": HELLO, "thinking": {"type": "disabled"}}
SHORT = {"max_tokens": 4, "seed": 5}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

Call = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def llm(tiny_directory: Path) -> LLM:
    return LLM(tiny_directory, max_model_len=96, max_num_seqs=3)


@pytest.fixture
def wish(tmp_path: Path) -> BatchWish:
    return BatchWish(source=tmp_path / "in.jsonl", target=tmp_path / "out.jsonl")


@pytest.fixture
def answers(llm: LLM, wish: BatchWish) -> Callable[[Iterable[Call]], list[dict[str, Any]]]:
    """Results of calls, in the order of the calls."""

    return lambda calls: answered(llm, wish, calls)


def answered(llm: LLM, wish: BatchWish, calls: Iterable[Call]) -> list[dict[str, Any]]:
    count = write(wish, calls)
    wish.target.unlink(missing_ok=True)
    Batch(wish).run(llm)
    results = {found["custom_id"]: found for found in map(json.loads, wish.target.read_text().splitlines())}
    return [results[str(number)] for number in range(count)]


def write(wish: BatchWish, calls: Iterable[Call]) -> int:
    lines = [
        json.dumps({"custom_id": str(number), "method": "POST", "url": url, "body": body})
        for number, (url, body) in enumerate(calls)
    ]
    wish.source.write_text("\n".join(lines) + "\n")
    return len(lines)


def body_of(result: dict[str, Any]) -> dict[str, Any]:
    assert (result["error"], result["response"]["status_code"]) == (None, 200), result
    found: dict[str, Any] = result["response"]["body"]
    return found


def choice_of(result: dict[str, Any]) -> dict[str, Any]:
    (choice,) = body_of(result)["choices"]
    return dict(choice)


Answers = Callable[[Iterable[Call]], list[dict[str, Any]]]


# Answers are those of the model.


def test_a_chat_and_a_text_are_answered_as_the_model_answers_them(llm: LLM, answers: Answers) -> None:
    params = SamplingParams(max_tokens=4, seed=5)
    chat, text = answers([(CHAT, {**PLAIN, **SHORT, "model": "mine"}), (TEXT, {"prompt": "Once", **SHORT})])
    expected = llm.chat([Message(role="user", content="hi")], params)
    found = body_of(chat)
    assert found["choices"][0]["message"] == {"role": "assistant", "content": expected.text}
    assert (found["object"], found["model"], found["seed"]) == ("chat.completion", "mine", 5)
    assert found["usage"] == {
        "prompt_tokens": len(expected.prompt_ids),
        "completion_tokens": 4,
        "total_tokens": len(expected.prompt_ids) + 4,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert choice_of(text)["text"] == llm.generate("Once", params)[0].text
    assert (choice_of(text)["finish_reason"], body_of(text)["object"]) == ("length", "text_completion")


def test_every_way_to_choose_tokens_is_read_from_the_body(llm: LLM, answers: Answers) -> None:
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": 9,
    }
    biased = {**options, "logit_bias": {"300": 100}, "max_tokens": 6}
    params = SamplingParams(**options, logit_bias={300: 100}, max_tokens=6)
    assert text_job(llm, {"prompt": [5, 6, 7], **biased}).request.params == params
    assert chat_job(llm, {**PLAIN, **biased}).request.params == params
    (result,) = answers([(TEXT, {"prompt": [5, 6, 7], **biased})])
    assert choice_of(result)["text"] == llm.generate([5, 6, 7], params)[0].text
    assert llm.tokenizer.token_text(300) in choice_of(result)["text"]


def test_temperature_is_taken_as_asked_in_thinking_too(llm: LLM, answers: Answers) -> None:
    calls = [(CHAT, {"messages": HELLO, "temperature": 0, "max_tokens": 5, "seed": seed}) for seed in (1, 2)]
    first, second = (choice_of(result)["message"]["reasoning_content"] for result in answers(calls))
    assert first == second


def test_reasoning_and_calls_are_delivered(
    tiny_directory: Path, wish: BatchWish, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'why</think>so\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    llm = LLM(tiny_directory, max_model_len=1024)
    ids = llm.tokenizer.encode_with_control(text)
    monkeypatch.setattr(SAMPLER, scripted(*ids, llm.config.tokens.eos))
    (result,) = answered(llm, wish, [(CHAT, {"messages": HELLO, "tools": [TOOL]})])
    choice, usage = choice_of(result), body_of(result)["usage"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"], choice["finish_reason"]) == ("why", "so", "tool_calls")
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "f", "arguments": "{}"}]
    assert usage["completion_tokens"] == len(ids) + 1
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(llm.tokenizer.encode("why")) + 1


def test_stop_strings_cut_both_kinds(llm: LLM, answers: Answers) -> None:
    whole = answers(
        [(CHAT, {**PLAIN, "max_tokens": 9, "seed": 5}), (TEXT, {"prompt": "a", "max_tokens": 9, "seed": 5})]
    )
    chat, text = choice_of(whole[0])["message"]["content"], choice_of(whole[1])["text"]
    cut = answers(
        [
            (CHAT, {**PLAIN, "max_tokens": 9, "seed": 5, "stop": chat[4:6]}),
            (TEXT, {"prompt": "a", "max_tokens": 9, "seed": 5, "stop": ["\0", text[4:6]]}),
        ]
    )
    assert choice_of(cut[0])["message"]["content"] == chat[: chat.index(chat[4:6])]
    assert choice_of(cut[1])["text"] == text[: text.index(text[4:6])]
    assert [choice_of(result)["finish_reason"] for result in cut] == ["stop", "stop"]


def test_formats_and_required_tools_are_enforced_line_by_line(tiny_directory: Path, wish: BatchWish) -> None:
    llm = LLM(tiny_directory, max_model_len=1024, max_num_seqs=3)
    schema = of_object(a={"type": "boolean"}, b={"enum": ["x", 3]})
    required = {**PLAIN, "tools": [tool("f", schema)], "tool_choice": "required", "parallel_tool_calls": False}
    endless = {**of_object(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"$ref": "#/$defs/x"}}}
    calls = [
        {**PLAIN, **asks_for(schema), "seed": 1, "max_tokens": 80},
        {**required, "seed": 1, "max_tokens": 200},
        {**PLAIN, "seed": 1, "max_tokens": 5},
        {**PLAIN, **asks_for({"not": {}})},
        {**PLAIN, **asks_for(endless), "max_tokens": 80},
    ]
    found = answered(llm, wish, [(CHAT, body) for body in calls])
    content = json.loads(choice_of(found[0])["message"]["content"])
    assert (set(content), content["a"] in (True, False), content["b"] in ("x", 3)) == ({"a", "b"}, True, True)
    (call,) = choice_of(found[1])["message"]["tool_calls"]
    assert call["function"]["name"] == "f"
    assert set(json.loads(call["function"]["arguments"])) == {"a", "b"}
    assert choice_of(found[1])["finish_reason"] == "tool_calls"
    assert choice_of(found[2])["finish_reason"] == "length"
    for refused, message in ((found[3], "Unimplemented keys"), (found[4], "constrained answer")):
        assert refused["response"]["status_code"] == 400
        assert message in refused["error"]["message"]


def test_logprobs_are_given_where_asked(answers: Answers) -> None:
    asked = {"logprobs": True, "top_logprobs": 2, **SHORT}
    thinking, plain, text, none = map(
        choice_of,
        answers(
            [
                (CHAT, {"messages": HELLO, **asked}),
                (CHAT, {**PLAIN, "logprobs": True, **SHORT}),
                (TEXT, {"prompt": "a", "logprobs": 1, **SHORT}),
                (TEXT, {"prompt": "a", **SHORT}),
            ]
        ),
    )
    entries = thinking["logprobs"]["reasoning_content"] + thinking["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * 4
    assert all(entry["logprob"] <= 0 and bytes(entry["bytes"]) for entry in entries)
    assert [entry["top_logprobs"] for entry in plain["logprobs"]["content"]] == [[]] * 4
    assert [len(found) for found in text["logprobs"].values()] == [4] * 4
    assert text["logprobs"]["text_offset"][0] == 0
    assert none["logprobs"] is None


def test_an_answer_is_as_long_as_asked_by_default_or_as_fits(llm: LLM, answers: Answers) -> None:
    bias = {"logit_bias": {str(llm.config.tokens.eos): -100}, "seed": 1}
    default, fits, other, both = answers(
        [
            (TEXT, {"prompt": "a", **bias}),
            (TEXT, {"prompt": list(range(3, 93)), **bias}),
            (CHAT, {**PLAIN, **bias, "max_completion_tokens": 3}),
            (CHAT, {**PLAIN, **bias, "max_tokens": 2, "max_completion_tokens": 3}),
        ]
    )
    (chat,) = answers([(CHAT, {**PLAIN, **bias})])
    counts = [body_of(result)["usage"]["completion_tokens"] for result in (default, fits, other, both)]
    assert counts == [16, 6, 3, 2]
    assert body_of(chat)["usage"]["total_tokens"] == llm.plan.max_model_len


def test_a_picture_is_shown_and_counted(answers: Answers) -> None:
    url = data_url(encoded(pattern(60, 45)))
    part = {"type": "image_url", "image_url": {"url": url}}
    shown, text, broken = answers(
        [
            (CHAT, {"messages": [{"role": "user", "content": [part]}], **SHORT}),
            (CHAT, {"messages": [{"role": "user", "content": ""}], **SHORT}),
            (CHAT, {"messages": [{"role": "user", "content": [part | {"image_url": {"url": url[:60]}}]}], **SHORT}),
        ]
    )
    counts = [body_of(result)["usage"]["prompt_tokens"] for result in (shown, text)]
    assert counts[0] == counts[1] + 10
    assert "image 1 (messages[0]): data URL: got " in broken["error"]["message"]


# One bad line does not stop the rest.


@pytest.mark.parametrize(
    ("url", "body", "word"),
    [
        (CHAT, {"messages": []}, "Empty"),
        (CHAT, {}, "messages"),
        (CHAT, {**PLAIN, "n": 2}, "n: got 2"),
        (CHAT, {**PLAIN, "stream": True}, "stream"),
        (CHAT, {**PLAIN, "temperature": 7}, "temperature"),
        (CHAT, {**PLAIN, "max_tokens": 9999}, "maximum context length"),
        (CHAT, {**PLAIN, "seed": 2**70}, "range"),
        (CHAT, {**PLAIN, "logit_bias": [1]}, "logit_bias"),
        (CHAT, {**PLAIN, "logit_bias": {"x": 1}}, "logit_bias"),
        (CHAT, {**PLAIN, "logit_bias": {"5": 300}}, "logit_bias"),
        (CHAT, {**PLAIN, "logit_bias": {"99999": 3}}, "logit_bias"),
        (CHAT, {**PLAIN, "top_k": "many"}, "top_k"),
        (CHAT, {**PLAIN, "stop": [""]}, "stop"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 2000}]}, "context length"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,a"}}]}]},
            "image",
        ),
        (TEXT, {}, "prompt"),
        (TEXT, {"prompt": ["a", "b"]}, "prompt"),
        (TEXT, {"prompt": [5, -1]}, "token ids"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": {"a": 1}}, "prompt"),
        (TEXT, {"prompt": "a", "max_tokens": 9999}, "max_tokens"),
        (TEXT, {"prompt": "a", "max_tokens": "many"}, "max_tokens"),
        (TEXT, {"prompt": "a", "stop": 7}, "stop"),
        (TEXT, {"prompt": "a", "stop": ["a"] * 17}, "stop"),
        (TEXT, {"prompt": "a", "echo": True}, "echo"),
        (TEXT, {"prompt": "a", "best_of": 2, "suffix": "b"}, "best_of"),
        (TEXT, {"prompt": "a\ud800"}, "surrogates"),
    ],
)
def test_a_refused_body_is_a_failure_of_its_line_only(
    answers: Answers, url: str, body: dict[str, Any], word: str
) -> None:
    good, bad, last = answers([(TEXT, {"prompt": "a", "max_tokens": 1}), (url, body), (CHAT, {**PLAIN, **SHORT})])
    assert choice_of(good)["finish_reason"] in ("length", "stop")
    assert choice_of(last)["message"]["role"] == "assistant"
    assert bad["response"]["status_code"] == 400
    assert word in bad["error"]["message"]
    assert bad["response"]["body"]["error"]["message"] == bad["error"]["message"]


def test_lines_that_are_no_calls_have_no_response(llm: LLM, wish: BatchWish) -> None:
    wish.source.write_text('nonsense\n{"custom_id": "a", "method": "POST", "url": "/v1/nothing", "body": {}}\n')
    assert Batch(wish).run(llm) == Totals(num_failed=2)
    first, second = map(json.loads, wish.target.read_text().splitlines())
    assert (first["custom_id"], first["response"], first["error"]["code"]) == (None, None, "invalid_json")
    assert (second["custom_id"], second["response"], second["error"]["code"]) == ("a", None, "invalid_url")


# Runs that stop and go on.

MANY = [(TEXT, {"prompt": [5, number], "max_tokens": number % 3 + 1, "seed": 1}) for number in range(7)]


def texts(target: Path) -> dict[str, str]:
    return {found["custom_id"]: choice_of(found)["text"] for found in map(json.loads, target.read_text().splitlines())}


def test_an_interrupted_batch_answers_only_what_is_left(
    llm: LLM, wish: BatchWish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(wish, MANY)
    seen: list[tuple[int, int]] = []

    def interrupt(done: int, count: int) -> None:
        seen.append((done, count))
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Batch(wish).run(llm, interrupt)
    assert seen == [(1, 7), (2, 7), (3, 7)]
    assert llm.engine.num_unfinished == 0
    assert not wish.target.exists()
    before = partial_of(wish.target).read_text()
    work = Batch(wish)
    assert work.num_left == 4
    assert work.run(llm) == Totals(num_ok=7, num_kept=3)
    assert wish.target.read_text().startswith(before)
    whole = BatchWish(source=wish.source, target=tmp_path / "whole.jsonl")
    Batch(whole).run(llm)
    assert texts(wish.target) == texts(whole.target)


def test_a_finished_batch_needs_no_model_and_a_grown_input_only_its_new_lines(llm: LLM, wish: BatchWish) -> None:
    write(wish, MANY[:3])
    Batch(wish).run(llm)
    before = wish.target.read_text()
    assert Batch(wish).run(None) == Totals(num_ok=3, num_kept=3)
    assert wish.target.read_text() == before
    write(wish, MANY)
    assert Batch(wish).run(llm) == Totals(num_ok=7, num_kept=3)
    assert wish.target.read_text().startswith(before)


def test_an_empty_input_has_an_empty_output(wish: BatchWish) -> None:
    wish.source.write_text("\n")
    assert Batch(wish).run(None) == Totals()
    assert wish.target.read_text() == ""


def test_a_step_that_fails_keeps_what_was_answered(llm: LLM, wish: BatchWish, monkeypatch: pytest.MonkeyPatch) -> None:
    write(wish, [("/v1/completions", {"prompt": {}}), *MANY])

    def sample_step(*_: object) -> None:
        raise ProtocolError("logits: got NaN")

    monkeypatch.setattr(SAMPLER, sample_step)
    with pytest.raises(ProtocolError, match="NaN"):
        Batch(wish).run(llm)
    assert len(partial_of(wish.target).read_text().splitlines()) == 1
    assert llm.engine.num_unfinished == 0


def test_usage_says_what_came_of_drafts_and_why_there_were_none(llm: LLM) -> None:
    found = []
    for reason, drafted in ((None, 7), ("images in the request", 0)):
        job = text_job(llm, {"prompt": [5, 6, 7], **SHORT})
        job.request.num_draft_tokens, job.request.num_accepted_tokens = drafted, drafted // 3
        job.request.undrafted_because = reason
        (answer,) = llm.as_finished([job.request])
        found.append(text_reply(job, answer, llm.tokenizer, "digest", {})["usage"]["completion_tokens_details"])
    assert found == [
        {"reasoning_tokens": 0, "accepted_prediction_tokens": 2, "rejected_prediction_tokens": 5},
        {"reasoning_tokens": 0, "undrafted_because": "images in the request"},
    ]
