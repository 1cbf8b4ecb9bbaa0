"""The page over a scripted service: an answer, its calls and its failures."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from flash41.chat.conversation import ChatCodec
from flash41.server.service import Job
from flash41.server.settings import ServerSettings
from helpers.browser import opened, patient, until
from helpers.http_server import on_port
from helpers.serving import Scripted, facts
from helpers.web_page import CALLS, TOOLS, ask, ended, prompt_of

KEY = "a-key-of-the-tests-0123"


# An answer.


def test_an_answer_is_shown_with_its_reasoning_folded_and_its_figures(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec, "because <b>it</b> is</think>Hi **there**", playing={"num_cached_tokens": 7})
    with on_port(script.app) as url, opened(browser, url) as page:
        ask(page, "hello")
        ended(page)
        expect(page.locator(".user .words")).to_have_text("hello")
        expect(page.locator(".prose")).to_have_text("Hi there")
        expect(page.locator(".prose strong")).to_have_text("there")
        thought = page.locator(".thought")
        expect(thought).to_be_hidden()
        page.locator("summary", has_text="Thought for").click()
        expect(thought).to_be_visible()
        expect(thought).to_have_text("because <b>it</b> is")
        count = len(codec.tokenizer.encode_with_control("because <b>it</b> is</think>Hi **there**")) + 1
        shown = page.locator(".facts").inner_text()
        num_prompt = len(script.service.jobs[0].prompt_ids)
        assert re.match(rf"{count} tokens · [\d.]+ tokens/s · first after \d+ ms · ", shown), shown
        assert shown.endswith(f"7 of {num_prompt} prompt tokens cached")
        expect(page.get_by_role("log", name="Conversation")).to_have_attribute("aria-live", "polite")


def test_an_approximate_answer_says_so(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec, model=facts(approximate=("decoder-replay",)))
    with on_port(script.app) as url, opened(browser, url) as page:
        ask(page, "hello")
        ended(page)
        expect(page.locator(".facts")).to_contain_text("approximate: decoder-replay")


def test_text_appears_while_it_is_computed(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec, "</think>" + "word " * 400, playing={"token_seconds": 0.01})
    with on_port(script.app) as url, opened(browser, url) as page:
        ask(page, "hello")
        until(page, "document.querySelector('.prose')?.textContent.length > 20")
        expect(page.locator(".answer.open")).to_have_count(1)
        expect(page.get_by_role("log")).to_have_attribute("aria-busy", "true")
        first = len(page.locator(".prose").inner_text())
        until(page, f"document.querySelector('.prose').textContent.length > {first}")
        page.get_by_role("button", name="Stop").click()
        ended(page)
        expect(page.get_by_label("Message")).to_be_focused()
        expect(page.get_by_role("log")).to_have_attribute("aria-busy", "false")


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_stopping_aborts_the_request_and_keeps_what_was_said(browser: Browser, codec: ChatCodec, way: str) -> None:
    script = Scripted(codec, "</think>" + "word " * 400, playing={"token_seconds": 0.01})
    with on_port(script.app) as url, opened(browser, url) as page:
        ask(page, "hello")
        until(page, "document.querySelector('.prose')?.textContent.length > 20")
        if way == "button":
            page.get_by_role("button", name="Stop").click()
        else:
            page.keyboard.press("Escape")
        ended(page)
        expect(page.locator(".facts")).to_contain_text("stopped")
        patient(page, lambda: script.service.num_aborted > 0)
        assert script.service.num_aborted == 1
        said = page.locator(".prose").inner_text().strip()
        script.text = "</think>more"
        ask(page, "go on")
        ended(page, 2)
        assert said in prompt_of(script)


# Tools.


def test_calls_are_shown_and_their_results_go_back(browser: Browser, codec: ChatCodec) -> None:
    def play(job: Job) -> str:
        return "</think>It rains." if "tool_result" in codec.tokenizer.decode(list(job.prompt_ids)) else CALLS

    script = Scripted(codec, play)
    with on_port(script.app) as url, opened(browser, url) as page:
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Tools").fill(json.dumps(TOOLS))
        page.get_by_role("button", name="Close").click()
        ask(page, "Weather?")
        expect(page.locator(".call")).to_have_count(2)
        expect(page.locator(".call code").first).to_have_text("get_weather")
        arguments = page.get_by_label("Arguments").first.inner_text()
        assert arguments == json.dumps({"city": "Paris", "days": 3}, indent=2)
        result = page.get_by_label("Result of get_weather")
        expect(result).to_be_focused()
        ask(page, "not yet")  # the calls come first
        assert len(script.service.jobs) == 1
        result.fill("rain, <b>12</b> degrees")
        page.get_by_label("Result of get_time").fill("noon")
        page.get_by_role("button", name="Send results").click()
        expect(page.locator(".prose").last).to_have_text("It rains.")
        ended(page, 2)
        assert "rain, <b>12</b> degrees" in prompt_of(script)
        assert "noon" in prompt_of(script)
        expect(page.locator(".call .result").first).to_have_text("rain, <b>12</b> degrees")


# Errors.


def test_a_refusal_is_shown_in_the_servers_words_and_can_be_tried_again(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec, "</think>ok", model=facts(max_model_len=64))
    with on_port(script.app) as url, opened(browser, url) as page:
        ask(page, "word " * 200)
        alert = page.locator(".failure")
        expect(alert).to_contain_text("Refused (400).")
        expect(alert).to_contain_text("64")
        assert alert.get_attribute("role") == "alert"
        page.locator(".user").hover()
        page.get_by_role("button", name="Edit").click()
        expect(page.locator(".turn")).to_have_count(0)
        assert page.get_by_label("Message").input_value().startswith("word word")
        ask(page, "short")
        ended(page)
        expect(page.locator(".prose")).to_have_text("ok")


def test_an_engine_that_fails_in_the_middle_is_told(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec, "</think>one two three", playing={"breaks_at": 2})
    with on_port(script.app) as url, opened(browser, url) as page:
        ask(page, "hello")
        ended(page)
        expect(page.locator(".failure")).to_have_text("Not finished. the engine failed to compute this request")
        page.get_by_role("button", name="Try again").click()
        ended(page)
        assert len(script.service.jobs) == 2


def test_a_server_that_is_gone_is_told(browser: Browser, codec: ChatCodec) -> None:
    with on_port(Scripted(codec).app) as url, opened(browser, url) as page:
        page.context.set_offline(True)
        ask(page, "hello")
        ended(page)
        expect(page.locator(".failure")).to_contain_text("the server cannot be reached")


def test_a_key_is_asked_for_and_lives_in_this_tab_only(browser: Browser, codec: ChatCodec) -> None:
    script = Scripted(codec, settings=ServerSettings(api_keys=(KEY,)))
    with on_port(script.app) as url, opened(browser, url) as page:
        expect(page.locator("#welcome-model")).to_contain_text("wants an API key")
        ask(page, "hello")
        key = page.get_by_label("API key")
        expect(key).to_be_focused()
        expect(page.locator("#settings-note")).to_contain_text("a valid API key is wanted")
        key.fill(KEY)
        key.press("Enter")
        expect(page.locator("#settings")).to_be_hidden()
        expect(page.locator("#model")).to_have_text("DeepSeek-V4.1-Flash")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".prose")).to_have_text("Hi there")
        ended(page)
        stores: dict[str, Any] = page.evaluate("({local: {...localStorage}, session: {...sessionStorage}})")
        assert KEY not in json.dumps(stores["local"])
        assert [name for name, value in stores["session"].items() if KEY in value] == ["flash41.key"]
