"""One file that asks for nothing and runs nothing but its own program."""

import base64
import hashlib
import json
import re
from typing import Any

import pytest

from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.document import page_document
from flash41.tools.anatomy_page.html import embedded, page, script, style

EVIL = "</script><script>window.pwned=1</script><!-- \u2028 @@script@@ & ' \" "


def test_the_page_of_the_release_is_small(release_document: dict[str, Any]) -> None:
    assert len(page(release_document).encode()) < 400_000


def test_the_page_asks_for_nothing(tiny: Anatomy) -> None:
    text = page(page_document(tiny, "tiny"))
    addresses = set(re.findall(r"https?://[^\s\"'`<>)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert re.findall(r"(?:src|href)=[\"']([^\"']*)", text) == ["data:,"]
    assert "@import" not in text
    assert "url(" not in text


def test_the_policy_allows_exactly_its_own_style_and_script(tiny: Anatomy) -> None:
    text = page(page_document(tiny, EVIL))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.group(1).split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for name, pattern in (
        ("script-src", r'<script type="module">(.*?)</script>'),
        ("style-src", r"<style>(.*?)</style>"),
    ):
        (content,) = re.findall(pattern, text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"


def test_a_hostile_title_is_text(tiny: Anatomy) -> None:
    text = page(page_document(tiny, EVIL))
    assert "<script>window" not in text
    assert text.count("<script") == 2
    assert text.count("</script") == 2


@pytest.mark.parametrize("evil", [EVIL, "<!--<script>", "]]>", "\u2029"])
def test_embedded_json_is_the_same_document_and_closes_nothing(evil: str) -> None:
    text = embedded({"title": evil})
    assert json.loads(text) == {"title": evil}
    assert not set("<>&\u2028\u2029") & set(text)


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        embedded({"value": float("nan")})


def test_the_program_makes_no_markup_and_fits_into_an_element() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|fetch\(|import "
    )
    assert forbidden.findall(script()) == []
    assert "</" not in script() + style()
    assert "function drawAnatomy(" in script()
