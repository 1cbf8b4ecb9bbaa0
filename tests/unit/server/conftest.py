import pytest

from flash41.chat.conversation import ChatCodec
from helpers.default_fixtures import default_cache, default_directory
from helpers.serving import default_codec

__all__ = ["default_cache", "default_directory"]


@pytest.fixture(scope="session")
def codec() -> ChatCodec:
    return default_codec()
