import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flash41.chat.image_errors import ImageError, ImageFault
from flash41.chat.image_plan import ImageSizes, low_detail, plan_image
from helpers.image_files import RELEASE_SIZES, SMALL_SIZES

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[2] / "data" / "chat" / "image_plan.json").read_text(encoding="utf-8")
)
SIDES = st.integers(1, 10_000)


@pytest.mark.parametrize(
    "row", VECTORS["plans"] + VECTORS["derived"], ids=lambda row: f"{row['width']}x{row['height']}"
)
def test_a_plan_is_the_published_one(row: dict[str, int]) -> None:
    plan = plan_image(row["width"], row["height"], RELEASE_SIZES)
    assert (plan.width, plan.height) == (row["resized_w"], row["resized_h"])
    assert (plan.grid_height, plan.grid_width) == (row["vit_h"], row["vit_w"])
    assert (plan.token_rows, plan.token_columns, plan.num_tokens) == (row["llm_h"], row["llm_w"], row["tokens"])
    assert plan.num_patches == row["vit_h"] * row["vit_w"]
    assert not plan.stretched


def test_there_are_enough_published_plans() -> None:
    assert len(VECTORS["plans"]) >= 40
    assert len(VECTORS["derived"]) == 5


def test_low_detail_shrinks_before_planning() -> None:
    expected = VECTORS["low_detail"]
    plan = plan_image(*low_detail(*expected["source"]), RELEASE_SIZES)
    assert [plan.width, plan.height] == expected["resized"]
    assert plan.num_tokens == expected["tokens"]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((512, 300), (512, 300)),
        ((513, 1), (512, 1)),
        ((1, 9999), (1, 512)),
        ((1023, 333), (512, 167)),
        ((5, 5), (5, 5)),
    ],
)
def test_low_detail_leaves_small_pictures_and_a_pixel_at_least(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert low_detail(*size) == expected


def test_a_span_is_start_rows_with_newlines_and_end() -> None:
    vector = VECTORS["span"]
    plan = plan_image(60, 45, SMALL_SIZES)
    assert (plan.token_rows, plan.token_columns) == (vector["llm_h"], vector["llm_w"])
    assert list(plan.types) == vector["types"]
    assert len(plan.types) == plan.num_tokens == vector["tokens"]


def test_equal_costs_do_not_mean_equal_grids() -> None:
    first, second = plan_image(28, 14, RELEASE_SIZES), plan_image(1152, 128, RELEASE_SIZES)
    assert first.num_tokens == second.num_tokens == 202
    assert first.types != second.types


@pytest.mark.parametrize("sizes", [RELEASE_SIZES, SMALL_SIZES], ids=["release", "small"])
@settings(max_examples=300, deadline=None)
@given(width=SIDES, height=SIDES)
@example(width=10_000, height=1)
@example(width=1, height=10_000)
@example(width=10_000, height=10_000)
def test_every_picture_up_to_the_allowed_sides_has_a_plan_within_the_cost(
    sizes: ImageSizes, width: int, height: int
) -> None:
    plan = plan_image(width, height, sizes)
    assert plan.token_rows * plan.token_columns >= 1
    assert plan.num_tokens <= sizes.max_tokens
    assert (plan.width, plan.height) == (14 * plan.grid_width, 14 * plan.grid_height)
    assert plan.token_columns == -(-plan.grid_width // 3)
    assert plan.token_rows == -(-plan.grid_height // 3)


def test_a_wide_picture_is_planned_as_if_it_were_narrower_where_the_model_says_so() -> None:
    sizes = replace(RELEASE_SIZES, max_wh_ratio=2.0)
    wide = plan_image(4000, 1000, sizes)
    assert wide.stretched
    assert replace(wide, stretched=False) == plan_image(2000, 1000, sizes) == plan_image(2000, 1000, RELEASE_SIZES)
    assert plan_image(1000, 4000, sizes) == plan_image(1000, 4000, RELEASE_SIZES)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_a_picture_without_pixels_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ImageError, match=r"image size: got '.*', expected at least one pixel") as caught:
        plan_image(*size, RELEASE_SIZES)
    assert caught.value.kind is ImageFault.EMPTY


def test_a_cost_below_the_smallest_span_is_refused_by_name() -> None:
    with pytest.raises(ImageError, match="expected proportions that fit 3 positions") as caught:
        plan_image(100, 100, replace(RELEASE_SIZES, max_tokens=3))
    assert caught.value.kind is ImageFault.DIMENSIONS
