"""Pages in a real browser, which all tests of this folder share: its start takes longer than most of them.

The folder is a package so that the browser ends with its last test: while Playwright is there, its thread has an event
loop, beside which tests elsewhere could not run another.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from flash41.chat.conversation import ChatCodec
from helpers.browser import executable, launched
from helpers.serving import small_codec


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = executable()
    if path is None:
        pytest.skip("no chromium on this machine: the pages are tested where there is one")
    with launched(path) as found:
        yield found


@pytest.fixture(scope="package")
def codec() -> ChatCodec:
    return small_codec()
