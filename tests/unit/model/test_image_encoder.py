import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.image_encoder import Aligner, ImageEncoder, fold
from flash41.model.vision import BiasedLinear, Grid
from helpers.tensors import normal

DATA = Path(__file__).resolve().parents[2] / "data" / "chat"
FOLD = json.loads((DATA / "image_plan.json").read_text(encoding="utf-8"))["aligner_fold"]
KERNELS = ReferenceKernels()


def test_a_square_folds_channel_by_channel() -> None:
    x = torch.arange(3 * 3 * 1024, dtype=torch.float32).view(9, 1024)
    (square,) = fold(x, Grid(height=3, width=3), 3)
    assert len(square) == 9216
    for case in FOLD["cases"]:
        assert square[case["index"]] == x[case["ky"] * 3 + case["kx"], case["c"]]


def test_squares_go_row_after_row_and_missing_patches_are_zero() -> None:
    grid = Grid(height=4, width=5)
    x = normal(20, 2, seed=1)
    squares = fold(x, grid, 3).view(2, 2, 2, 3, 3)  # rows, columns, channel, y, x
    for row in range(2):
        for column in range(2):
            for y in range(3):
                for across in range(3):
                    top, left = 3 * row + y, 3 * column + across
                    inside = top < 4 and left < 5
                    expected = x[top * 5 + left] if inside else torch.zeros(2, dtype=x.dtype)
                    assert torch.equal(squares[row, column, :, y, across], expected)


def test_the_aligner_opens_with_the_exact_gelu() -> None:
    one = torch.eye(4, 4 * 4, dtype=torch.float32)
    aligner = Aligner(
        BiasedLinear(one, torch.zeros(4), KERNELS), BiasedLinear(torch.eye(4), torch.full((4,), 0.5), KERNELS), 2
    )
    x = torch.tensor([[-3.0, 0.0, 1.0, 2.0]]).T.repeat(1, 4)  # four patches, four channels
    (got,) = aligner(x, Grid(height=2, width=2))
    expected = [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) + 0.5 for v in (-3.0, 0.0, 1.0, 2.0)]
    assert got.tolist() == pytest.approx(expected, rel=1e-7)


class Identity(torch.nn.Module):
    """A tower that hands its values on."""

    def forward(self, values: Tensor, _grid: Grid, _probe: object) -> Tensor:
        return values


class Counting(torch.nn.Module):
    """An aligner whose tokens are their own numbers."""

    ratio = 3

    def forward(self, _x: Tensor, grid: Grid) -> Tensor:
        count = -(-grid.height // 3) * -(-grid.width // 3)
        return torch.arange(count, dtype=torch.float32).view(-1, 1)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (6, 7, [-1, 0, 1, 2, -2, 3, 4, 5, -2, -3]),
        (1, 1, [-1, 0, -2, -3]),
        (7, 3, [-1, 0, -2, 1, -2, 2, -2, -3]),
    ],
)
def test_a_span_is_start_rows_with_newlines_and_end(height: int, width: int, expected: list[int]) -> None:
    start, newline, end = (torch.tensor([value], dtype=torch.bfloat16) for value in (-1.0, -2.0, -3.0))
    encoder = ImageEncoder(Identity(), Counting(), start=start, newline=newline, end=end, dtype=torch.float32)  # type: ignore[arg-type]
    rows = encoder(torch.zeros(height * width, 588), Grid(height=height, width=width))
    assert rows.dtype is torch.float32
    assert rows[:, 0].tolist() == expected
