"""Pictures in messages of the page."""

import base64
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from flash41.chat.conversation import ChatCodec
from flash41.chat.images import picture
from helpers.browser import opened, until
from helpers.http_server import on_port
from helpers.image_files import SMALL_SIZES, encoded, pattern
from helpers.serving import Scripted, facts
from helpers.web_page import ask, ended, prompt_of

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
