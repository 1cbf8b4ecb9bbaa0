"""Settings of the page, and what of them reaches the engine."""

import pytest
from playwright.sync_api import Browser, expect

from flash41.chat.conversation import ChatCodec
from helpers.browser import opened
from helpers.http_server import on_port
from helpers.serving import Scripted
from helpers.web_page import ask, ended


def test_settings_reach_the_engine(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec, "Hi")
    values = {
        "System prompt": "Be brief.",
        "Temperature": "0.25",
        "Top p": "0.5",
        "Top k": "7",
        "Max tokens": "33",
        "Presence penalty": "-1",
        "Frequency penalty": "0.5",
        "Repetition penalty": "1.25",
        "Seed": str(2**63 - 1),
    }
    with on_port(script.app) as url, opened(browser, url) as page:
        page.get_by_label("Thinking", exact=True).uncheck()
        page.get_by_role("button", name="Settings").click()
        for label, value in values.items():
            page.get_by_label(label).fill(value)
        page.get_by_role("button", name="Close").click()
        page.reload()  # they are kept
        ask(page, "hello")
        ended(page)
        job = script.service.jobs[0]
        given = job.params
        assert (given.temperature, given.top_p, given.top_k, given.max_tokens) == (0.25, 0.5, 7, 33)
        assert (given.presence_penalty, given.frequency_penalty, given.repetition_penalty) == (-1, 0.5, 1.25)
        assert job.seed == 2**63 - 1
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
        expected = codec.convert({"messages": messages, "thinking": {"type": "disabled"}})
        assert job.prompt_ids == codec.encode(expected).ids


def test_empty_settings_are_left_to_the_server_and_effort_is_sent(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec)
    with on_port(script.app) as url, opened(browser, url) as page:
        page.get_by_label("Effort of thinking").select_option("low")
        ask(page, "hello")
        ended(page)
        expected = codec.convert({"messages": [{"role": "user", "content": "hello"}], "reasoning_effort": "low"})
        assert script.service.jobs[0].prompt_ids == codec.encode(expected).ids
        assert script.service.jobs[0].params.temperature == 1.0
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Temperature").fill("0.1")
        page.get_by_role("button", name="Reset settings").click()
        expect(page.get_by_label("Temperature")).to_have_value("")


@pytest.mark.parametrize(
    ("label", "value"), [("Temperature", "3"), ("Seed", "1.5"), ("Tools", "{"), ("Tools", '{"a": 1}')]
)
def test_a_setting_without_sense_is_shown_and_nothing_sent(
    browser: Browser, codec: ChatCodec, label: str, value: str
) -> None:
    script = Scripted(codec)
    with on_port(script.app) as url, opened(browser, url) as page:
        page.get_by_role("button", name="Settings").click()
        page.get_by_label(label).fill(value)
        page.get_by_role("button", name="Close").click()
        ask(page, "hello")
        expect(page.get_by_label(label)).to_be_focused()
        expect(page.locator("#settings-note")).to_contain_text(label)
        expect(page.get_by_label("Message")).to_have_value("hello")
        assert script.service.jobs == []
