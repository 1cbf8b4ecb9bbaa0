from typing import Any

import pytest

from flash41.chat.grammar import Grammars
from flash41.chat.parameters import Parameter, parameters_of
from flash41.errors import RequestError
from helpers.constrained import CODEC, EOS, VOCAB_SIZE, of_object

GRAMMARS = Grammars(CODEC.tokenizer, VOCAB_SIZE, EOS)
MARKERS = ("</MARK>",)
PERSON = {**of_object(name={"type": "string"}, boss={"$ref": "#/$defs/person"}), "required": ["name"]}


def read(schema: Any) -> tuple[list[Parameter], Parameter | None]:
    return parameters_of(schema, GRAMMARS, "tool 'f'", MARKERS)


def one(schema: Any, **beside: Any) -> Parameter:
    (found,), _ = read({**of_object(v=schema), **beside})
    return found


@pytest.mark.parametrize(
    ("schema", "raw", "json"),
    [
        ({"type": "string"}, ['(/(?s:.*)/) "</"'], None),
        ({"type": "integer", "minimum": 3}, [], {"type": ["integer"], "minimum": 3}),
        ({"type": ["string", "null"]}, ['(/(?s:.*)/) "</"'], {"type": ["null"]}),
        ({"enum": ["a", 1, "b", None]}, ['"a</" | "b</"'], {"enum": [1, None]}),
        ({"type": "string", "enum": ["a", 1]}, ['"a</"'], None),
        ({"type": "integer", "enum": ["a", 1, 2.0, 2.5]}, [], {"enum": [1, 2.0]}),
        ({"const": {"k": 1}}, [], {"enum": [{"k": 1}]}),
        (
            {"anyOf": [{"const": "a"}, {"type": "null"}, {"type": "boolean"}]},
            ['"a</"'],
            {"anyOf": [{"type": ["null"]}, {"type": ["boolean"]}]},
        ),
        ({"allOf": [{"type": "string", "maxLength": 2}], "description": "d"}, ['(/(?s:.{0,2})/) "</"'], None),
    ],
)
def test_strings_are_raw_and_the_rest_is_json(schema: Any, raw: list[str], json: Any) -> None:
    found = one(schema)
    assert (found.name, found.required, list(found.raw), found.json) == ("v", True, raw, json)


@pytest.mark.parametrize("schema", [True, {}, {"description": "anything"}])
def test_a_schema_that_says_nothing_admits_strings_and_everything_else(schema: Any) -> None:
    found = one(schema)
    assert found.raw == ('(/(?s:.*)/) "</"',)
    assert found.json["type"] == ["null", "boolean", "integer", "number", "array", "object"]


def test_what_admits_no_string_is_json_as_a_whole() -> None:
    pair = {"allOf": [{"type": "object", "required": ["a"]}, {"minProperties": 1}]}
    assert (one(pair).raw, one(pair).json) == ((), pair)
    either = {"oneOf": [of_object(k={"const": "a"}), of_object(k={"const": "b"})]}
    assert (one(either).raw, one(either).json) == ((), either)


def test_references_lead_into_a_copy_of_the_whole() -> None:
    found = one(
        {"type": "array", "items": {"$ref": "#/$defs/person"}}, **{"$defs": {"person": PERSON}, "$id": "http://a/b"}
    )
    assert found.json["items"] == {"$ref": "#/$defs/root/$defs/person"}
    assert "$id" not in found.json["$defs"]["root"]
    assert found.json["$defs"]["root"]["$defs"]["person"]["properties"]["boss"] == {"$ref": "#/$defs/root/$defs/person"}


def test_required_parameters_are_marked_and_undeclared_ones_appended() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["c", "a"]}
    found, others = read(schema)
    assert [(parameter.name, parameter.required) for parameter in found] == [("b", False), ("a", True), ("c", True)]
    assert others is None


def test_others_are_read_where_the_schema_admits_them() -> None:
    found, others = read({"type": "object", "additionalProperties": {"type": "boolean"}})
    assert found == []
    assert others is not None
    assert (others.name, others.required, others.json) == (None, False, {"type": ["boolean"]})


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, of_object(), {"type": "object", "properties": {}}])
def test_a_schema_that_names_no_parameter_has_none(schema: Any) -> None:
    assert read(schema) == ([], None)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array"}, "tool 'f': parameters: got 'array'"),
        ({"type": "object", "minProperties": 1}, r"tool 'f': parameters: got \['minProperties'\]"),
        ({"anyOf": [{}]}, r"parameters: got \['anyOf'\]"),
        (True, "parameters: got True, expected a JSON Schema of an object"),
        ({"type": "object", "properties": []}, "properties by name"),
        ({**of_object(), "required": ["z"]}, "tool 'f': required: got 'z', expected a declared property"),
        (of_object(**{'a"b': {}}), "tool 'f': parameter: got 'a\"b', expected a name without quotes"),
        (of_object(**{"": {}}), "expected a name without quotes"),
        (of_object(**{"a</MARK>": {}}), "tool 'f': parameter: got 'a</MARK>', expected no </MARK>"),
        (of_object(v={"enum": ["</MARK>"]}), "tool 'f': 'v': got '</MARK>'"),
        (of_object(v=False), "tool 'f': 'v': got False, expected a JSON Schema that admits a value"),
        (of_object(v={"enum": []}), "'v': got .*admits a value"),
        (of_object(v={"enum": ["a"], "type": "integer"}), "'v': got .*admits a value"),
        (of_object(v={"enum": ["a"], "maxLength": 3}), r"'v': beside enum or const: got \['maxLength'\]"),
        (of_object(v={"type": "strin"}), "'v': type: got 'strin', expected one or several of null, boolean"),
        (of_object(v={"anyOf": [{}], "minLength": 3}), r"'v': beside anyOf: got \['minLength'\]"),
        (of_object(v={"allOf": [{"minLength": 3}, {"maxLength": 4}]}), "'v': allOf: got '2 schemas', expected one"),
        (of_object(v={"oneOf": [{"type": "string"}, {"const": "a"}]}), "'v': oneOf: got 'a string that fits two'"),
        (of_object(v={"oneOf": [{"type": "string"}, {"type": ["string", "null"]}]}), "a string that fits two"),
        (of_object(v={"oneOf": [{"const": "a"}, {"enum": ["b", "a"]}]}), "a string that fits two"),
        (
            of_object(v={"oneOf": [{"type": ["string", "number"]}, {"type": "integer"}]}),
            "'v': oneOf: got .*oneOf constraints",
        ),
        (of_object(v={"type": "array", "uniqueItems": True}), "'v': got .*uniqueItems"),
        (of_object(v={"type": "string", "format": "uri"}), "'v': format: got 'uri'"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read(schema)


def test_alternatives_that_double_at_every_level_are_refused_at_once() -> None:
    doubling: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    with pytest.raises(RequestError, match="alternatives within alternatives"):
        one({"$ref": "#/$defs/d0"}, **{"$defs": {**doubling, "d40": {"type": "string"}}})


def test_disjoint_alternatives_of_one_of_are_taken() -> None:
    found = one({"oneOf": [{"const": "a"}, {"enum": ["b", 1]}, {"type": "null"}]})
    assert found.raw == ('"a</"', '"b</"')
    assert found.json == {"anyOf": [{"enum": [1]}, {"type": ["null"]}]}
