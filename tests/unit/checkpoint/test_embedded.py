"""What the package ships of its own small models fits together."""

import json

from flash41.checkpoint.embedded import TOKENIZER_FILES, default_config, tiny_config, tiny_tokenizer_files
from flash41.config.topology import topology


def test_configuration_and_tokenizer_fit() -> None:
    files = tiny_tokenizer_files()
    assert tuple(files) == TOKENIZER_FILES
    document = json.loads(files["tokenizer.json"])
    assert len(document["model"]["vocab"]) < tiny_config().vocab_size
    assert tiny_config().dspark.num_stages == 3


def test_the_random_one_has_the_layers_of_the_default_at_half_its_width() -> None:
    tiny, default = tiny_config(), default_config()
    assert topology(tiny) == topology(default)
    assert 2 * tiny.hidden_size == default.hidden_size
