import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from flash41.chat.image_pixels import GREY, bf16_values, content_size, letterbox, patches
from flash41.chat.image_plan import plan_image
from helpers.image_files import RELEASE_SIZES, SMALL_SIZES, pattern

DATA = Path(__file__).resolve().parents[2] / "data" / "chat"
VECTORS: dict[str, Any] = json.loads((DATA / "image_pixels.json").read_text(encoding="utf-8"))
INDEX: dict[str, Any] = json.loads((DATA / "image_plan.json").read_text(encoding="utf-8"))["patch_index"]


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.mark.parametrize("row", VECTORS["rows"], ids=lambda row: f"{row['width']}x{row['height']}")
def test_pixels_and_patches_are_the_published_ones(row: dict[str, Any]) -> None:
    image = Image.fromarray(pattern(row["width"], row["height"]))
    plan = plan_image(row["width"], row["height"], RELEASE_SIZES)
    assert [plan.width, plan.height] == row["resized"]
    assert list(content_size(row["width"], row["height"], plan)) == row["content"]
    pixels = np.asarray(letterbox(image, plan))
    assert sha256(pixels) == row["sha256_rgb"]
    found = bf16_values()[patches(pixels, 14)]
    assert list(found.shape) == row["patches"]
    assert found[0, :8].tolist() == row["patch0_first8"]
    assert sha256(found.astype("<u2")) == row["sha256_patches_bf16_le"]


def test_the_value_of_every_byte_is_the_published_one() -> None:
    assert bf16_values().tolist() == VECTORS["bf16_of_byte"]
    assert sha256(bf16_values().astype("<u2")) == VECTORS["bf16_of_byte_sha256_le"]
    exact = (np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    assert np.array_equal(bf16_values(), exact.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert bf16_values()[GREY[0]] == 0xBB81


def test_a_patch_is_channel_row_column_and_patches_go_row_after_row() -> None:
    pixels = pattern(42, 28)
    found = patches(pixels, 14)
    assert found.shape == (6, 588)
    for case in INDEX["cases"]:
        assert case["index"] == case["c"] * 196 + case["y"] * 14 + case["x"]
        for number in range(6):
            top, left = 14 * (number // 3), 14 * (number % 3)
            assert found[number, case["index"]] == pixels[top + case["y"], left + case["x"], case["c"]]


@settings(max_examples=60, deadline=None)
@given(width=st.integers(1, 400), height=st.integers(1, 400))
def test_a_letterbox_is_pillow_s_own_pad(width: int, height: int) -> None:
    image = Image.fromarray(pattern(width, height))
    plan = plan_image(width, height, SMALL_SIZES)
    expected = ImageOps.pad(image, (plan.width, plan.height), color=GREY)
    assert letterbox(image, plan).tobytes() == expected.tobytes()


def test_content_keeps_a_pixel_where_its_proportions_would_round_to_none() -> None:
    plan = plan_image(10_000, 1, SMALL_SIZES)
    assert content_size(10_000, 1, plan) == (882, 1)
    plan = plan_image(1, 10_000, SMALL_SIZES)
    assert content_size(1, 10_000, plan) == (1, 462)


def test_a_stretched_picture_fills_its_size() -> None:
    plan = replace(plan_image(200, 50, SMALL_SIZES), stretched=True)
    image = Image.fromarray(pattern(200, 50))
    assert letterbox(image, plan).tobytes() == image.resize((plan.width, plan.height), Image.BICUBIC).tobytes()
