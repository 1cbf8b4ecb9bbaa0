import pytest

from flash41.config.huggingface import read_config
from flash41.errors import RequestError
from flash41.tools.adapters.all import ADAPTERS, check_like, find_adapter, shown
from flash41.tools.points import point_names
from helpers.golden_judge import CHECKPOINT

POINTS = point_names(read_config(CHECKPOINT))


def test_engines_are_found_by_the_name_of_the_command_line() -> None:
    assert [find_adapter(name).engine for name in ADAPTERS] == ["vllm", "sglang", "transformers", "llama.cpp"]
    with pytest.raises(RequestError) as refusal:
        find_adapter("vlm")
    assert str(refusal.value) == "engine: got 'vlm', expected one of vllm, sglang, transformers, llama.cpp"


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=lambda adapter: adapter.engine)
def test_every_engine_shows_the_inputs_and_outputs_of_both_sub_layers(adapter) -> None:  # type: ignore[no-untyped-def]
    found = {point for point, _, _ in shown(adapter, POINTS)}
    assert {"embed", "L3.attn.in", "L3.attn.out", "L3.resid.mid", "L3.ffn.in", "L3.ffn.out", "final.norm"} <= found
    assert adapter.version
    assert len(adapter.notes) >= 3


def test_patterns_that_match_nothing_shown_are_refused_together() -> None:
    check_like(ADAPTERS["vllm"], ["*"], POINTS, 4)
    check_like(ADAPTERS["vllm"], ["L2.index.s*"], POINTS, 4)
    with pytest.raises(RequestError) as refusal:
        check_like(ADAPTERS["vllm"], ["L*.index.scores", "embed", "L1.engram.gate"], POINTS, 4)
    assert str(refusal.value) == (
        "points that match nothing: got ['L*.index.scores', 'L1.engram.gate'], expected points that vllm shows "
        "(`flash41 hooks vllm DIR` lists them)"
    )


def test_a_layout_with_four_streams_is_refused_for_other_models() -> None:
    check_like(ADAPTERS["sglang"], ["*"], POINTS, 2)
    with pytest.raises(RequestError, match=r"residual streams \(hc_mult\): got 2, expected the 4"):
        check_like(ADAPTERS["transformers"], ["*"], POINTS, 2)
