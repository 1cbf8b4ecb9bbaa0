"""Known conventions are recognised by what they leave in a trace, and named with the option that follows them."""

import numpy as np
import pytest

from flash41.config.run import Profile
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.linear import ScaledLinear
from flash41.tools.broken_kernels import WithoutSink
from flash41.tools.comparison.compare import Comparison, compare
from flash41.tools.traces import trace
from helpers.golden_judge import load_case
from helpers.models import fresh_model

Traces = dict[str, np.ndarray]
IDS = load_case("candidate_drop").ids[:40]


def traced(profile: Profile, chunks: list[int] | None = None) -> Traces:
    arrays = trace(fresh_model(profile), IDS, chunks)
    return {name.removeprefix("trace/"): array for name, array in arrays.items()}


@pytest.fixture(scope="module")
def vendor() -> Traces:
    return traced(Profile.VENDOR)


def conventions(found: Comparison) -> list[str]:
    return [hint.convention for hint in found.hints]


def test_a_trace_against_itself_needs_no_explanation(vendor: Traces) -> None:
    assert compare(vendor, vendor).hints == ()


def test_an_fp8_index_plane_suggests_atom(vendor: Traces) -> None:
    found = compare(vendor, traced(Profile.ATOM))
    assert "FP8 index plane" in conventions(found)
    assert "wo_a in FP8 with rounded input" in conventions(found)
    assert {hint.remedy for hint in found.hints} == {"trace with --profile atom"}


def test_fp32_throughout_suggests_fp32(vendor: Traces) -> None:
    found = compare(vendor, traced(Profile.FP32))
    assert conventions(found) == ["FP32 between operations, no BF16 stores"]
    assert found.hints[0].remedy == "trace with --profile fp32"


def test_the_demo_is_told_by_its_slots_and_its_chain(vendor: Traces) -> None:
    found = compare(vendor, traced(Profile.DEMO, [1]))
    assert any("BF16 chain" in convention for convention in conventions(found))
    slots = next(hint for hint in found.hints if "index slots" in hint.convention)
    assert "even positions only" in slots.evidence
    assert "--profile demo" in slots.remedy


def test_missing_rounding_of_activations_is_told_by_the_first_linear(
    vendor: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unrounded(self: ScaledLinear, x: object) -> object:
        return self._kernels.dequantized_linear(x, self.weight)  # type: ignore[arg-type]

    monkeypatch.setattr(ScaledLinear, "__call__", unrounded)
    monkeypatch.setattr(ScaledLinear, "beside", lambda self, other, x: (unrounded(self, x), unrounded(other, x)))
    found = compare(vendor, traced(Profile.VENDOR))
    assert found.first is not None
    assert found.first.point == "L0.attn.q"
    assert conventions(found) == ["activations of linears rounded otherwise (none, per 128, or FP4)"]


def test_layers_that_read_the_end_of_a_prompt_only_are_told_as_replay(vendor: Traces) -> None:
    late = tuple(f"L{layer}." for layer in range(6, 10))
    short = {
        point: array[-8:] if point.startswith(late) and len(array) == len(IDS) else array
        for point, array in vendor.items()
    }
    found = compare(vendor, short)
    assert conventions(found) == ["bounded replay: late layers read only the end of a prompt"]
    assert "from layer 6 on the last 8 rows" in found.hints[0].evidence
    assert found.first is None


def test_a_missing_sink_is_not_taken_for_a_rounding(vendor: Traces) -> None:
    broken = trace(fresh_model(Profile.VENDOR, lambda: WithoutSink(ReferenceKernels())), IDS)  # type: ignore[arg-type]
    found = compare(vendor, {name.removeprefix("trace/"): array for name, array in broken.items()})
    assert found.first is not None
    assert found.first.point == "L0.attn.out"
    assert found.hints == ()
