"""Edits of a rendered prompt, for what the official codec does not render.

A rendering is a text and the spans of its control tokens; an edit returns both.  spec: chat.md sections 2, 3 and 6.
"""

import re
from collections.abc import Sequence

_EFFORT_TEXT = re.compile(r"Reasoning Effort: (\d+) \(range 1-100,")

Spans = Sequence[tuple[int, int]]


def with_effort(text: str, spans: Spans, effort: int) -> tuple[str, list[tuple[int, int]]]:
    """The number right behind the first two control tokens (BOS, System) replaced, later spans moved along."""
    found = _EFFORT_TEXT.match(text, spans[1][1])
    assert found is not None, f"no effort in a thinking prompt: {text[:200]!r}"
    start, end = found.span(1)
    moved = len(str(effort)) - (end - start)
    edited = text[:start] + str(effort) + text[end:]
    return edited, [(a, b) if b <= start else (a + moved, b + moved) for a, b in spans]


def task_token(task: str) -> str:
    """Spelling of the control token of a quick instruction."""
    return f"<｜{task}｜>"


def with_task(text: str, spans: Spans, token: str) -> tuple[str, list[tuple[int, int]]]:
    """The task's token behind the last user text, in place of the assistant's header; an action keeps the header."""
    kept = list(spans) if token == task_token("action") else list(spans)[:-2]
    end = len(text) if len(kept) == len(spans) else spans[-2][0]
    return text[:end] + token, [*kept, (end, end + len(token))]
