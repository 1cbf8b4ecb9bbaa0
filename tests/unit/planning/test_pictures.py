from dataclasses import replace

import pytest

from flash41.config.architecture import ModelConfig
from flash41.config.run import Profile, RunWish
from flash41.errors import CapacityError
from flash41.kernels.reference import full_attention
from flash41.model import vision
from flash41.planning import pictures
from flash41.planning.pictures import encoder_bytes, picture_plan
from flash41.planning.resolve import resolve
from helpers.config_documents import release_config, tiny_config

ROW = 5120 * 2
"""Bytes of a row of the release."""


def plan(config: ModelConfig | None = None, **values: object) -> pictures.PicturePlan:
    return picture_plan(RunWish(**{"images": True, **values}), config or release_config())


def test_a_run_that_takes_no_pictures_needs_nothing_for_them() -> None:
    found = plan(images=False)
    assert (found.num_rows, found.num_patches, found.rows_bytes, found.encoder_bytes) == (0, 0, 0, 0)
    assert not [choice for choice in resolve(RunWish(), tiny_config()).choices if "picture" in choice.name]


def test_rows_of_eight_of_the_largest_pictures_are_kept() -> None:
    found = plan()
    assert found.num_rows == 8 * 1024
    assert found.rows_bytes == 8 * 1024 * ROW == 83_886_080
    assert found.num_patches == 9 * 1024 >= 9_189  # the largest grid there is
    assert "10,240 bytes each, enough for 8 of the largest pictures; a step encodes 9,216 patches" in found.reason


@pytest.mark.parametrize(("budget", "count"), [(1 << 20, 1), (16 * 1024 * ROW * 3, 3), (1 << 40, 8)])
def test_a_budget_gives_a_sixteenth_and_room_for_one_always(budget: int, count: int) -> None:
    assert plan(memory_bytes=budget).num_rows == count * 1024


def test_rows_are_four_bytes_wide_where_nothing_is_stored_in_two() -> None:
    assert plan(profile=Profile.FP32).rows_bytes == 2 * plan().rows_bytes


def test_what_the_encoder_holds_follows_from_the_bands_of_its_kernels() -> None:
    assert pictures.LOGITS_PER_BAND == full_attention.LOGITS_PER_BAND
    assert pictures.ROWS_PER_BAND == vision.ROWS_PER_BAND
    config = release_config().vision
    assert encoder_bytes(config, 9_216, 2) == 9_216 * 8 * 1024 * 2 + (1 << 22) * 64 + 256 * 2 * 2816 * 80
    assert encoder_bytes(config, 10, 2) == 10 * 8 * 1024 * 2 + 100 * 64 + 10 * 2 * 2816 * 80


def test_the_plan_counts_rows_within_the_budget_and_shows_them() -> None:
    config, budget = release_config(), 4 << 30
    wish = RunWish(images=True, max_num_seqs=4, memory_bytes=budget)
    shown, text = resolve(wish, config), resolve(replace(wish, images=False), config)
    assert shown.pictures.rows_bytes > 0
    assert shown.total_bytes <= budget
    assert text.total_bytes <= budget
    assert shown.num_pages <= text.num_pages
    names = [choice.name for choice in shown.choices]
    assert names[names.index("images") + 1 :][:2] == ["rows of pictures", "image encoder bytes"]


def test_a_budget_that_rows_would_fill_is_refused_with_what_it_takes() -> None:
    with pytest.raises(
        CapacityError,
        match=r"cache budget in bytes: got 1048576, expected at least [0-9]{8} for 1 STATE .* and one picture",
    ):
        resolve(RunWish(images=True, max_num_seqs=1, memory_bytes=1 << 20), release_config())
