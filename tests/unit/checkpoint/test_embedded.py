"""What the package ships of the embedded default fits together."""

import json

from flash41.checkpoint.embedded import TOKENIZER_FILES, tiny_config, tiny_tokenizer_files


def test_configuration_and_tokenizer_fit() -> None:
    files = tiny_tokenizer_files()
    assert tuple(files) == TOKENIZER_FILES
    document = json.loads(files["tokenizer.json"])
    assert len(document["model"]["vocab"]) < tiny_config().vocab_size
    assert tiny_config().dspark.num_stages == 3
