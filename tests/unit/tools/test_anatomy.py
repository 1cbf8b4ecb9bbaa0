import dataclasses
import json

from flash41.tools.anatomy import STORAGE_FORMATS, UNNAMED, dissect
from flash41.tools.ledger_rows import Storage
from helpers.config_documents import release_config, tiny_config


def test_the_document_is_json_and_the_same_every_time() -> None:
    first, second = (json.dumps(dissect(tiny_config()).to_dict()) for _ in range(2))
    assert first == second
    assert json.loads(first)["config"]["hidden_size"] == tiny_config().hidden_size


def test_only_the_exact_release_has_its_name() -> None:
    assert dissect(release_config()).name == "DeepSeek-V4.1-Flash"
    longer = dataclasses.replace(release_config(), max_positions=2 * release_config().max_positions)
    assert dissect(longer).name == UNNAMED


def test_categories_owners_and_storage_add_up_to_the_total() -> None:
    document = dissect(tiny_config()).to_dict()
    for key, field in (("parameters", "num_parameters"), ("bytes", "num_bytes"), ("tensors", "num_tensors")):
        counts = document[key]
        assert isinstance(counts, dict)
        assert sum(counts["by_category"].values()) == counts["total"]
        assert sum(counts["by_owner"].values()) == counts["total"]
        storage = document["quantization"]
        assert isinstance(storage, dict)
        assert sum(one[field] for one in storage.values()) == counts["total"]


def test_every_storage_class_has_a_format() -> None:
    assert set(STORAGE_FORMATS) == set(Storage)


def test_scales_are_counted_with_their_codes() -> None:
    storage = dissect(release_config()).ledger.storage
    # 384 and 128 experts of three matrices in 40 and 3 layers, codes and scales.
    assert storage[Storage.FP4_EXPERTS].num_tensors == 2 * 3 * (40 * 384 + 3 * 128)
    assert storage[Storage.FP8_ROWS].num_tensors == 2 * 2
