"""Anatomies of the released and the small configuration, taken apart once."""

from typing import Any

import pytest

from flash41.tools.anatomy import Anatomy, dissect
from flash41.tools.anatomy_page.document import page_document
from helpers.config_documents import release_config, tiny_config


@pytest.fixture(scope="session")
def release() -> Anatomy:
    return dissect(release_config())


@pytest.fixture(scope="session")
def release_document(release: Anatomy) -> dict[str, Any]:
    return page_document(release, "release")


@pytest.fixture(scope="session")
def tiny() -> Anatomy:
    return dissect(tiny_config())
