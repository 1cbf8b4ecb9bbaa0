"""A right answer as the token ids that a model should produce.

    reasoning </think> content, two line ends and calls, EOS

as the codec renders an answered turn.  What lies between control tokens is encoded as one plain text.
spec: chat.md sections 2 and 4.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import deepseek_recipe as recipe

from flash41.chat.conversation import ChatCodec

DSML = recipe.SpecialToken.Dsml.default_str()
THINK_END = recipe.SpecialToken.ThinkingEnd.default_str()


def spelled(codec: ChatCodec, answer: Mapping[str, Any], eos: int) -> tuple[int, ...]:
    """Ids of an assistant message as on the wire, EOS included."""
    ids: list[int] = []
    if "reasoning_content" in answer:
        ids += [*codec.tokenizer.encode(answer["reasoning_content"]), _control(codec, THINK_END)]
    text: str = answer["content"]
    if answer.get("tool_calls"):
        text += "\n\n" + calls_text([call["function"] for call in answer["tool_calls"]])
    for number, part in enumerate(text.split(DSML)):
        ids += [_control(codec, DSML)] if number else []
        ids += codec.tokenizer.encode(part) if part else []
    return (*ids, eos)


def calls_text(calls: Sequence[Mapping[str, str]]) -> str:
    """Calls, each a name with arguments as JSON text, as an answer writes them."""
    lines = [f"<{DSML} calls>"]
    for call in calls:
        lines.append(f'<{DSML} invoke name="{call["name"]}">')
        for name, value in json.loads(call["arguments"]).items():
            is_text = isinstance(value, str)
            written = value if is_text else json.dumps(value, ensure_ascii=False)
            kind = "true" if is_text else "false"
            lines.append(f'<{DSML} parameter name="{name}" string="{kind}">{written}</{DSML} parameter>')
        lines.append(f"</{DSML} invoke>")
    return "\n".join([*lines, f"</{DSML} calls>"])


def _control(codec: ChatCodec, spelling: str) -> int:
    token_id = codec.tokenizer.id_of(spelling)
    assert token_id is not None, f"the codec was built without {spelling!r}"
    return token_id
