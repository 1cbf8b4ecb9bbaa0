import pytest

from flash41.chat.conversation import ChatCodec
from helpers.default_fixtures import tiny_directory
from helpers.serving import small_codec

__all__ = ["tiny_directory"]


@pytest.fixture(scope="session")
def codec() -> ChatCodec:
    return small_codec()
