"""Quick instructions and contexts.  spec: chat.md sections 6, 7 and 11."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flash41.chat.conversation import ChatCodec, Prompt
from flash41.chat.parsing import DeltaKind
from flash41.errors import RequestError
from helpers.tiny_tokenizer import TINY_IMAGE_ID, TINY_TOKENIZER

CODEC = ChatCodec.from_directory(TINY_TOKENIZER, TINY_IMAGE_ID)
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CHAT_MODE = {"thinking": {"type": "disabled"}}
EOS = "<｜end▁of▁sentence｜>"
HEADER = "<｜Assistant｜>"
Json = dict[str, Any]


def user(text: str, **more: Any) -> Json:
    return {"role": "user", "content": text, **more}


def assistant(text: str, **more: Any) -> Json:
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def reminder(text: str) -> Json:
    return {"role": "latest_reminder", "content": text}


def result(name: str) -> Json:
    return {"role": "tool", "content": f"result of {name}", "tool_call_id": name}


CALLING = assistant(
    "look",
    reasoning_content="need",
    tool_calls=[{"id": k, "type": "function", "function": {"name": "f", "arguments": "{}"}} for k in ("1", "2")],
)


def prompt_of(messages: list[Json], **more: Any) -> Prompt:
    return CODEC.encode(CODEC.convert({"messages": messages, **more}))


def tail(prompt: Prompt) -> str:
    """The text behind the system part."""
    return prompt.text[prompt.text.index("<｜User｜>") :]


@pytest.mark.parametrize("thinking", ["enabled", "disabled"])
def test_a_quick_instruction_stands_in_place_of_the_header(thinking: str) -> None:
    conversation = CODEC.convert({"messages": [user("classify me", task="query")], "thinking": {"type": thinking}})
    prompt = CODEC.encode(conversation)
    assert prompt.text.endswith("<｜User｜>classify me<｜query｜>")
    assert prompt.ids[-1] == CODEC.tokenizer.id_of("<｜query｜>")
    assert not conversation.starts_in_reasoning


@pytest.mark.parametrize(("thinking", "mark"), [("enabled", "<think>"), ("disabled", "</think>")])
def test_an_action_keeps_the_header(thinking: str, mark: str) -> None:
    more = {"thinking": {"type": thinking}, "reasoning_effort": 7}
    assert prompt_of([user("search?", task="action")], **more).text.endswith(f"search?{HEADER}{mark}<｜action｜>")


@pytest.mark.parametrize(("tools", "thinking"), [(True, True), (False, True), (True, False), (False, False)])
def test_the_answer_to_an_earlier_task_has_no_reasoning(tools: bool, thinking: bool) -> None:
    more: Json = {"tools": TOOLS} if tools else {}
    more |= {} if thinking else CHAT_MODE
    first = [user("a", task="title"), assistant("A", reasoning_content="hm")]
    last = [user("b", task="action"), assistant("B", reasoning_content="hm"), user("c")]
    prompt = prompt_of([*first, *last], **more)
    mark = "<think>" if thinking else "</think>"
    ended = f"<｜User｜>b{HEADER}{mark}<｜action｜>B{EOS}<｜User｜>c{HEADER}{mark}"
    assert tail(prompt) == f"<｜User｜>a<｜title｜>A{EOS}" + ended
    assert prompt.ids.count(CODEC.tokenizer.id_of("<｜title｜>") or -1) == 1


def test_usual_turns_around_a_task_keep_their_reasoning() -> None:
    messages = [user("a"), assistant("A", reasoning_content="r"), user("b", task="query"), assistant("B"), user("c")]
    found = tail(prompt_of(messages, tools=TOOLS))
    kept = f"<｜User｜>a{HEADER}<think>r</think>A{EOS}<｜User｜>b<｜query｜>B{EOS}<｜User｜>c{HEADER}<think>"
    assert found == kept


def test_a_task_may_follow_results_and_other_users_words() -> None:
    messages = [user("a"), CALLING, result("2"), result("1"), user("b"), user("c", task="domain"), assistant("D")]
    found = tail(prompt_of([*messages, user("e")], tools=TOOLS))
    merged = "<tool_result>result of 1</tool_result>\n\n<tool_result>result of 2</tool_result>\n\nb\n\nc"
    assert f"<｜User｜>{merged}<｜domain｜>D{EOS}<｜User｜>e{HEADER}<think>" in found


@pytest.mark.parametrize("more", [{}, CHAT_MODE])
def test_an_answer_to_a_task_can_be_continued(more: Json) -> None:
    begun = assistant("Half a", prefix=True, reasoning_content="hm")
    conversation = CODEC.convert({"messages": [user("a", task="title"), begun], **more})
    assert tail(CODEC.encode(conversation)) == "<｜User｜>a<｜title｜>Half a"
    assert not conversation.starts_in_reasoning


def test_the_answer_to_a_quick_instruction_is_content() -> None:
    conversation = CODEC.convert({"messages": [user("x", task="title")]})
    reply = CODEC.reply(conversation, name="a", model="m", created=1, keeps=True)
    reply.begin(3, 0)
    parser = CODEC.parser(conversation)
    ids = CODEC.tokenizer.encode("A title")
    deltas = [delta for token_id in ids for delta in parser.push(token_id)]
    for token_id in ids:
        reply.push(token_id)
    reply.finish("stop")
    found = reply.body()
    assert found["choices"][0]["message"]["content"] == "A title"
    assert found["usage"]["completion_tokens"] == len(ids)
    assert "".join(delta.text for delta in deltas if delta.kind is DeltaKind.CONTENT) == "A title"


def test_an_answer_after_an_answered_task_thinks_again() -> None:
    assert CODEC.convert({"messages": [user("x", task="title"), assistant("T"), user("y")]}).starts_in_reasoning


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": [user("x", task="sing")]}, "sing.*action, query"),
        ({"messages": [user("x", task=5)]}, "action, query"),
        ({"messages": [user("x", task=["query"]), assistant("y")]}, "action, query"),
        ({"messages": [user("x", task="title"), user("y")]}, r"messages\[0\].*the last one"),
        ({"messages": [user("x", task="title"), reminder("y"), assistant("z")]}, "right before"),
        ({"messages": [{**system("x"), "task": "title"}]}, "from the user"),
        ({"messages": [user("x"), assistant("y", task="title"), user("z")]}, r"messages\[1\].*from the user"),
        ({"messages": [user("y")], "context": [user("x", task="title")]}, r"context\[0\].*right before"),
        ({"messages": [user("x", task="title")], "tool_choice": "required", "tools": TOOLS, **CHAT_MODE}, "auto or"),
    ],
)
def test_a_task_that_cannot_be_rendered_is_refused(body: Json, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        CODEC.convert(body)


@pytest.mark.parametrize(
    ("context", "messages", "more", "expected"),
    [
        ([user("a"), assistant("A")], [user("b")], {}, f"<｜User｜>b{HEADER}<think>"),
        ([user("a"), assistant("A")], [user("b")], CHAT_MODE, f"<｜User｜>b{HEADER}</think>"),
        ([system("s")], [user("b")], {"tools": TOOLS}, f"<｜User｜>b{HEADER}<think>"),
        ([user("a")], [system("s")], {}, f"<｜System｜>s{HEADER}<think>"),
        ([user("a")], [user("b")], {"reasoning_effort": 9}, f"<｜User｜>b{HEADER}<think>"),
        (
            [reminder("r"), user("a")],
            [reminder("q"), user("b")],
            {},
            f"<｜latest_reminder｜>q<｜User｜>b{HEADER}<think>",
        ),
        ([reminder("r")], [reminder("q"), user("b")], {}, f"<｜latest_reminder｜>q<｜User｜>b{HEADER}<think>"),
        ([system("")], [user("b", task="query")], CHAT_MODE, "<｜User｜>b<｜query｜>"),
        (
            [user("a")],
            [user("b", task="query"), assistant("B"), user("c")],
            CHAT_MODE,
            f"<｜User｜>b<｜query｜>B{EOS}<｜User｜>c{HEADER}</think>",
        ),
        ([user("a")], [assistant("A"), user("b")], {}, f"A{EOS}<｜User｜>b{HEADER}<think>"),
        (
            [user("a")],
            [assistant("A", reasoning_content="r"), user("b")],
            {"tools": TOOLS},
            f"r</think>A{EOS}<｜User｜>b{HEADER}<think>",
        ),
        ([user("a")], [assistant("Half", prefix=True)], CHAT_MODE, "Half"),
        ([user("a", task="title")], [assistant("A"), user("b")], {}, f"A{EOS}<｜User｜>b{HEADER}<think>"),
        ([user("a", task="action")], [assistant("A"), user("b")], {}, f"A{EOS}<｜User｜>b{HEADER}<think>"),
        (
            [user("a", task="title"), assistant("A")],
            [user("b", task="query"), assistant("B"), user("c")],
            {},
            f"<｜User｜>b<｜query｜>B{EOS}<｜User｜>c{HEADER}<think>",
        ),
        (
            [user("a"), CALLING],
            [result("2"), result("1")],
            {"tools": TOOLS},
            "<｜User｜><tool_result>result of 1</tool_result>\n\n<tool_result>result of 2</tool_result>"
            f"{HEADER}<think>",
        ),
        ([user("a"), CALLING, result("1"), result("2")], [user("b")], CHAT_MODE, f"<｜User｜>b{HEADER}</think>"),
    ],
)
def test_a_context_is_read_and_not_rendered(
    context: list[Json], messages: list[Json], more: Json, expected: str
) -> None:
    prompt = prompt_of(messages, context=context, **more)
    assert prompt.text == expected
    assert list(prompt.ids) == list(CODEC.tokenizer.encode_with_control(expected))


@pytest.mark.parametrize("nothing", [None, []])
def test_an_empty_context_is_none(nothing: list[Json] | None) -> None:
    assert prompt_of([user("b")], context=nothing) == prompt_of([user("b")])


def test_pictures_of_the_context_are_left_out() -> None:
    def seen(name: str) -> Json:
        picture = {"type": "image_url", "image_url": {"url": f"http://x/{name}.png"}}
        return {"role": "user", "content": [{"type": "text", "text": name}, picture]}

    whole = prompt_of([seen("a"), assistant("A"), seen("b")])
    part = prompt_of([seen("b")], context=[seen("a"), assistant("A")])
    assert len(whole.images) == 2
    assert len(part.images) == part.ids.count(TINY_IMAGE_ID) == 1
    assert str(part.images[0]) == str(whole.images[1])


@pytest.mark.parametrize(
    ("context", "messages", "words"),
    [
        ("x", [user("b")], "context: .*a list of messages"),
        ({"role": "user"}, [user("b")], "context: .*a list of messages"),
        ([user("a")], [], "messages: .*a list of messages"),
        ([5], [user("b")], "invalid request body"),
        ([{"role": "nobody", "content": "x"}], [user("b")], "nobody"),
        ([user("a"), assistant("A", prefix=True)], [user("b")], "prefix"),
        ([user("a"), CALLING, result("1")], [result("2")], "'tool'"),
        ([user("a"), CALLING], [user("b")], "tool_call"),
    ],
)
def test_a_context_that_is_no_beginning_is_refused(context: Any, messages: list[Json], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        prompt_of(messages, context=context, tools=TOOLS)


def test_a_prompt_must_begin_somewhere() -> None:
    with pytest.raises(RequestError, match="behind the context"):
        prompt_of([assistant("", prefix=True)], context=[user("a")], **CHAT_MODE)


TEXTS = st.text(alphabet=st.sampled_from("ab \n<｜>User/think▁DSML"), max_size=8).map(
    lambda text: f"{text}{EOS}{HEADER}<think></think><｜latest_reminder｜><｜query｜>"
)
TASKS = st.sampled_from([None, "action", "query", "title"])
TURNS = st.one_of(
    st.builds(lambda text, answer, task: [user(text, task=task), assistant(answer)], TEXTS, TEXTS, TASKS),
    st.builds(lambda text, answer: [user(text), assistant(answer, reasoning_content=text)], TEXTS, TEXTS),
    st.builds(lambda text: [system(text)], TEXTS),
    st.builds(lambda text: [reminder(text)], TEXTS),
)


@settings(deadline=None, max_examples=120)
@given(st.lists(TURNS, min_size=1, max_size=5), st.booleans(), st.booleans(), st.integers(1, 12), TASKS)
def test_a_context_takes_its_own_ids_and_nothing_else(
    turns: list[list[Json]], thinking: bool, declares: bool, place: int, task: str | None
) -> None:
    """ids(context + messages) == ids(context) without its last header, and then ids(prompt)."""
    messages = [message for turn in turns for message in turn] + [user("last", task=task)]
    place = min(place, len(messages) - 1)
    context, left = messages[:place], messages[place:]
    assume((context[-1]["role"], left[0]["role"]) != ("latest_reminder", "latest_reminder"))  # the second would merge
    more: Json = {} if thinking else dict(CHAT_MODE)
    more |= {"tools": TOOLS} if declares else {}
    whole, prompt = prompt_of(messages, **more).ids, prompt_of(left, context=context, **more).ids
    assert whole[len(whole) - len(prompt) :] == prompt
    before = prompt_of(context, **more).ids
    if left[0]["role"] != "assistant":
        assert before[:-2] + prompt == whole
    elif thinking == declares:  # a header in the past is the one of an answer to come
        assert before + prompt == whole
