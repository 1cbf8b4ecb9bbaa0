import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from flash41.cli.options import integers


@given(numbers=st.lists(st.integers(), min_size=1), separator=st.sampled_from([",", " ", ", ", ",,"]))
def test_integers_are_read_with_commas_or_spaces_between_them(numbers: list[int], separator: str) -> None:
    assert integers(separator.join(map(str, numbers)), "--x") == numbers


@pytest.mark.parametrize(
    "text", ["a", "1,b", "1.5", "1e3", "--5", "-", "1_000", "\u00b2", "\u0661", "0x10", "+1", "9" * 5000]
)
def test_what_is_no_integer_is_shown(text: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        integers(text, "--x")
    assert "expected integers separated by commas" in str(caught.value)
    assert caught.value.param_hint == "--x"


@pytest.mark.parametrize("text", ["", " ", ","])
def test_at_least_one_integer_is_expected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected at least one integer"):
        integers(text, "--x")
