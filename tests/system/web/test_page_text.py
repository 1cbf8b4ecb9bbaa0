"""What a model says stays text, and Markdown becomes elements."""

import json

import pytest
from playwright.sync_api import Browser, expect

from flash41.chat.conversation import ChatCodec
from helpers.browser import opened, until
from helpers.http_server import on_port
from helpers.serving import Scripted
from helpers.web_page import CALLS, EVIL, TOOLS, ask, ended


def test_markup_in_every_place_stays_text(browser: Browser, codec: ChatCodec) -> None:
    call = CALLS.replace("get_weather", "<img src=x>").replace("Paris", EVIL)
    answer = call.replace("I should look.", EVIL).replace(
        "Let me look.",
        f"{EVIL}\n\n# {EVIL}\n\n- {EVIL}\n\n> {EVIL}\n\n```{EVIL}\n{EVIL}\n```\n\n| {EVIL} |\n|---|\n| {EVIL} |\n\n"
        "[one](javascript:window.pwned=1) [two](data:text/html,x) ![three](x) [four](https://example.org/?a=<b>)",
    )
    script = Scripted(codec, answer)
    with on_port(script.app) as url, opened(browser, url) as page:
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Tools").fill(json.dumps(TOOLS))
        page.get_by_role("button", name="Close").click()
        ask(page, EVIL)
        ended(page)
        log = page.get_by_role("log")
        assert log.locator("img, script, iframe, object, embed, style, link, svg").count() == 0
        addresses = log.locator("a").evaluate_all("(links) => links.map((link) => link.href)")
        assert addresses == ["https://example.org/?a=%3Cb%3E"]
        assert log.locator("a").get_attribute("rel") == "noopener noreferrer"
        text = log.evaluate("(element) => element.textContent")
        assert text.count('onerror="window.pwned=1"') >= 8
        assert "[one](javascript:window.pwned=1)" in text
        assert page.evaluate("window.pwned") is None


def test_an_inline_style_would_be_a_violation_that_these_tests_see(browser: Browser, codec: ChatCodec) -> None:
    def intrude(url: str) -> None:
        with opened(browser, url) as page:
            page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')")
            until(page, "window.violations.length > 0")

    with on_port(Scripted(codec).app) as url, pytest.raises(AssertionError, match="style-src"):
        intrude(url)


def test_markdown_becomes_elements(browser: Browser, codec: ChatCodec) -> None:
    text = (
        "</think># Title\n\nA *b* `c` ~~d~~ a_b_c 2 * 3 * 4.\n\n1. one\n   - inner\n2. two\n\n> quote\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n\n```python\nif a < b:\n    **no**\n```\nend"
    )
    with on_port(Scripted(codec, text).app) as url, opened(browser, url) as page:
        ask(page, "hello")
        ended(page)
        prose = page.locator(".prose")
        tags = prose.evaluate("(element) => [...element.children].map((child) => child.tagName)")
        assert tags == ["H3", "P", "OL", "BLOCKQUOTE", "DIV", "HR", "DIV", "P"]
        expect(prose.locator("p").first).to_have_text("A b c d a_b_c 2 * 3 * 4.")
        expect(prose.locator("ol > li")).to_have_count(2)
        expect(prose.locator("ol ul li")).to_have_text("inner")
        expect(prose.locator("pre code")).to_have_text("if a < b:\n    **no**")
        assert prose.locator("td").all_inner_texts() == ["1", "2"]
