"""The tabs of the page that show the model and its engine, and the page over the real one."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from flash41.chat.conversation import ChatCodec
from flash41.server.settings import ServerSettings
from helpers.browser import opened, until
from helpers.config_documents import tiny_config
from helpers.http_server import on_port
from helpers.server_process import ServerProcess, serving
from helpers.serving import Scripted
from helpers.web_page import PHONE, ask, ended


@pytest.fixture(scope="module")
def server(tiny_directory: Path) -> Iterator[ServerProcess]:
    with serving(tiny_directory, "--block-size", "32", "--state-image-interval", "32", "--max-num-seqs", "2") as found:
        yield found


# The anatomy.


def test_the_anatomy_tab_draws_the_served_model(browser: Browser, codec: ChatCodec) -> None:
    server = Scripted(codec, settings=ServerSettings(model_config=tiny_config()))
    with on_port(server.app) as url, opened(browser, url, **PHONE) as page:
        page.get_by_role("tab", name="Anatomy").tap()
        tab = page.get_by_role("tabpanel", name="Anatomy")
        expect(tab.get_by_role("heading", level=1)).to_have_text("DeepSeek-V4.1-Flash")
        expect(tab.locator(".column")).to_have_count(13)
        assert page.evaluate("document.querySelector('#anatomy').scrollWidth <= 360")
        tab.locator(".column[data-layer='8']").tap()
        expect(tab.locator(".layer-panel h3")).to_contain_text("Layer 8 · REINDEX")
        tab.get_by_role("button", name="Number formats").tap()
        expect(tab.get_by_role("heading", name="Number formats")).to_be_in_viewport()
        assert page.evaluate("location.hash") == "#anatomy"


def test_the_anatomy_tab_says_why_it_is_empty(browser: Browser, codec: ChatCodec) -> None:
    with on_port(Scripted(codec).app) as url, opened(browser, f"{url}/#anatomy") as page:
        expect(page.locator("#anatomy-state")).to_contain_text("the configuration of this model is not known here")


# The engine itself.


def test_the_engine_answers_as_it_does_everybody(browser: Browser, server: ServerProcess) -> None:
    with opened(browser, server.url) as page:
        page.get_by_label("Thinking", exact=True).uncheck()
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Max tokens").fill("12")
        page.get_by_label("Seed").fill("5")
        page.get_by_role("button", name="Close").click()
        ask(page, "hello")
        ended(page)
        expect(page.locator(".facts")).to_contain_text("12 tokens")
        expect(page.locator(".facts")).to_contain_text("cut at the token limit")
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "seed": 5}
        asked = httpx.post(
            f"{server.url}/v1/chat/completions", json=body | {"thinking": {"type": "disabled"}}, timeout=60
        )
        kept = json.loads(page.evaluate("sessionStorage.getItem('flash41.turns')"))
        assert kept[1]["content"] == asked.json()["choices"][0]["message"]["content"]
        ask(page, "a longer text " * 12)
        ended(page, 2)
        ask(page, "and again")
        ended(page, 3)
        cached = re.search(r"(\d+) of (\d+) prompt tokens cached", page.locator(".facts").last.inner_text())
        assert cached is not None
        assert 0 < int(cached[1]) < int(cached[2])


def test_the_live_tab_follows_the_engine(browser: Browser, server: ServerProcess) -> None:
    with opened(browser, f"{server.url}/#live") as page:
        generated = page.locator("[data-figure=speed] .remark")
        expect(generated).to_contain_text("generated")
        before = generated.inner_text()
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
        httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        expect(generated).not_to_have_text(before)
        expect(page.locator("[data-figure=pages] .remark")).to_contain_text("of ")
        expect(page.locator("[data-figure=running] .remark")).to_have_text("of 2 side by side")
        points = "document.querySelector('[data-figure=speed] .line').getAttribute('points').split(' ').length"
        until(page, f"{points} >= 3")
        page.get_by_text("What was decided at the start").click()
        expect(page.locator("#choices li").first).to_be_visible()
        page.get_by_role("tab", name="Chat").click()
        count = page.evaluate(points)
        page.wait_for_timeout(1500)
        assert page.evaluate(points) <= count + 1  # nobody looks, nobody asks
