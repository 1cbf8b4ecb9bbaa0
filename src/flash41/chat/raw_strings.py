"""Grammars of strings that are written as they are, without quotes: parameters of tool calls with `string="true"`.

The value ends at `</` in front of a control token, so a terminal holds the `</` too: the lexer takes the longest match,
and a value like `a</b` must not end at its first `<`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flash41.chat.grammar import Grammars, literal, regex_rule
from flash41.errors import RequestError, complaint

END = "</"
OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4 = rf"{OCTET}(\.{OCTET}){{3}}"
LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HEX = "[0-9A-Fa-f]{1,4}"
DATE = (
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}[Tt]{TIME}",
    "email": rf"[A-Za-z0-9_+-]{{1,20}}(\.[A-Za-z0-9_+-]{{1,20}}){{0,2}}@{LABEL}(\.{LABEL}){{1,2}}",
    "hostname": rf"{LABEL}(\.{LABEL}){{0,2}}",
    "ipv4": IPV4,
    "ipv6": f"({HEX}:){{7}}{HEX}|::({HEX}(:{HEX}){{0,5}})?|{HEX}::({HEX}(:{HEX}){{0,4}})?",
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
}
"""Texts of each format; for some formats not all of them, never one that is none."""
KEYWORDS = ("pattern", "format", "minLength", "maxLength")

_BESIDE_CLASSES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def constants_terminal(values: Sequence[str]) -> str:
    """The terminal of given strings."""
    return " | ".join(literal(value + END) for value in dict.fromkeys(values))


def string_terminal(schema: Mapping[str, Any], grammars: Grammars, thing: str) -> str:
    """The terminal of the strings that a schema's `KEYWORDS` admit.  Raises RequestError naming what it cannot hold."""
    parts = []
    if (pattern := schema.get("pattern")) is not None:
        inner = unanchored(_text(pattern, f"{thing}: pattern"), f"{thing}: pattern")
        grammars.check_pattern(inner, f"{thing}: pattern")
        parts.append(regex_rule(inner))
    if (name := schema.get("format")) is not None:
        if name not in FORMATS:
            raise RequestError(complaint(f"{thing}: format", name, f"one of {', '.join(FORMATS)}"))
        parts.append(regex_rule(FORMATS[name]))
    low, high = (_count(schema.get(key), f"{thing}: {key}") for key in ("minLength", "maxLength"))
    if low is not None or high is not None or not parts:
        if high is not None and (low or 0) > high:
            raise RequestError(complaint(f"{thing}: minLength", low, f"at most maxLength {high}"))
        length = "*" if low is high is None else f"{{{low or 0},{'' if high is None else high}}}"
        parts.append(f"/(?s:.{length})/")
    return f"({' & '.join(parts)}) {literal(END)}"


def unanchored(pattern: str, thing: str, *, search: bool = True) -> str:
    """A pattern that must fit a whole text, from one that is searched in it: what `^` and `$` do is written out.

    Raises RequestError for an anchor anywhere but at the ends.
    """
    begins = pattern.startswith("^")
    bare = _BESIDE_CLASSES.sub(lambda found: "x" * len(found[0]), pattern)
    ends = bare.endswith("$")
    inner = pattern[begins : len(pattern) - ends]
    rest = bare[begins : len(pattern) - ends]
    if "^" in rest or "$" in rest or ((begins or ends) and _has_choice(rest)):
        raise RequestError(complaint(thing, pattern, "anchors only around the whole of it", "write ^(a|b)$"))
    head = "" if begins or not search else "(?s:.*)"
    tail = "" if ends or not search else "(?s:.*)"
    return f"{head}(?:{inner}){tail}"


def _has_choice(bare: str) -> bool:
    """Whether a `|` stands outside all parentheses."""
    depth = 0
    for character in bare:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "|" and depth == 0:
            return True
    return False


def _text(value: object, thing: str) -> str:
    if not isinstance(value, str):
        raise RequestError(complaint(thing, value, "a text"))
    return value


def _count(value: object, thing: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise RequestError(complaint(thing, value, "an integer of at least 0"))
    return value


def check_spelling(values: Sequence[Any], markers: Sequence[str], thing: str) -> None:
    """Raises RequestError if a text that must be written holds a marker, which a reader would misread."""
    for value in values:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        found = [marker for marker in markers if marker in text]
        if found:
            raise RequestError(complaint(thing, value, f"no {' or '.join(found)} in a text that must be written"))
