import math

import pytest
import torch

from flash41.errors import KernelError
from flash41.numerics.formats import e2m1_value, e4m3_value, e8m0_value
from flash41.numerics.scaled import ElementFormat, Quantized, ScaleFormat

E4M3, E2M1 = ElementFormat.E4M3, ElementFormat.E2M1
# As many channels as a routed expert's matrices hold together: three of 2304 x 5120.
EXPERT_WIDTH, HIDDEN = 2304, 5120


def random_codes(*shape: int) -> torch.Tensor:
    """Any byte but the two NaN codes of E4M3."""
    return torch.randint(0, 0x7F, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(sum(shape)))


def random_scales(scale: ScaleFormat, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7 + sum(shape))
    if scale is ScaleFormat.FP32:
        return torch.randn(shape, generator=generator)
    return torch.randint(100, 0x7F, shape, dtype=torch.uint8, generator=generator)


def dense(num_rows: int, width: int) -> Quantized:
    return Quantized(
        codes=random_codes(num_rows, width),
        scales=random_scales(ScaleFormat.E8M0, math.ceil(num_rows / 32), math.ceil(width / 32)),
        element=E4M3,
        scale=ScaleFormat.E8M0,
        group=(32, 32),
    )


def expert(num_rows: int, width: int) -> Quantized:
    return Quantized(
        codes=random_codes(num_rows, width // 2),
        scales=random_scales(ScaleFormat.E8M0, num_rows, math.ceil(width / 32)),
        element=E2M1,
        scale=ScaleFormat.E8M0,
        group=(1, 32),
    )


def one_by_one(q: Quantized) -> list[list[float]]:
    """The definition, channel by channel, for a matrix."""
    rows, channels = q.group
    codes, scales = q.codes.tolist(), q.scales.tolist()
    decode = {ScaleFormat.E8M0: e8m0_value, ScaleFormat.E4M3: e4m3_value, ScaleFormat.FP32: float}[q.scale]

    def element(n: int, k: int) -> float:
        if q.element is E4M3:
            return e4m3_value(codes[n][k])
        return e2m1_value(codes[n][k // 2] >> 4 * (k % 2) & 0xF)

    num_rows, width = q.shape
    return [[element(n, k) * decode(scales[n // rows][k // channels]) for k in range(width)] for n in range(num_rows)]


@pytest.mark.parametrize(("element", "scale"), [(e, s) for e in ElementFormat for s in ScaleFormat])
@pytest.mark.parametrize("group", [(1, 16), (1, 32), (2, 8), (32, 32)])
@pytest.mark.parametrize(("num_rows", "width"), [(32, 64), (3, 32), (33, 40), (1, 2)])
def test_every_combination_of_formats_and_groups_is_codes_times_scales(
    element: ElementFormat, scale: ScaleFormat, group: tuple[int, int], num_rows: int, width: int
) -> None:
    scale_shape = (math.ceil(num_rows / group[0]), math.ceil(width / group[1]))
    codes = random_codes(num_rows, width // 2 if element is E2M1 else width)
    q = Quantized(codes=codes, scales=random_scales(scale, *scale_shape), element=element, scale=scale, group=group)
    expected = torch.tensor(one_by_one(q), dtype=torch.float64)
    assert q.shape == (num_rows, width)
    assert torch.equal(q.dequantize(torch.float64), expected)
    # The exact product, rounded to FP32 once; only arbitrary FP32 scales leave anything to round.
    assert torch.equal(q.dequantize(), expected.float())
    assert torch.equal(q.dequantize(torch.bfloat16), expected.float().bfloat16())


def test_values_and_scale_values_are_the_two_factors() -> None:
    q = expert(4, 64)
    factors = q.values().unflatten(-1, (2, 32)) * q.scale_values().unsqueeze(-1)
    assert q.values(torch.bfloat16).dtype is torch.bfloat16
    assert q.scale_values(torch.float64).dtype is torch.float64
    assert q.values().shape == (4, 64)
    assert q.scale_values().shape == (4, 2)
    assert torch.equal(factors.flatten(-2), q.dequantize())


def test_a_tile_may_hold_every_extreme_scale_at_once() -> None:
    scale_bytes = torch.tensor([[0, 110, 127, 254, 255]], dtype=torch.uint8)
    codes = torch.full((32, 160), 0x38, dtype=torch.uint8)  # 1.0
    codes[0, ::2] = 0x01  # 2^-9: with byte 0 the product is 2^-136, a subnormal of FP32
    q = Quantized(codes=codes, scales=scale_bytes, element=E4M3, scale=ScaleFormat.E8M0, group=(32, 32))
    for dtype in (torch.float32, torch.float64):
        values = q.dequantize(dtype)
        assert values[1, [0, 32, 64, 96]].tolist() == [2.0**-127, 2.0**-17, 1.0, 2.0**127]
        assert values[0, [0, 32, 64, 96]].tolist() == [2.0**-136, 2.0**-26, 2.0**-9, 2.0**118]
        assert values[:, 128:].isnan().all()
        assert not values[:, :128].isnan().any()


def test_a_scale_byte_is_an_exponent_not_a_number() -> None:
    codes = torch.full((32, 32), 0x38, dtype=torch.uint8)
    scales = torch.tensor([[120]], dtype=torch.uint8)
    q = Quantized(codes=codes, scales=scales, element=E4M3, scale=ScaleFormat.E8M0, group=(32, 32))
    assert q.dequantize().unique().tolist() == [2.0**-7]


def test_dequantizing_leaves_codes_and_scales_as_they_were() -> None:
    q = dense(64, 64)
    codes, scales = q.codes.clone(), q.scales.clone()
    first = q.dequantize()
    assert torch.equal(q.dequantize(), first)
    assert torch.equal(q.codes, codes)
    assert torch.equal(q.scales, scales)


@pytest.mark.parametrize(("first", "last"), [(0, 32), (32, 96), (64, 100), (0, 100), (32, 32)])
def test_a_cut_between_groups_of_rows_dequantizes_to_the_same_rows(first: int, last: int) -> None:
    q = dense(100, 64)
    part = q.slice_rows(first, last)
    assert part.shape == (last - first, 64)
    assert torch.equal(part.dequantize(), q.dequantize()[first:last])
    assert part.codes.untyped_storage().data_ptr() == q.codes.untyped_storage().data_ptr()


@pytest.mark.parametrize(("first", "last"), [(1, 32), (0, 31), (32, 0), (-32, 32), (0, 128)])
def test_a_cut_inside_a_group_or_outside_the_tensor_is_refused(first: int, last: int) -> None:
    with pytest.raises(KernelError, match="multiples of 32 in order, at most 100"):
        dense(100, 64).slice_rows(first, last)


def test_rows_of_one_row_groups_can_be_cut_anywhere() -> None:
    q = expert(7, 64)
    assert torch.equal(q.slice_rows(3, 6).dequantize(), q.dequantize()[3:6])


@pytest.mark.parametrize("index", [torch.tensor([4, 0, 4]), torch.arange(7) % 2 == 0, slice(2, 5)])
def test_selected_rows_keep_their_own_scales(index: torch.Tensor | slice) -> None:
    q = expert(7, 64)
    assert torch.equal(q.rows(index).dequantize(), q.dequantize()[index])


def test_rows_that_share_scales_cannot_be_selected_one_by_one() -> None:
    with pytest.raises(KernelError, match="rows sharing a scale: got 32"):
        dense(64, 64).rows(torch.tensor([0]))


@pytest.mark.parametrize(
    ("codes", "scales", "group", "element"),
    [
        ((64, 64), (64, 2), (32, 32), E4M3),
        ((64, 64), (2, 64), (32, 32), E4M3),
        ((64, 64), (1, 1), (128, 128), E2M1),
        ((4, 64), (4, 2), (1, 32), E2M1),
        ((3, 4, 64), (4, 2), (1, 32), E4M3),
        ((33, 64), (1, 2), (32, 32), E4M3),
    ],
)
def test_scales_that_do_not_fit_their_codes_are_refused_unless_they_do(codes, scales, group, element) -> None:
    def build(scale_shape: tuple[int, ...]) -> Quantized:
        return Quantized(
            codes=torch.zeros(codes, dtype=torch.uint8),
            scales=torch.zeros(scale_shape, dtype=torch.uint8),
            element=element,
            scale=ScaleFormat.E8M0,
            group=group,
        )

    width = codes[-1] * (2 if element is E2M1 else 1)
    right = (*codes[:-2], math.ceil(codes[-2] / group[0]), math.ceil(width / group[1]))
    assert build(right).dequantize().shape == (*codes[:-1], width)
    if scales != right:
        with pytest.raises(KernelError, match="shape of scales for codes"):
            build(scales)


@pytest.mark.parametrize(
    ("codes", "scales", "scale"),
    [
        (torch.int8, torch.uint8, ScaleFormat.E8M0),
        (torch.uint8, torch.float32, ScaleFormat.E8M0),
        (torch.uint8, torch.uint8, ScaleFormat.FP32),
        (torch.uint8, torch.bfloat16, ScaleFormat.FP32),
    ],
)
def test_bytes_of_another_dtype_are_refused(codes: torch.dtype, scales: torch.dtype, scale: ScaleFormat) -> None:
    with pytest.raises(KernelError, match="dtypes of codes and scales"):
        Quantized(
            codes=torch.zeros(1, 32, dtype=codes),
            scales=torch.zeros(1, 1, dtype=scales),
            element=E4M3,
            scale=scale,
            group=(1, 32),
        )


def test_a_routed_expert_has_the_bytes_of_the_vectors() -> None:
    shapes = [(EXPERT_WIDTH, HIDDEN), (EXPERT_WIDTH, HIDDEN), (HIDDEN, EXPERT_WIDTH)]
    assert sum(expert(*shape).num_bytes for shape in shapes) == 18_800_640
