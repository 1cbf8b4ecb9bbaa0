import sys

import pytest

from helpers.lazily import lazily


def test_a_module_is_imported_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    module = lazily("colorsys")
    assert "colorsys" not in sys.modules
    assert module.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert module.rgb_to_hsv is sys.modules["colorsys"].rgb_to_hsv


def test_what_is_missing_is_told_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="colorsys"):
        _ = lazily("colorsys").nonsense
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = lazily("no_such_module").anything
