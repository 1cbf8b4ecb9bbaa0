from typing import Any

import pytest

from flash41.chat.references import holds_reference, redirected, resolved
from flash41.errors import RequestError

ROOT: dict[str, Any] = {
    "$defs": {
        "a": {"$ref": "#/$defs/b", "description": "d"},
        "b": {"type": "null"},
        "x/y~z": True,
        "loop": {"$ref": "#/$defs/loop"},
    },
    "anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}],
    "bad": {"$ref": "#/$defs/b", "maxLength": 3},
}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [("#", ROOT), ("#/$defs/a", {"type": "null"}), ("#/anyOf/1", {"type": "null"}), ("#/$defs/x~1y~0z", True)],
)
def test_references_are_followed_to_their_end(reference: str, expected: Any) -> None:
    assert resolved({"$ref": reference}, ROOT, "thing") == expected


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"$ref": "#/$defs/none"}, r"thing: \$ref: got '#/\$defs/none', expected a path within the schema"),
        ({"$ref": "#/anyOf/2"}, "a path within the schema"),
        ({"$ref": "https://example.org"}, "a path within the schema"),
        ({"$ref": 3}, "a path within the schema"),
        ({"$ref": "#/$defs/loop"}, r"thing: \$ref: got 'a reference to itself'"),
        ({"$ref": "#/bad"}, r"thing: beside \$ref: got \['maxLength'\], expected nothing"),
    ],
)
def test_other_references_are_refused(node: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        resolved(node, ROOT, "thing")


def test_references_are_redirected_and_data_is_not() -> None:
    schema = {"items": [{"$ref": "#/$defs/a"}, {"$ref": "#"}], "enum": [{"$ref": "#"}], "properties": {"$ref": {}}}
    assert redirected(schema) == {
        "items": [{"$ref": "#/$defs/root/$defs/a"}, {"$ref": "#/$defs/root"}],
        "enum": [{"$ref": "#"}],
        "properties": {"$ref": {}},
    }
    assert holds_reference(schema)
    assert not holds_reference({"properties": {"$ref": {"type": "null"}}})
