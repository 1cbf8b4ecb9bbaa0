from pathlib import Path

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from helpers.release_tokenizer import release_tokenizer_text
from helpers.serving import small_codec as serving_codec

RELEASE_IMAGE_ID = 129264


@pytest.fixture(scope="session")
def release_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("release-tokenizer")
    (directory / "tokenizer.json").write_text(release_tokenizer_text(), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def release(release_directory: Path) -> Tokenizer:
    return Tokenizer.from_file(release_directory / "tokenizer.json")


@pytest.fixture(scope="session")
def release_codec(release_directory: Path) -> ChatCodec:
    return ChatCodec.from_directory(release_directory, RELEASE_IMAGE_ID)


@pytest.fixture(scope="session")
def small_codec() -> ChatCodec:
    return serving_codec()
