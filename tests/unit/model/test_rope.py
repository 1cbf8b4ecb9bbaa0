"""Frequencies and angles.  spec: attention.md section 4."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash41.config.architecture import RopeConfig
from flash41.model.rope import Rope, plain_frequencies, yarn_frequencies
from helpers.tensors import vectors

ROPE = vectors("rope")
PLAIN, YARN = ROPE["tables"]
RELEASE = RopeConfig(
    head_dim=64,
    theta=10000.0,
    compress_theta=160000.0,
    yarn_factor=16.0,
    yarn_beta_fast=32.0,
    yarn_beta_slow=1.0,
    yarn_original_positions=65536,
)


def bits(table: torch.Tensor) -> list[str]:
    return [f"{pattern:#010x}" for pattern in table.view(torch.int32).tolist()]


def test_both_tables_are_the_vectors_to_the_bit() -> None:
    rope = Rope(RELEASE)
    assert bits(rope.window_frequencies) == PLAIN["f_fp32"]
    assert bits(rope.compressed_frequencies) == YARN["f_fp32"]


def test_frequencies_are_the_vectors_in_fp64() -> None:
    assert plain_frequencies(RELEASE) == pytest.approx(PLAIN["f"], rel=1e-8)
    assert yarn_frequencies(RELEASE) == pytest.approx(YARN["f"], rel=1e-8)


def test_golden_frequencies_of_the_specification() -> None:
    table, golden = yarn_frequencies(RELEASE), ROPE["golden"]
    for name in ("f16", "f20", "f25", "f31"):
        assert table[int(name[1:])] == pytest.approx(golden[name], rel=golden["rel_tol"])


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_blends_between() -> None:
    unscaled = plain_frequencies(replace(RELEASE, theta=RELEASE.compress_theta))
    scaled, low, high = yarn_frequencies(RELEASE), ROPE["yarn"]["low"], ROPE["yarn"]["high"]
    assert scaled[: low + 1] == unscaled[: low + 1]
    assert scaled[high:] == [frequency / 16.0 for frequency in unscaled[high:]]
    for pair in range(low + 1, high):
        assert unscaled[pair] / 16.0 < scaled[pair] < unscaled[pair]
        ramp = (unscaled[pair] - scaled[pair]) / (unscaled[pair] * 15 / 16)
        assert ramp == pytest.approx(YARN["ramp"][pair], abs=1e-9)


def test_a_factor_of_one_leaves_the_frequencies_alone() -> None:
    config = replace(RELEASE, yarn_factor=1.0)
    unscaled = plain_frequencies(replace(RELEASE, theta=RELEASE.compress_theta))
    assert yarn_frequencies(config) == pytest.approx(unscaled, rel=1e-15)


@pytest.mark.parametrize("original", [1, 100, 2**30])
def test_the_ramp_stays_inside_the_head_for_any_original_length(original: int) -> None:
    config = replace(RELEASE, yarn_original_positions=original)
    unscaled = plain_frequencies(replace(RELEASE, theta=RELEASE.compress_theta))
    for got, plain in zip(yarn_frequencies(config), unscaled, strict=True):
        assert plain / 16.0 * (1 - 1e-12) <= got <= plain * (1 + 1e-12)


@pytest.mark.parametrize("case", ROPE["angles"], ids=lambda case: f"{case['table']}-{case['position']}-{case['pair']}")
def test_angle_vectors(case: dict[str, Any]) -> None:
    ratio = 0 if case["table"] == "plain" else 1
    cos, sin = Rope(RELEASE).angles(torch.tensor([case["position"]]), ratio)
    assert (cos.dtype, sin.dtype) == (torch.float32, torch.float32)
    assert cos[0, case["pair"]].item() == pytest.approx(case["cos"], abs=6e-8)
    assert sin[0, case["pair"]].item() == pytest.approx(case["sin"], abs=6e-8)


def test_an_angle_is_rounded_to_fp32_before_cosine_and_sine() -> None:
    rope, position = Rope(RELEASE), 1_048_575
    cos, _ = rope.angles(torch.tensor([position]), 0)
    frequencies = rope.window_frequencies.double()
    assert torch.equal(cos[0], (frequencies.mul(position).float().double()).cos().float())
    assert (cos[0].double() - (frequencies * position).cos()).abs().max() > 1e-4


def test_layers_with_compressed_rows_share_the_second_table() -> None:
    rope, positions = Rope(RELEASE), torch.tensor([0, 5, 70_000])
    assert torch.equal(rope.angles(positions, 1)[0], rope.angles(positions, 2)[0])
    assert not torch.equal(rope.angles(positions, 0)[0], rope.angles(positions, 2)[0])


def test_angles_of_a_position_do_not_depend_on_the_other_positions() -> None:
    rope, positions = Rope(RELEASE), torch.randint(0, 1 << 20, (64,), generator=torch.Generator().manual_seed(0))
    cos, sin = rope.angles(positions, 2)
    for size in (1, 2, 6):
        for first in (0, 7, 64 - size):
            part = slice(first, first + size)
            alone = rope.angles(positions[part], 2)
            assert torch.equal(alone[0], cos[part])
            assert torch.equal(alone[1], sin[part])


def test_position_zero_turns_nothing() -> None:
    cos, sin = Rope(RELEASE).angles(torch.tensor([0]), 2)
    assert torch.equal(cos, torch.ones(1, 32))
    assert torch.equal(sin, torch.zeros(1, 32))
