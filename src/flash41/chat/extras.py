"""What a body may say besides what the official codec understands, in any protocol.

- An effort as a number from 1 to 100; the codec knows levels only.
- That an answer may hold one call only; the codec reads over it.
- In Chat Completions, quick instructions (`task`) and messages that were processed before (`context`), which
  `earlier.py` reads.  In other protocols a context is refused.
- In Messages, that some tool must be called; the codec takes it for a wish.  With one tool it is that tool; a choice
  among several cannot be enforced there, and is refused.

spec: chat.md sections 3, 4, 6 and 7.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flash41.chat.earlier import edits_of
from flash41.chat.edits import Edits
from flash41.chat.protocols import Protocol
from flash41.errors import RequestError, complaint

EFFORT_PLACES = {
    Protocol.CHAT: ("reasoning_effort",),
    Protocol.RESPONSES: ("reasoning", "effort"),
    Protocol.MESSAGES: ("output_config", "effort"),
}
"""Where each protocol says how hard to think."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """The extras of one body."""

    parallel_tool_calls: bool
    """Whether an answer may hold several calls."""
    edits: Edits
    """What to change in the rendering of the body that is left."""


def split(body: Mapping[str, Any], protocol: Protocol) -> tuple[dict[str, Any], Extras]:
    """The body as the codec takes it, and the extras; raises RequestError for those that are wrong."""
    left, effort = _without_number(dict(body), protocol)
    parallel = _parallel(left, protocol)
    if protocol is Protocol.CHAT:
        left.pop("parallel_tool_calls", None)
    if protocol is Protocol.MESSAGES:
        left = _with_named_tool(left)
    if protocol is not Protocol.CHAT:
        if left.get("context") is not None:
            raise RequestError(complaint("context", "a value", "none", "only Chat Completions take a context"))
        return left, Extras(parallel_tool_calls=parallel, edits=Edits(effort=effort))
    left, edits = edits_of(left)
    return left, Extras(parallel_tool_calls=parallel, edits=replace(edits, effort=effort))


def _parallel(body: Mapping[str, Any], protocol: Protocol) -> bool:
    if protocol is Protocol.MESSAGES:
        choice = body.get("tool_choice")
        return not (isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True)
    parallel = body.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise RequestError(complaint("parallel_tool_calls", parallel, "true or false"))
    return parallel is not False


def _with_named_tool(body: dict[str, Any]) -> dict[str, Any]:
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not isinstance(choice, dict) or choice.get("type") != "any":
        return body
    if not isinstance(tools, list) or len(tools) != 1 or not isinstance(tools[0], dict):
        count = len(tools) if isinstance(tools, list) else 0
        raise RequestError(complaint("tool_choice any: tools", count, "exactly one", "name the tool instead"))
    return {**body, "tool_choice": {**choice, "type": "tool", "name": tools[0].get("name")}}


def _without_number(body: dict[str, Any], protocol: Protocol) -> tuple[dict[str, Any], int | None]:
    path = EFFORT_PLACES[protocol]
    holder: Any = body
    for key in path[:-1]:
        holder = holder.get(key)
        if not isinstance(holder, dict):
            return body, None
    effort = holder.get(path[-1])
    if effort is None or isinstance(effort, str):
        return body, None
    if isinstance(effort, bool) or not isinstance(effort, int) or not 1 <= effort <= 100:
        raise RequestError(complaint("reasoning_effort", effort, "low, high, max or an integer from 1 to 100"))
    left = {key: value for key, value in holder.items() if key != path[-1]}
    return (left if len(path) == 1 else {**body, path[0]: left}), effort
