import pytest

from flash41.chat.conversation import ChatCodec
from helpers.serving import default_codec


@pytest.fixture(scope="session")
def codec() -> ChatCodec:
    return default_codec()
