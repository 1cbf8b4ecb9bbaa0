"""What a Chat Completions body says about messages that the official codec reads over: quick instructions and context.

`task` on a user message makes it a quick instruction: a token takes the place of the header, and the answer is a class,
a title or an action, without reasoning.  It stands on the last message, or on one that an assistant's answer follows.

`context` is a list of messages in front of `messages` that were processed before.  Both are checked and rendered as one
conversation, and the prompt is what belongs to `messages`:

    context ends with            messages begin with      the prompt begins
    an answer                    anything                 behind the answer's end token
    anything else                an answer                behind the answer's header, or the task's token
    anything else                anything but a result    at the first message, which opens a turn of its own

So BOS, effort, tools and response format, which belong to the first message of all, are not in the prompt.  Results of
calls are one turn and cannot be cut apart.

spec: chat.md sections 6 and 7.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flash41.chat.edits import TASKS, Context, Edits, Task
from flash41.errors import RequestError, complaint


def edits_of(body: Mapping[str, Any]) -> tuple[dict[str, Any], Edits]:
    """The body with context and messages in one list, and how to edit its rendering; raises RequestError."""
    left = {key: value for key, value in body.items() if key != "context"}
    context, messages = _context(body), _messages(body)
    tasks, is_answered = _tasks(context, messages)
    if is_answered and body.get("tool_choice") not in (None, "auto", "none"):
        raise RequestError(
            complaint("tool_choice", "a call that must be made", "auto or none", "the answer is a task's")
        )
    if not context:
        return left, Edits(tasks=tasks, is_answered_task=is_answered)
    num_answers = sum(_get(message, "role") == "assistant" for message in context)
    ends, begins = _get(context[-1], "role"), _get(messages[0], "role")
    separator = []
    if "assistant" not in (ends, begins):
        # An answer of no words keeps the two from being merged into one turn; the rendering is cut behind it.
        separator = [{"role": "assistant", "content": ""}]
        tasks = tuple(replace(task, num_answers=task.num_answers + (task.num_answers >= num_answers)) for task in tasks)
    cut = Context(num_answers=num_answers + len(separator), in_answer=begins == "assistant" != ends)
    left["messages"] = [*context, *separator, *messages]
    return left, Edits(tasks=tasks, is_answered_task=is_answered, context=cut)


def _context(body: Mapping[str, Any]) -> list[Any]:
    """The context, empty where there is none; raises RequestError unless messages can be parted from it."""
    context, messages = body.get("context"), _messages(body)
    if context is None or context == []:
        return []
    if not isinstance(context, list):
        raise RequestError(complaint("context", type(context).__name__, "a list of messages"))
    if not messages:
        raise RequestError(complaint("messages", "none behind a context", "a list of messages"))
    last = _get(context[-1], "role")
    if last != "assistant" and _get(messages[0], "role") == "tool":
        expected = "to end with the assistant message whose calls are answered"
        raise RequestError(complaint("context", f"a last message of {last!r}", expected))
    return context


def _tasks(context: list[Any], messages: list[Any]) -> tuple[tuple[Task, ...], bool]:
    """Quick instructions, and whether the answer to come is to one; raises RequestError."""
    everything = [*context, *messages]
    given = [k for k, message in enumerate(everything) if _get(message, "task") is not None]
    roles = [_get(message, "role") for message in everything]
    wrong = [k for k in given if roles[k] != "user" or roles[k + 1 : k + 2] not in ([], ["assistant"])]
    if wrong:
        places = [f"context[{k}]" if k < len(context) else f"messages[{k - len(context)}]" for k in wrong]
        expected = "messages from the user, each the last one or right before an assistant message"
        raise RequestError(complaint("task on", places, expected))
    unknown = [everything[k]["task"] for k in given if everything[k]["task"] not in TASKS]
    if unknown:
        raise RequestError(complaint("task", unknown, ", ".join(TASKS)))
    num_answers = list(itertools.accumulate((role == "assistant" for role in roles), initial=0))
    tasks = tuple(Task(name=everything[k]["task"], num_answers=num_answers[k]) for k in given)
    last = len(everything) - 1
    continues = last >= 0 and roles[last] == "assistant" and _get(everything[last], "prefix") is True
    return tasks, (last - 1 if continues else last) in given


def _messages(body: Mapping[str, Any]) -> list[Any]:
    """The messages; what is no list is empty here, and the codec's to refuse."""
    messages = body.get("messages")
    return messages if isinstance(messages, list) else []


def _get(message: Any, key: str) -> Any:
    return message.get(key) if isinstance(message, dict) else None
