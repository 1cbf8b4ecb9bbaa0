"""The page under a user's hands and eyes: keyboard, names, copies, a phone, paper."""

import re

import pytest
from playwright.sync_api import Browser, expect

from flash41.chat.conversation import ChatCodec
from helpers.browser import opened
from helpers.http_server import on_port
from helpers.serving import Scripted
from helpers.web_page import PHONE, ask, ended, prompt_of


def test_everything_is_reached_by_keyboard(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec)
    with on_port(script.app) as url, opened(browser, url) as page:
        expect(page.get_by_label("Message")).to_be_focused()
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        page.keyboard.press("Enter")
        ended(page)
        expect(page.locator(".user .words")).to_have_text("one\ntwo")
        page.get_by_role("tab", name="Chat").focus()
        names = []
        while "prompt" not in names:
            page.keyboard.press("Tab")
            names.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
            assert len(names) < 12, names
        thought = re.sub(r"[\d.]+", "0", names.pop(4))
        assert thought == "Thought for 0 ms"
        assert names == [
            "new-chat", "open-settings", "Copy", "Edit", "Copy", "Copy seed", "Try again", "prompt"
        ]  # fmt: skip
        page.get_by_role("tab", name="Chat").focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name="Live")).to_be_focused()
        expect(page.get_by_role("tabpanel", name="Live")).to_be_visible()
        page.keyboard.press("ArrowLeft")
        page.get_by_role("button", name="Settings").press("Enter")
        expect(page.get_by_label("System prompt")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Settings")).to_be_focused()


def test_every_field_has_a_name(browser: Browser, codec: ChatCodec) -> None:
    with on_port(Scripted(codec).app) as url, opened(browser, url) as page:
        page.get_by_role("button", name="Settings").click()
        nameless = """() => [...document.querySelectorAll("input, select, textarea")]
            .filter((field) => !field.labels.length || !field.labels[0].textContent.trim()).map((field) => field.id)"""
        assert page.evaluate(nameless) == []


def test_turns_are_copied_kept_repeated_and_cleared(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec, "</think>Hi `there`")
    with on_port(script.app) as url, opened(browser, url) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        ask(page, "hello")
        ended(page)
        page.locator(".answer").get_by_role("button", name="Copy", exact=True).click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == "Hi `there`"
        page.reload()
        expect(page.locator(".prose")).to_have_text("Hi there")
        ask(page, "again")
        ended(page, 2)
        assert "Hi `there`" in prompt_of(script)
        page.get_by_role("button", name="Try again").last.click()
        ended(page, 2)
        assert script.service.jobs[1].prompt_ids == script.service.jobs[2].prompt_ids
        page.get_by_role("button", name="New chat").click()
        expect(page.locator(".turn")).to_have_count(0)
        page.reload()
        expect(page.locator("#welcome")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_sideways_scrolling(browser: Browser, codec: ChatCodec, scheme: str) -> None:
    wide = "</think>" + "w" * 300 + "\n\n```\n" + "code " * 60 + "\n```\n\n|" + " cell |" * 12 + "\n|" + "---|" * 12
    with on_port(Scripted(codec, wide).app) as url, opened(browser, url, **PHONE, color_scheme=scheme) as page:
        fits = "document.scrollingElement.scrollWidth <= 360"
        assert page.evaluate(fits)
        ask(page, "u" * 300)
        ended(page)
        assert page.evaluate(fits)
        assert page.evaluate("document.querySelector('#scroller').scrollWidth <= 360")
        page.get_by_role("button", name="Settings").tap()
        assert page.evaluate(fits)
        expect(page.get_by_label("API key")).to_be_visible()
        page.get_by_role("button", name="Close").tap()
        page.get_by_role("tab", name="Live").tap()
        expect(page.locator(".card")).to_have_count(7)
        assert page.evaluate(fits)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) > 384) == (scheme == "light")


def test_paper_shows_the_whole_conversation_and_no_controls(browser: Browser, codec: ChatCodec) -> None:
    with on_port(Scripted(codec, "</think>" + "line\n\n" * 80).app) as url, opened(browser, url) as page:
        ask(page, "hello")
        ended(page)
        page.emulate_media(media="print")
        expect(page.get_by_label("Message")).to_be_hidden()
        expect(page.get_by_role("button", name="Try again")).to_be_hidden()
        assert page.evaluate("document.scrollingElement.scrollHeight > 2000")
