from typing import Any

import numpy as np
import pytest

from flash41.chat.grammar import Grammars
from flash41.chat.tool_grammar import CallableTool, calls_grammar
from flash41.errors import RequestError
from helpers.constrained import CODEC, EOS, VOCAB_SIZE, of_object

GRAMMARS = Grammars(CODEC.tokenizer, VOCAB_SIZE, EOS)
DSML = "｜DSML｜"
DSML_ID = CODEC.tokenizer.id_of(DSML)


def grammar(*tools: tuple[str, Any], several: bool = True, free: bool = False) -> str:
    assert DSML_ID is not None
    asked = [CallableTool(name=name, parameters=schema, free=free) for name, schema in tools]
    return calls_grammar(asked, GRAMMARS, DSML_ID, several=several, markers=())


def takes(rules: str, text: str) -> bool:
    """Whether a block of exactly this text (control tokens spelled out) fits."""
    matcher = GRAMMARS.matcher(f"start: calls\n{rules}", "thing")
    for token_id in CODEC.tokenizer.encode_with_control(text):
        if not matcher.mask()[token_id]:
            return False
        matcher.push(token_id)
    return np.nonzero(matcher.mask())[0].tolist() == [EOS]


def call(name: str, *lines: str) -> str:
    return f'<{DSML} invoke name="{name}">\n' + "\n".join(lines) + f"\n</{DSML} invoke>\n"


def parameter(name: str, value: str, string: bool = False) -> str:
    return f'<{DSML} parameter name="{name}" string="{str(string).lower()}">{value}</{DSML} parameter>'


END = f"</{DSML} calls>"


def test_tools_whose_names_begin_alike_are_told_apart() -> None:
    rules = grammar(("f", of_object(a={"type": "null"})), ("fo", {}), ("fo_o", {}))
    assert takes(rules, call("fo") + END)
    assert takes(rules, call("fo_o") + call("f", parameter("a", "null")) + END)
    assert not takes(rules, call("f") + END)
    assert not takes(rules, call("foo") + END)


def test_parameters_whose_names_begin_alike_are_told_apart() -> None:
    rules = grammar(("f", {"type": "object", "properties": {"a": {"type": "null"}, "ab": {}, "a b": {"const": "x"}}}))
    for lines in ([], ["a"], ["ab"], ["a b"], ["a", "a b"], ["a", "ab", "a b"]):
        values = {"a": ("null", False), "ab": ("free </text", True), "a b": ("x", True)}
        assert takes(rules, call("f", *(parameter(name, *values[name]) for name in lines)) + END), lines


def test_free_arguments_are_any_parameters_in_the_syntax_of_calls() -> None:
    rules = grammar(("f", of_object(a={"type": "null"})), free=True)
    assert takes(rules, call("f", parameter("x", "raw\ntext", True), parameter("y", '{"k": [1, "v"]}')) + END)
    assert takes(rules, call("f") + END)
    assert not takes(rules, call("f", parameter("x", "no json")) + END)
    assert not takes(rules, call("f", parameter("x", '"text"')) + END)
    assert not takes(rules, call("f", "prose") + END)


@pytest.mark.parametrize("several", [True, False])
def test_several_calls_only_where_they_are_allowed(several: bool) -> None:
    rules = grammar(("f", {}), several=several)
    assert takes(rules, call("f") + END)
    assert takes(rules, call("f") * 3 + END) is several
    assert not takes(rules, END)


def test_equal_json_schemas_share_one_rule() -> None:
    number = {"type": "integer"}
    rules = grammar(("f", of_object(a=number, b=number)), ("g", of_object(c=number, d={"type": "boolean"})))
    assert rules.count("%json") == 2


def test_the_tool_at_fault_is_named() -> None:
    with pytest.raises(RequestError, match=r"tool 'g': 'c': got .*contains"):
        grammar(("f", {}), ("g", of_object(c={"type": "array", "contains": {}})))
