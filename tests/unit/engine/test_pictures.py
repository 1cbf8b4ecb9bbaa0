import ml_dtypes
import numpy as np
import pytest
import torch

from flash41.config.run import Profile
from flash41.engine.pictures import encode, patch_values
from helpers.golden_judge import CHECKPOINT
from helpers.models import Models
from helpers.picturing import drawn


def test_patch_values_are_bf16_of_the_bytes() -> None:
    picture = drawn(60, 45)
    exact = (picture.patches.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    got = patch_values(picture)
    assert got.dtype is torch.bfloat16
    assert np.array_equal(got.view(torch.uint16).numpy(), exact.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("profile", [Profile.VENDOR, Profile.FP32])
def test_a_picture_has_one_row_for_each_position(profile: Profile, models: Models) -> None:
    model, picture = models(CHECKPOINT, profile), drawn(60, 45)
    assert model.encoder is not None
    rows = encode(model.encoder, picture)
    assert rows.shape == (picture.plan.num_tokens, model.config.hidden_size)
    assert rows.dtype is model.dtype
    assert torch.equal(rows, encode(model.encoder, picture))
