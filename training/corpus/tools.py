"""Tool calls: one or two tools are declared, the question needs one of them, or its result is there already."""

import json
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from flash41.chat.conversation import Message, ToolCall
from training.corpus.sample import Sample, user
from training.corpus.words import NAMES, PLACES, THINGS

WEATHER = ("sunny", "rainy", "windy", "foggy")


def sample(rng: Random, size: int) -> Sample:  # noqa: ARG001
    """A call, or the answer that its result allows."""
    asked, tool, arguments, result, answer = rng.choice((_weather, _find, _add))(rng)
    others = [other for other in (WEATHER_TOOL, FIND_TOOL, ADD_TOOL) if other is not tool]
    tools = [tool, rng.choice(others)] if rng.random() < 0.5 else [tool]
    rng.shuffle(tools)
    call = ToolCall(id="call_1", name=tool["function"]["name"], arguments=json.dumps(arguments))
    thought = f"I use {call.name}." if rng.random() < 0.3 else None
    first = Sample(
        family="tools", messages=(user(asked),), answer="", calls=(call,), tools=tuple(tools), reasoning=thought
    )
    if rng.random() < 0.5:
        return first
    said = Message(role="assistant", content="", tool_calls=(call,), reasoning=thought)
    told = Message(role="tool", content=result, tool_call_id=call.id)
    after = None if thought is None else "I have the result."
    return replace(first, messages=(user(asked), said, told), answer=answer, calls=(), reasoning=after)


Question = tuple[str, Mapping[str, Any], dict[str, Any], str, str]


def _weather(rng: Random) -> Question:
    place, found = rng.choice(PLACES), rng.choice(WEATHER)
    answer = f"It is {found} at the {place}."
    return f"How is the weather at the {place}?", WEATHER_TOOL, {"place": place}, found, answer


def _find(rng: Random) -> Question:
    name, thing, place = rng.choice(NAMES), rng.choice(THINGS), rng.choice(PLACES)
    arguments = {"owner": name, "thing": thing}
    return f"Find the {thing} of {name}.", FIND_TOOL, arguments, place, f"The {thing} of {name} is in the {place}."


def _add(rng: Random) -> Question:
    a, b = rng.randint(100, 999), rng.randint(100, 999)
    return f"Add {a} and {b} for me.", ADD_TOOL, {"a": a, "b": b}, f"{a + b}", f"It is {a + b}."


def _tool(name: str, description: str, **kinds: str) -> Mapping[str, Any]:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": list(kinds)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER_TOOL = _tool("weather", "Tells the weather.", place="string")
FIND_TOOL = _tool("find", "Finds a thing.", owner="string", thing="string")
ADD_TOOL = _tool("add", "Adds numbers.", a="integer", b="integer")
