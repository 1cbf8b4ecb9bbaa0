"""What tests of the page share: what a model might say on it, and what a user does."""

from playwright.sync_api import Page, expect

from helpers.serving import Scripted

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
