import json
from importlib.resources import files

from flash41.checkpoint.release import RELEASE_FILE, release_config
from flash41.config.huggingface import config_to_dict
from helpers import config_documents


def test_the_shipped_file_is_the_released_one() -> None:
    shipped = files("flash41.checkpoint") / "data" / RELEASE_FILE
    assert shipped.read_text(encoding="utf-8") == config_documents.release_text()


def test_it_is_read_like_any_other_config() -> None:
    assert release_config() == config_documents.release_config()
    assert config_to_dict(release_config()) == json.loads(config_documents.release_text())
