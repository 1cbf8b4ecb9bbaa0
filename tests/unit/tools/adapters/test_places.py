import pytest

from flash41.tools.adapters.changes import BATCHED, SAME
from flash41.tools.adapters.places import Place, edited, parsed, seen
from flash41.tools.adapters.record import Hook


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a.b output", Place(root="model", side="output", target="a.b")),
        ("a.b output 1", Place(root="model", side="output", target="a.b", key=1)),
        ("a input x", Place(root="model", side="input", target="a", key="x")),
        ("a input 0 call 1", Place(root="model", side="input", target="a", key=0, call=1)),
        ("a output call 2", Place(root="model", side="output", target="a", call=2)),
        ("a output each ratio", Place(root="model", side="output", target="a", each="ratio")),
        ("draft.a.0 output", Place(root="draft", side="output", target="a.0")),
        ("tensor kq-3", Place(root="model", side="tensor", target="kq-3")),
        ("tensor kq-3 call 1", Place(root="model", side="tensor", target="kq-3", call=1)),
        ("edit f.py g: `x` call 1", Place(root="model", side="edit", target="f.py g: `x` call 1")),
    ],
)
def test_a_place_has_parts(text: str, place: Place) -> None:
    assert parsed(text) == place


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("m.{layer}.a output 1", "m.{layer}.a.output.1"),
        ("m.{layer}.a input 0 call 1", "m.{layer}.a.input.0.call.1"),
        ("m.{layer}.a output each ratio", "m.{layer}.a.output"),
        ("m.{last} output", "m.last.output"),
        ("tensor q-{layer}", "q-{layer}"),
    ],
)
def test_an_array_is_named_after_its_place(place: str, name: str) -> None:
    assert seen("P", place, BATCHED) == Hook(point="P", name=name, place=place, change=BATCHED)


def test_an_edit_says_where_and_what() -> None:
    hook = edited("P", "n", "f.py g", "`x`", order_of="Q")
    assert hook == Hook(point="P", name="n", place="edit f.py g: `x`", change=SAME, order_of="Q")
