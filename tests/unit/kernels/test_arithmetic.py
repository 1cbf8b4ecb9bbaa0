"""The rules every reduction of the reference backend follows."""

import torch

from flash41.kernels.reference.arithmetic import inverse_rms, stored


def test_a_store_rounds_to_fp32_first_where_that_decides() -> None:
    # Just above the midpoint of two BF16 numbers in FP64, exactly on it in FP32: the tie goes to the even one.
    above = 1.0 + 2.0**-8 + 2.0**-40
    x = torch.tensor([above, -above, 1.0 + 2.0**-8 + 2.0**-20], dtype=torch.float64)
    assert stored(x, torch.bfloat16).tolist() == [1.0, -1.0, 1.0 + 2.0**-7]


def test_a_store_equals_the_way_over_fp32_around_every_midpoint() -> None:
    bits = torch.arange(65536, dtype=torch.int32) << 16
    values = bits.view(torch.float32).double()
    midpoints = (values[:-1] + values[1:]) / 2
    midpoints = midpoints[midpoints.isfinite()]
    x = torch.cat([midpoints * factor for factor in (1.0, 1.0 + 2.0**-26, 1.0 - 2.0**-26, 1.0 + 2.0**-50)])
    for shaped in (x, x.view(-1, 1)[::3], x.view(4, -1).t()):
        assert torch.equal(stored(shaped, torch.bfloat16), shaped.float().to(torch.bfloat16))


def test_the_inverse_root_mean_square_is_that_of_exact_squares() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.bfloat16)
    expected = torch.tensor([[12.5**-0.5], [1e10]], dtype=torch.float64)
    torch.testing.assert_close(inverse_rms(x, 1e-20), expected, rtol=1e-15, atol=0)
