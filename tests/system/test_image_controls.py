"""One mechanism of the tower is replaced at a time, and the judge of goldens must reject."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from flash41.config.run import Profile
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model import build_vision, image_encoder, vision
from flash41.model.batch import Angles
from flash41.model.vision import BiasedLinear, Grid
from helpers.golden_judge import distance, load_case, module_faults, t1_faults
from helpers.models import fresh_model
from helpers.picturing import fed, golden_pictures, pictured

CASE = load_case("images_two")


def rejected(kernels: type[ReferenceKernels] = ReferenceKernels) -> tuple[bool, bool]:
    """Whether the rows of the pictures and the logits of the prompt are refused."""
    model = fresh_model(Profile.FP32, kernels)
    pictures = golden_pictures(CASE)
    one = pictured(model, CASE.arrays["prompt_ids"].tolist(), pictures)
    rows = [
        module_faults(one.rows[picture.identity].numpy(), CASE.arrays[f"fp32/image{number}/rows"], exact=True)
        for number, picture in enumerate(pictures)
    ]
    logits = distance(fed(model, one).numpy(), CASE.arrays["logits_fp32"])
    assert logits.is_finite
    return any(rows), bool(t1_faults(logits))


def test_the_tower_as_it_is_is_accepted() -> None:
    assert rejected() == (False, False)


def test_a_row_major_fold_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold(x: Tensor, grid: Grid, ratio: int) -> Tensor:
        squares = image_encoder_fold(x, grid, ratio)
        return squares.view(len(squares), -1, ratio * ratio).transpose(1, 2).flatten(1)

    image_encoder_fold = image_encoder.fold
    monkeypatch.setattr(image_encoder, "fold", fold)
    assert rejected() == (True, True)


def test_columns_before_rows_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    angles = Grid.angles

    def swapped(self: Grid, head_dim: int, theta: float) -> Angles:
        cos, sin = (part.chunk(2, -1) for part in angles(self, head_dim, theta))
        return torch.cat((cos[1], cos[0]), -1), torch.cat((sin[1], sin[0]), -1)

    monkeypatch.setattr(Grid, "angles", swapped)
    assert rejected() == (True, True)


def test_an_interleaved_rotation_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "rotate_halves", lambda x, angles: ReferenceKernels.rotate(x, *angles))
    assert rejected() == (True, True)


def test_no_rotation_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "rotate_halves", lambda x, _angles: x)
    assert rejected() == (True, True)


def test_a_missing_bias_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = BiasedLinear.forward

    def without(self: BiasedLinear, x: Tensor) -> Tensor:
        self.bias = None
        return forward(self, x)

    monkeypatch.setattr(BiasedLinear, "forward", without)
    assert rejected() == (True, True)


class WithCausalAttention(ReferenceKernels):
    @staticmethod
    def full_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        heads = (part.transpose(0, 1) for part in (q, k, v))
        return functional.scaled_dot_product_attention(*heads, is_causal=True, scale=scale).transpose(0, 1)


def test_causal_attention_inside_a_picture_is_rejected() -> None:
    assert rejected(WithCausalAttention) == (True, True)


class WithTwiceTheScale(ReferenceKernels):
    @staticmethod
    def full_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return ReferenceKernels.full_attention(q, k, v, 2 * scale)


def test_another_softmax_scale_is_rejected() -> None:
    assert rejected(WithTwiceTheScale) == (True, True)


def test_an_approximate_gelu_is_rejected_by_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # Too near for logits: tanh and erf differ by 5e-4 at most.
    monkeypatch.setattr(image_encoder, "gelu", lambda x: functional.gelu(x, approximate="tanh"))
    assert rejected()[0]


def test_the_epsilon_of_the_text_model_is_rejected_by_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_vision, "VISION_NORM_EPS", 1e-2)
    assert rejected()[0]
