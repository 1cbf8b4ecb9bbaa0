import numpy as np
import pytest
import torch
from torch import Tensor

from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.batch import Silent
from flash41.model.linear import RMSNorm
from flash41.model.vision import VISION_NORM_EPS, BiasedLinear, Grid, VisionBlock, VisionTower, rotate_halves
from helpers.tensors import normal, vectors

ROPE = vectors("rope")["vision"]
WIDTH, HEADS, INNER = 32, 2, 24
KERNELS = ReferenceKernels()


def linear(num_out: int, num_in: int, seed: int, bias: bool = True) -> BiasedLinear:
    return BiasedLinear(
        normal(num_out, num_in, seed=seed, sigma=0.2), normal(num_out, seed=seed + 1) if bias else None, KERNELS
    )


def norm(seed: int) -> RMSNorm:
    return RMSNorm(normal(WIDTH, seed=seed, dtype=torch.float32) + 1, VISION_NORM_EPS, KERNELS)


def tower(num_blocks: int = 2) -> VisionTower:
    blocks = [
        VisionBlock(
            norm1=norm(seed),
            wqkv=linear(3 * WIDTH, WIDTH, seed + 1),
            wo=linear(WIDTH, WIDTH, seed + 3),
            norm2=norm(seed + 5),
            w1=linear(2 * INNER, WIDTH, seed + 6, bias=False),
            w2=linear(WIDTH, INNER, seed + 7, bias=False),
            num_heads=HEADS,
            kernels=KERNELS,
        )
        for seed in range(100, 100 + 10 * num_blocks, 10)
    ]
    return VisionTower(linear(WIDTH, 12, 1), blocks, norm(3), WIDTH // HEADS, 10_000.0)


def run(values: Tensor, height: int, width: int) -> Tensor:
    return tower()(values, Grid(height=height, width=width), Silent())


def oracle(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """The tower in FP64, patch by patch and channel by channel, from the same weights."""
    made = tower()

    def apply(layer: BiasedLinear, x: np.ndarray) -> np.ndarray:
        bias = 0.0 if layer.bias is None else layer.bias.double().numpy()
        return x @ layer.weight.double().numpy().T + bias

    def normed(layer: RMSNorm, x: np.ndarray) -> np.ndarray:
        return layer.weight.double().numpy() * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    half = WIDTH // HEADS // 2
    frequencies = [10_000.0 ** (-2 * i / half) for i in range(half // 2)]

    def turned(head: np.ndarray, patch: int) -> np.ndarray:
        y, x = divmod(patch, width)
        angles = np.array([y * f for f in frequencies] + [x * f for f in frequencies])
        pairs = (head[:half] + 1j * head[half:]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag])

    x = apply(made.patch_embed, values)
    for block in made.blocks:
        q, k, v = np.split(apply(block.wqkv, normed(block.norm1, x)), 3, axis=-1)
        mixed = np.zeros_like(x)
        for head in range(HEADS):
            part = slice(head * 2 * half, (head + 1) * 2 * half)
            queries = np.array([turned(q[n, part], n) for n in range(len(x))])
            keys = np.array([turned(k[n, part], n) for n in range(len(x))])
            logits = queries @ keys.T / np.sqrt(2 * half)
            weights = np.exp(logits - logits.max(1, keepdims=True))
            mixed[:, part] = weights / weights.sum(1, keepdims=True) @ v[:, part]
        x = x + apply(block.wo, mixed)
        gate, up = np.split(apply(block.w1, normed(block.norm2, x)), 2, axis=-1)
        x = x + apply(block.w2, gate / (1 + np.exp(-gate)) * up)
    return normed(made.norm, x)


def test_the_tower_is_its_equations() -> None:
    values = normal(15, 12, seed=9, dtype=torch.float32)
    expected = oracle(values.double().numpy(), 3, 5)
    with torch.inference_mode():
        got = run(values, 3, 5).double().numpy()
    # Two blocks of sums of at most 48 FP32 stores; the scale of the rows is about 1.
    assert np.abs(got - expected).max() < 2.0**-19 * np.abs(expected).max()


def test_frequencies_and_angles_are_the_published_ones() -> None:
    example = ROPE["example"]
    cos, sin = Grid(height=4, width=5).angles(64, 10_000.0)
    patch = example["row"] * 5 + example["column"]
    angle = torch.atan2(sin[patch], cos[patch]).numpy()
    expected = np.array([n * f for n in (example["row"], example["column"]) for f in ROPE["f"]])
    assert cos.shape == sin.shape == (20, 32)
    assert np.abs(angle - expected).max() < 1e-6
    assert angle[0] == pytest.approx(example["angles_first"][0], rel=1e-6)
    assert angle[1] == pytest.approx(example["angles_first"][1], rel=1e-6)
    assert angle[15] == pytest.approx(example["angle_15"], rel=1e-5)
    assert angle[16] == pytest.approx(example["angle_16"], rel=1e-6)
    assert angle[31] == pytest.approx(example["angle_31"], rel=1e-5)


def test_channel_j_turns_with_channel_j_plus_half() -> None:
    x = torch.zeros(1, 1, 8)
    x[0, 0, 1] = 1.0
    quarter = torch.full((1, 4), torch.pi / 2)
    turned = rotate_halves(x, (quarter.cos(), quarter.sin()))
    assert turned[0, 0].round().tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
    back = torch.zeros(1, 1, 8)
    back[0, 0, 5] = 1.0
    assert rotate_halves(back, (quarter.cos(), quarter.sin()))[0, 0].round().tolist() == [0, -1, 0, 0, 0, 0, 0, 0]


def test_a_bias_is_added_before_the_one_store() -> None:
    weight = torch.tensor([[1.0, 2.0**-8]], dtype=torch.bfloat16)
    bias = torch.tensor([2.0**-8], dtype=torch.bfloat16)
    # 1 + 2^-8 is a tie that falls to 1; with the bias the sum is 1 + 2^-7, a BF16 number.
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    assert BiasedLinear(weight, None, KERNELS)(x).item() == 1.0
    assert BiasedLinear(weight, bias, KERNELS)(x).item() == 1.0 + 2.0**-7


def test_every_patch_sees_every_other() -> None:
    values = normal(12, 12, seed=4, dtype=torch.float32)
    before = run(values, 3, 4)
    for changed in (0, 11):
        other = values.clone()
        other[changed] += 1.0
        assert ((run(other, 3, 4) - before).abs().amax(1) > 0).all()


def test_the_same_patches_in_another_grid_are_another_picture() -> None:
    values = normal(12, 12, seed=4, dtype=torch.float32)
    assert not torch.equal(run(values, 3, 4), run(values, 4, 3))
