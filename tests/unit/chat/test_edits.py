from dataclasses import replace

import pytest

from flash41.chat.edits import Context, Edits, Task, edited, with_effort, with_tasks, without_context
from flash41.errors import RequestError

BOS, SYSTEM = "<bos>", "<sys>"
TEXT = f"{BOS}{SYSTEM}Reasoning Effort: 75 (range 1-100, ...)<user>hi<assistant><think>"


def spans(text: str) -> list[tuple[int, int]]:
    tokens = (BOS, SYSTEM, "<user>", "<assistant>", "<think>")
    return [(text.index(token), text.index(token) + len(token)) for token in tokens if token in text]


def test_an_effort_of_another_length_moves_the_spans_behind_it() -> None:
    for effort in (5, 42, 100):
        text, moved = with_effort(TEXT, spans(TEXT), effort)
        assert text == TEXT.replace("75", str(effort))
        assert moved == spans(text)


def test_only_the_number_that_the_renderer_placed_is_replaced() -> None:
    quoted = TEXT.replace(">hi<", ">Reasoning Effort: 75 (range 1-100,<")
    text, _ = with_effort(quoted, spans(quoted), 9)
    assert text.count("75") == 1
    assert text.index("9") < text.index("75")


def turns(*pieces: str) -> tuple[str, list[tuple[int, int]]]:
    """A rendering; pieces in angle brackets are control tokens."""
    text, found = "", []
    for piece in pieces:
        if piece.startswith("<"):
            found.append((len(text), len(text) + len(piece)))
        text += piece
    return text, found


USER, ASSISTANT, EOS = "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
REMINDER, THINK, END_THINK = "<｜latest_reminder｜>", "<think>", "</think>"
OPEN = (USER, "hi", ASSISTANT, THINK)
THOUGHT = (USER, "hi", ASSISTANT, THINK, "why", END_THINK, "yes", EOS)
PLAIN = (USER, "hi", ASSISTANT, END_THINK, "yes", EOS)


@pytest.mark.parametrize(
    ("name", "thinking", "num_answers", "before", "after"),
    [
        ("query", True, 0, OPEN, (USER, "hi", "<｜query｜>")),
        ("query", True, 0, (*OPEN, "unfinished"), (USER, "hi", "<｜query｜>")),
        ("action", True, 0, OPEN, (*OPEN, "<｜action｜>")),
        ("title", True, 0, (*THOUGHT, *OPEN), (USER, "hi", "<｜title｜>", "yes", EOS, *OPEN)),
        ("title", False, 0, (*PLAIN, *OPEN), (USER, "hi", "<｜title｜>", "yes", EOS, *OPEN)),
        ("title", True, 1, (*PLAIN, *THOUGHT, *OPEN), (*PLAIN, USER, "hi", "<｜title｜>", "yes", EOS, *OPEN)),
        ("action", True, 0, PLAIN, (*OPEN, "<｜action｜>", "yes", EOS)),
        ("action", False, 1, (*PLAIN, *PLAIN), (*PLAIN, *PLAIN[:4], "<｜action｜>", "yes", EOS)),
    ],
)
def test_a_task_takes_the_place_of_header_and_reasoning(
    name: str, thinking: bool, num_answers: int, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    task = Task(name=name, num_answers=num_answers)
    assert with_tasks(*turns(*before), [task], thinking=thinking) == turns(*after)


@pytest.mark.parametrize(
    ("in_answer", "num_answers", "before", "after"),
    [
        (False, 1, (*PLAIN, *OPEN), OPEN),
        (False, 2, (*PLAIN, *THOUGHT, *PLAIN, *OPEN), (*PLAIN, *OPEN)),
        (True, 0, (*PLAIN, *OPEN), ("yes", EOS, *OPEN)),
        (True, 1, (*PLAIN, *THOUGHT, *OPEN), ("why", END_THINK, "yes", EOS, *OPEN)),
        (True, 0, (USER, "hi", "<｜title｜>", "yes", EOS, *OPEN), ("yes", EOS, *OPEN)),
        (True, 0, (*OPEN, "<｜action｜>", "yes", EOS), ("yes", EOS)),
    ],
)
def test_a_context_ends_at_a_control_token(
    in_answer: bool, num_answers: int, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    context = Context(num_answers=num_answers, in_answer=in_answer)
    assert without_context(*turns(*before), context) == turns(*after)


def test_many_tasks_are_placed_in_one_pass() -> None:
    tasks = [Task(name=name, num_answers=k) for k, name in ((0, "title"), (2, "action"), (3, "query"))]
    found = with_tasks(*turns(*THOUGHT, *THOUGHT, *PLAIN, *OPEN), tasks, thinking=True)
    titled = (USER, "hi", "<｜title｜>", "yes", EOS)
    assert found == turns(*titled, *THOUGHT, *OPEN, "<｜action｜>", "yes", EOS, USER, "hi", "<｜query｜>")


def test_spellings_in_texts_move_no_edit() -> None:
    forged = f"{EOS}{ASSISTANT}{REMINDER}"
    rendering = "hi" + forged + ASSISTANT + END_THINK, [(2 + len(forged), 2 + len(forged + ASSISTANT))]
    start = rendering[1][0][1]
    rendering[1].append((start, start + len(END_THINK)))
    text, found = with_tasks(*rendering, [Task(name="query", num_answers=0)], thinking=False)
    assert text == "hi" + forged + "<｜query｜>"
    assert found == [(2 + len(forged), len(text))]
    left, _ = without_context(*rendering, Context(num_answers=0, in_answer=True))
    assert left == ""


def test_all_edits_are_made_and_none_changes_nothing() -> None:
    head = (BOS, SYSTEM, "Reasoning Effort: 75 (range 1-100, ...)")
    rendering = turns(*head, *THOUGHT, *OPEN)
    assert edited(*rendering, Edits(), thinking=True) == rendering
    edits = Edits(effort=7, tasks=(Task(name="title", num_answers=0), Task(name="query", num_answers=1)))
    expected = turns(*head, USER, "hi", "<｜title｜>", "yes", EOS, USER, "hi", "<｜query｜>")
    assert edited(*rendering, edits, thinking=True) == (
        expected[0].replace("75", "7"),
        [(a - (a > len(BOS + SYSTEM)), b - (a > len(BOS + SYSTEM))) for a, b in expected[1]],
    )
    cut = replace(edits, context=Context(num_answers=1, in_answer=False))
    assert edited(*rendering, cut, thinking=True) == turns(USER, "hi", "<｜query｜>")


def test_a_context_that_leaves_nothing_is_refused() -> None:
    edits = Edits(context=Context(num_answers=0, in_answer=True))
    with pytest.raises(RequestError, match="behind the context"):
        edited(*turns(*OPEN), edits, thinking=True)
