"""What the numbers of a trace say about the formats they were rounded to."""

import numpy as np
import pytest
import torch

from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.comparison.fingerprint import PROFILES, Fingerprint, fingerprint, profiles_like

KERNELS = ReferenceKernels()
ROWS = torch.randn(200, 64, generator=torch.Generator().manual_seed(3)) * torch.logspace(-9, 5, 200).unsqueeze(1)


def seen(point: str, rows: torch.Tensor) -> Fingerprint:
    return fingerprint({point: rows.float().numpy()})


def test_stored_rows_tell_their_format() -> None:
    assert seen("L0.attn.window_row", KERNELS.fake_fp8_32(ROWS)).window == "fp8/32"
    assert seen("L0.attn.main_row", KERNELS.fake_fp4_16(ROWS)).main == "fp4/16"
    assert seen("L0.index.key", KERNELS.fake_fp4_32(ROWS)).key == "fp4/32"
    scale = torch.exp2(torch.ceil(torch.log2(ROWS.abs().amax(1, keepdim=True).clamp(min=1e-4) / 448)))
    assert seen("L0.index.key", (ROWS / scale).to(torch.float8_e4m3fn).float() * scale).key == "fp8/row"


@pytest.mark.parametrize("point", ["L0.attn.window_row", "L0.attn.main_row", "L0.index.key"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_were_not_rounded_are_told_apart(point: str, dtype: torch.dtype) -> None:
    found = seen(point, ROWS.to(dtype))
    assert {found.window, found.main, found.key} == {None, "none"}


def test_results_tell_whether_they_were_stored_in_bf16() -> None:
    assert seen("L0.attn.in", ROWS.bfloat16()).stores == "bf16"
    assert seen("L0.attn.in", ROWS).stores == "fp32"
    assert seen("L3.index.scores", ROWS.bfloat16()).scores == "bf16"


def test_zeros_and_other_points_tell_nothing() -> None:
    assert seen("L0.attn.in", torch.zeros(3, 4)) == seen("embed", ROWS.bfloat16()) == Fingerprint()
    assert seen("L0.attn.main_row", torch.zeros(2, 32)).main is None


def test_a_width_that_no_group_divides_has_no_format() -> None:
    assert fingerprint({"L0.attn.main_row": np.ones((2, 20), dtype=np.float32)}).main == "none"


def test_a_fingerprint_names_the_profiles_it_fits() -> None:
    for name, known in PROFILES.items():
        assert profiles_like(known) == [name]
    assert profiles_like(Fingerprint(key="fp8/row")) == ["atom"]
    assert profiles_like(Fingerprint(stores="bf16", window="none")) == []
    assert profiles_like(Fingerprint()) == list(PROFILES)
