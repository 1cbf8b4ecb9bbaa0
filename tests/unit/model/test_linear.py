import torch

from flash41.checkpoint.quantize import quantize_dense
from flash41.config.run import Profile
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.linear import GroupedOutput

GROUPS, RANK, INPUTS = 3, 32, 64


def grouped(profile: Profile, kernels: ReferenceKernels) -> GroupedOutput:
    generator = torch.Generator().manual_seed(1)
    weight = quantize_dense(torch.randn(GROUPS * RANK, INPUTS, generator=generator))
    return GroupedOutput(weight, GROUPS, kernels, profile)


def inputs(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, GROUPS, INPUTS, generator=torch.Generator().manual_seed(2)).bfloat16()


def test_each_group_meets_its_own_matrix_in_every_profile() -> None:
    x = inputs(5)
    for profile in Profile:
        output = grouped(profile, ReferenceKernels())
        matrices = output.weight.dequantize(torch.float64).view(GROUPS, RANK, INPUTS)
        expected = torch.einsum("tgi,gri->tgr", x.double(), matrices).flatten(1)
        got = output(x.float() if profile is Profile.FP32 else x)
        # One rounding of the input to FP8 (profile atom) or of the output to BF16 bounds the difference.
        bound = 2.0**-5 if profile is Profile.ATOM else 2.0**-7
        assert float((got.double() - expected).abs().max()) <= bound * float(expected.abs().max()), profile


def test_the_input_of_profile_atom_is_rounded_to_fp8() -> None:
    x = inputs(5)
    assert not torch.equal(grouped(Profile.ATOM, ReferenceKernels())(x), grouped(Profile.VENDOR, ReferenceKernels())(x))


def test_groups_are_decoded_once_in_profile_atom() -> None:
    kernels = ReferenceKernels()
    output = grouped(Profile.ATOM, kernels)
    output(inputs(2))
    decoded = kernels.scaled_linear.keywords["decoded"]
    held = decoded.held_bytes
    assert held == GROUPS * RANK * INPUTS * 8
    output(inputs(3))
    assert decoded.held_bytes == held
