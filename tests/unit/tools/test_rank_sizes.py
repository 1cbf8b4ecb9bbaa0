import pytest

from flash41.errors import ConfigError
from flash41.tools.rank_sizes import rank_sizes
from helpers.checkpoints import published
from helpers.config_documents import release_config, tiny_config


@pytest.mark.parametrize("row", published()["tensor_parallel"], ids=lambda row: f"tp{row['tp']}")
def test_what_a_rank_holds_to_the_byte(row: dict[str, int]) -> None:
    sizes = rank_sizes(release_config(), row["tp"])
    assert sizes.num_tensors == row["tensors"]
    assert sizes.num_replicated == row["replicated"]
    assert sizes.backbone_bytes == row["backbone_bytes"]
    assert sizes.engram_bytes == row["engram_bytes"]


def test_ranks_of_a_small_model_hold_less_than_the_whole() -> None:
    one, two = rank_sizes(tiny_config(), 1), rank_sizes(tiny_config(), 2)
    assert one.num_tensors == 1568 - 4 - 13
    assert two.num_replicated == one.num_replicated
    assert one.backbone_bytes / 2 < two.backbone_bytes < one.backbone_bytes


@pytest.mark.parametrize(("world", "words"), [(0, "expected >= 1"), (3, "o_groups"), (16, "o_groups: got 8")])
def test_sizes_that_do_not_divide_the_model_are_refused(world: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rank_sizes(release_config(), world)
