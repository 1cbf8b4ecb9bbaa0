"""The page in a real browser, over a scripted service that plays what a model might say, and over the real one."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from flash41.chat.conversation import ChatCodec
from flash41.chat.images import picture
from flash41.server.service import Job
from flash41.server.settings import ServerSettings
from helpers.browser import executable, launched, opened, until
from helpers.config_documents import tiny_config
from helpers.http_server import on_port
from helpers.image_files import SMALL_SIZES, encoded, pattern
from helpers.server_process import ServerProcess, serving
from helpers.serving import Scripted, default_codec, facts

KEY = "a-key-of-the-tests-0123"
CALLS = (
    "I should look.</think>Let me look.\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n'
    '<｜DSML｜ invoke name="get_time">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'
)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("get_weather", "get_time")
]
EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = executable()
    if path is None:
        pytest.skip("no chromium on this machine: the page is tested where there is one")
    with launched(path) as found:
        yield found


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return default_codec()


@pytest.fixture(scope="module")
def server(default_cache: Path) -> Iterator[ServerProcess]:
    with serving(default_cache, "--block-size", "32", "--state-image-interval", "32", "--max-num-seqs", "2") as found:
        yield found


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def ended(page: Page, number: int = 1) -> None:
    """Waits for the end of the answer of that number."""
    expect(page.locator(".answer:not(.open)")).to_have_count(number)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def prompt_of(server: Scripted, number: int = -1) -> str:
    """The text of a prompt that the service was given."""
    return server.codec.tokenizer.decode(list(server.service.jobs[number].prompt_ids))


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
        page.wait_for_timeout(300)
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


# Hostile text.


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


# Pictures.


PNG, OTHER = encoded(pattern(60, 45)), encoded(pattern(40, 90))
GIVE = """
([way, files]) => {
  const data = new DataTransfer();
  for (const [name, type, text] of files) {
    const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    data.items.add(new File([bytes], name, { type }));
  }
  const settings = { bubbles: true, cancelable: true };
  const event = way === "paste"
    ? new ClipboardEvent("paste", { ...settings, clipboardData: data })
    : new DragEvent(way, { ...settings, dataTransfer: data });
  document.getElementById("prompt").dispatchEvent(event);
  return event.defaultPrevented;
}
"""


def give(page: Page, way: str, *files: tuple[str, str, bytes]) -> bool:
    """Pastes or drops files on the message field; whether the page took the event."""
    found = [[name, kind, base64.b64encode(data).decode()] for name, kind, data in files]
    taken: bool = page.evaluate(GIVE, [way, found])
    return taken


def showing(codec: ChatCodec) -> Scripted:
    image = codec.tokenizer.id_of("<｜deepseek_image｜>")
    return Scripted(codec, model=facts(image_sizes=SMALL_SIZES, image_token_id=image))


def test_pictures_are_chosen_pasted_and_dropped_and_sent_in_front_of_the_text(
    browser: Browser, codec: ChatCodec, tmp_path: Path
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(PNG)
    script = showing(codec)
    with on_port(script.app) as url, opened(browser, url) as page:
        waiting = page.locator("#attached img")
        page.locator("#choose").set_input_files(file)
        expect(waiting).to_have_count(1)
        assert give(page, "paste", ("b.png", "image/png", OTHER))
        expect(waiting).to_have_count(2)
        assert give(page, "dragover", ("c.png", "image/png", PNG))
        assert give(page, "drop", ("c.png", "image/png", PNG))
        expect(waiting).to_have_count(3)
        page.get_by_role("button", name="Remove picture 3").click()
        expect(waiting).to_have_count(2)
        ask(page, "What are these?")
        ended(page)
        expect(waiting).to_have_count(0)
        expect(page.locator(".user .pictures img")).to_have_count(2)
        until(page, "[...document.querySelectorAll('.user img')].every((one) => one.naturalWidth > 0)")
        (job,) = script.service.jobs
        assert [one.identity for one in job.pictures] == [picture(data, SMALL_SIZES).identity for data in (PNG, OTHER)]
        text = prompt_of(script)
        assert text.index("<｜deepseek_image｜>") < text.index("What are these?")
        ask(page, "And now?")
        ended(page, 2)
        assert script.service.jobs[1].pictures[0].identity == job.pictures[0].identity


def test_a_picture_alone_is_a_message_and_comes_back_when_it_is_edited(browser: Browser, codec: ChatCodec) -> None:
    script = showing(codec)
    with on_port(script.app) as url, opened(browser, url) as page:
        send = page.get_by_role("button", name="Send")
        expect(send).to_be_disabled()
        give(page, "paste", ("a.png", "image/png", PNG))
        send.click()
        ended(page)
        assert len(script.service.jobs[0].pictures) == 1
        page.reload()
        expect(page.locator(".user .pictures img")).to_have_count(1)
        page.locator(".user").hover()
        page.get_by_role("button", name="Edit").click()
        expect(page.locator("#attached img")).to_have_count(1)
        expect(page.locator(".turn")).to_have_count(0)


def test_what_is_no_picture_is_left_out_and_told(browser: Browser, codec: ChatCodec) -> None:
    with on_port(showing(codec).app) as url, opened(browser, url) as page:
        evil = ("a.svg", "image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned=1'/>")
        give(page, "drop", evil, ("a.png", "image/png", PNG), ("a.txt", "text/plain", b"text"))
        expect(page.locator("#attached img")).to_have_count(1)
        expect(page.get_by_role("alert").filter(has_text="Only PNG")).to_be_visible()
        assert page.evaluate("window.pwned") is None


def test_a_broken_picture_is_refused_in_the_servers_words(browser: Browser, codec: ChatCodec) -> None:
    with on_port(showing(codec).app) as url, opened(browser, url) as page:
        give(page, "paste", ("a.png", "image/png", PNG[:60]))
        ask(page, "What is this?")
        ended(page)
        expect(page.locator(".failure")).to_contain_text("image 1 (messages[0])")


# Settings.


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


# Hands and eyes.


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


def test_the_embedded_default_answers_as_it_does_everybody(browser: Browser, server: ServerProcess) -> None:
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
