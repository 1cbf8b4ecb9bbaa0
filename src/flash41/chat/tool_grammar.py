"""The grammar of tool calls, from the tools that may be called.

    <D calls>
    <D invoke name="f">
    <D parameter name="x" string="true">raw text</D parameter>
    <D parameter name="n" string="false">{"a": 1}</D parameter>
    </D invoke>
    </D calls>

D is one control token.  Declared parameters come in their order, optional ones or not; then others, where the schema
says `additionalProperties`.  Strings are raw, everything else is JSON.  Lines are joined by single newlines, which
stand alone in the grammar: the lexer takes the longest match, so no literal may begin another that could follow.

spec: chat.md section 4.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flash41.chat.grammar import Grammars, json_rule, literal
from flash41.chat.parameters import Parameter, parameters_of
from flash41.chat.raw_strings import END

LARGEST_NUM_TOOLS = 128
TRUE = '" string="true">'
FALSE = '" string="false">'


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A tool as an answer may call it."""

    name: str
    parameters: Any
    """JSON Schema of the arguments."""
    free: bool
    """Whether any arguments will do."""


FREE_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": True}


def calls_grammar(
    tools: Sequence[CallableTool], grammars: Grammars, dsml_id: int, *, several: bool, markers: Sequence[str]
) -> str:
    """Rule `calls` behind `<D calls>` and its newline, to the end of the block; one call or several.

    Raises RequestError naming the tool and the keyword that cannot be enforced.
    """
    lines = [
        f"dsml: <[{dsml_id}]>",
        f'calls: call {"(NEWLINE call)*" if several else ""} NEWLINE "</" dsml " calls>"',
        f"call: {' | '.join(f'tool{number}' for number in range(len(tools)))}",
        'NEWLINE: "\\n"',
    ]
    values: dict[str, str] = {}
    for number, tool in enumerate(tools):
        schema = FREE_ARGUMENTS if tool.free else tool.parameters
        declared, others = parameters_of(schema, grammars, f"tool {tool.name!r}", markers)
        head = literal(f' invoke name="{tool.name}">')
        lines.append(f'tool{number}: "<" dsml {head} NEWLINE t{number}_start_0 NEWLINE "</" dsml " invoke>"')
        lines += _sequence(f"t{number}", declared, others, values)
    lines += [f"{name}: {rule}" for rule, name in values.items()]
    return "\n".join(lines) + "\n"


def _sequence(
    tool: str, declared: Sequence[Parameter], others: Parameter | None, values: dict[str, str]
) -> Iterator[str]:
    """Rules of the parameters: `start_k` while nothing was written before parameter k, `more_k` afterwards."""
    for number, parameter in enumerate(declared):
        name, following = f"{tool}_p{number}", number + 1
        yield from _parameter(name, parameter, values)
        skip_start = "" if parameter.required else f" | {tool}_start_{following}"
        skip_more = "" if parameter.required else f" | {tool}_more_{following}"
        yield f"{tool}_start_{number}: {name} {tool}_more_{following}{skip_start}"
        yield f"{tool}_more_{number}: NEWLINE {name} {tool}_more_{following}{skip_more}"
    last = len(declared)
    if others is None:
        yield f'{tool}_start_{last}: ""'
        yield f'{tool}_more_{last}: ""'
    else:
        yield from _parameter(f"{tool}_other", others, values)
        yield f'{tool}_start_{last}: {tool}_other {tool}_more_{last} | ""'
        yield f"{tool}_more_{last}: (NEWLINE {tool}_other)*"


def _parameter(name: str, parameter: Parameter, values: dict[str, str]) -> Iterator[str]:
    """One parameter: raw where a string is admitted, JSON where something else is; equal JSON shares one rule."""
    head = f'"<" dsml {_name(name, parameter)}'
    ways = []
    for number, terminal in enumerate(parameter.raw):
        ways.append(f"{name.upper()}_RAW{number} dsml")
        yield f"{name.upper()}_RAW{number}: {terminal}"
    strings = f"{literal(TRUE)} ({' | '.join(ways)})" if ways else ""
    others = ""
    if parameter.json is not None:
        rule = json_rule(parameter.json, compact=True)
        others = f"{literal(FALSE)} {values.setdefault(rule, f'value{len(values)}')} {literal(END)} dsml"
    value = " | ".join(way for way in (strings, others) if way)
    if parameter.name is None:
        yield f"{name.upper()}_NAME: {parameter.name_terminal}"
    yield f'{name}: {head} ({value}) " parameter>"'


def _name(name: str, parameter: Parameter) -> str:
    start = ' parameter name="'
    return literal(start + parameter.name) if parameter.name is not None else f"{literal(start)} {name.upper()}_NAME"
