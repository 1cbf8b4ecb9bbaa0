"""Edits of a rendered prompt, for what the official codec does not render.

A rendering is a text and the spans of its control tokens; an edit returns both.  Places are found by control spans,
never by text, so nothing that is written in a message can move an edit.

    effort    the number behind BOS and System replaced
    tasks     the header and reasoning of the answer to a quick instruction replaced by the task's token
    context   everything that earlier, already processed messages rendered cut off, BOS included

spec: chat.md sections 2, 3, 6 and 7.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flash41.errors import RequestError, complaint

TASKS = ("action", "query", "authority", "domain", "title", "read_url")
"""Quick instructions; each has a control token of its name."""

_EFFORT_TEXT = re.compile(r"Reasoning Effort: (\d+) \(range 1-100,")
_EOS = "<｜end▁of▁sentence｜>"
_ASSISTANT = "<｜Assistant｜>"
_THINK = "<think>"
_END_THINK = "</think>"

Spans = Sequence[tuple[int, int]]
Rendered = tuple[str, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A quick instruction."""

    name: str
    num_answers: int
    """Assistant messages in front of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where the part of a rendering ends that was processed before."""

    num_answers: int
    """Answers in it."""
    in_answer: bool
    """Whether it ends with the header (or the task's token) of the next answer; else with the end of its last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What to change in a rendering."""

    effort: int | None = None
    """A number that replaces the codec's own; inert in chat mode."""
    tasks: tuple[Task, ...] = ()
    """Quick instructions, ascending."""
    is_answered_task: bool = False
    """Whether the answer to come, or to be continued, is that to a quick instruction: it has no reasoning."""
    context: Context | None = None
    """The earlier part to cut off."""


def edited(text: str, spans: Spans, edits: Edits, *, thinking: bool) -> Rendered:
    """The rendering with all edits; raises RequestError if the context leaves nothing."""
    found = text, list(spans)
    if edits.effort is not None and thinking:
        found = with_effort(*found, edits.effort)
    if edits.tasks:
        found = with_tasks(*found, edits.tasks, thinking=thinking)
    if edits.context is not None:
        found = without_context(*found, edits.context)
        if not found[0]:
            raise RequestError(complaint("messages", "nothing behind the context", "some text to begin the prompt"))
    return found


def with_effort(text: str, spans: Spans, effort: int) -> Rendered:
    """The number right behind the first two control tokens (BOS, System) replaced, later spans moved along."""
    found = _EFFORT_TEXT.match(text, spans[1][1])
    assert found is not None, f"no effort in a thinking prompt: {text[:200]!r}"
    start, end = found.span(1)
    moved = len(str(effort)) - (end - start)
    changed = text[:start] + str(effort) + text[end:]
    return changed, [(a, b) if b <= start else (a + moved, b + moved) for a, b in spans]


def task_token(task: str) -> str:
    """Spelling of the control token of a quick instruction."""
    return f"<｜{task}｜>"


def with_tasks(text: str, spans: Spans, tasks: Sequence[Task], *, thinking: bool) -> Rendered:
    """Each task's token behind its user's text, in place of the assistant's header and reasoning; one pass.

    An action keeps a header, with the mark of the mode, in front of its token.
    """
    left = {task.num_answers: task for task in tasks}
    pieces: list[str] = []
    placed: list[tuple[int, int]] = []
    num_answers = copied = moved = k = 0
    while k < len(spans):
        start, end = spans[k]
        spelled = text[start:end]
        task = left.pop(num_answers, None) if spelled == _ASSISTANT else None
        k += 1
        if task is None:
            placed.append((start + moved, end + moved))
            num_answers += spelled == _EOS
            continue
        if _spelled(text, spans[k]) == _THINK:
            k += 1  # reasoning ends at its mark; reasoning without an end is the end of the prompt
        end = spans[k][1] if k < len(spans) else len(text)
        k += 1
        pieces.append(text[copied:start])
        copied, place = end, start + moved
        for token in _tokens_of(task, thinking=thinking):
            pieces.append(token)
            placed.append((place, place + len(token)))
            place += len(token)
        moved = place - end
    assert not left, f"no header for {left}"
    return "".join([*pieces, text[copied:]]), placed


def _tokens_of(task: Task, *, thinking: bool) -> tuple[str, ...]:
    if task.name != "action":
        return (task_token(task.name),)
    return _ASSISTANT, _THINK if thinking else _END_THINK, task_token(task.name)


def without_context(text: str, spans: Spans, context: Context) -> Rendered:
    """The rendering from the end of the context on."""
    first = _behind_answer(text, spans, context.num_answers)
    if context.in_answer:
        first = _behind_header(text, spans, first)
    start = spans[first - 1][1]
    return text[start:], [(a - start, b - start) for a, b in spans[first:]]


def _behind_header(text: str, spans: Spans, first: int) -> int:
    """Index of the first span behind the next header, or behind the task's token in its place."""
    turns = (_ASSISTANT, *map(task_token, TASKS))
    header = next(k for k in range(first, len(spans)) if _spelled(text, spans[k]) in turns)
    if _spelled(text, spans[header]) == _ASSISTANT:
        header += 1  # the mark of the mode, and behind it perhaps an action
        if header + 1 < len(spans) and _spelled(text, spans[header + 1]) == task_token("action"):
            header += 1
    return header + 1


def _behind_answer(text: str, spans: Spans, num_answers: int) -> int:
    """Index of the first span behind so many answers."""
    ends = [k for k, span in enumerate(spans) if _spelled(text, span) == _EOS]
    return ends[num_answers - 1] + 1 if num_answers else 0


def _spelled(text: str, span: tuple[int, int]) -> str:
    return text[slice(*span)]
