"""Where weights live changes no bit of an answer: mapped, resident, or with experts moving in and out of memory."""

import gc
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from flash41.checkpoint.residence import weight_sizes
from flash41.checkpoint.stored import Scope
from flash41.config.huggingface import read_config
from flash41.config.slices import SliceWish
from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.errors import CapacityError, ConfigError
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.slices import make_slice
from helpers.backends import BOTH_BACKENDS, kernels_or_skip
from helpers.checkpoints import TINY

PROMPTS = [[0, 17, 42, 5, 9, 11, 300], [0, 3, 3, 3]]
PARAMS = SamplingParams(max_tokens=10, seed=7, ignore_eos=True, logprobs=5)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("slice") / "made"
    config = read_config(TINY)
    wide = replace(config, moe=replace(config.moe, num_experts=16))
    make_slice(made, wide, SliceWish(layers=4, experts=16, engram_rows=300), 1, TINY / "tokenizer.json")
    return made


def answers(llm: LLM) -> list[object]:
    """Tokens with their log-probabilities and those of five others, in full precision."""
    return [answer.logprobs for answer in llm.generate(PROMPTS, PARAMS)]


def opened(directory: Path, backend: str, **weights: object) -> LLM:
    return LLM(directory, backend=backend, threads=1, max_model_len=256, **weights)  # type: ignore[arg-type]


def budget_of(directory: Path, experts: int) -> int:
    """Memory for what every step reads and so many experts a layer."""
    sizes = weight_sizes(read_config(directory), [Scope.BACKBONE, Scope.VISION])
    return sizes.dense_bytes + experts * sizes.num_expert_layers * sizes.one_expert_bytes


@pytest.mark.parametrize("backend", BOTH_BACKENDS)
def test_answers_are_the_same_wherever_weights_live(directory: Path, backend: str) -> None:
    kernels_or_skip(backend)
    wanted = answers(opened(directory, backend, weights="mapped"))
    assert answers(opened(directory, backend, weights="resident")) == wanted
    moving = opened(directory, backend, weights_memory_bytes=budget_of(directory, 2))
    assert answers(moving) == wanted
    counts = moving.engine.stats.experts
    assert [layer.num_hot for layer in counts] == [2] * 4
    # Places were taken again and again while the answer was made.
    assert sum(layer.num_moves for layer in counts) > 8
    assert wanted[0] != wanted[1]


def test_answers_are_the_same_where_resident_weights_lie_in_bands(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = answers(opened(directory, "reference", weights="mapped"))
    monkeypatch.setattr(ReferenceKernels, "reads_bands", True)
    for weights in ({"weights": "resident"}, {"weights_memory_bytes": budget_of(directory, 2)}):
        llm = opened(directory, "reference", **weights)
        assert llm._model.checkpoint.quantized("layers.0.attn.wq_b").in_bands
        assert answers(llm) == wanted


def test_weights_that_must_be_resident_and_do_not_fit_are_refused_before_any_is_read(directory: Path) -> None:
    with pytest.raises(CapacityError, match="bytes of resident weights: got"):
        opened(directory, "reference", weights="resident", weights_memory_bytes=budget_of(directory, 2))
    with pytest.raises(ConfigError, match="weights: got 'paged', expected one of mapped, resident, auto"):
        opened(directory, "reference", weights="paged")


def test_an_engine_leaves_no_thread_behind(directory: Path) -> None:
    before = set(threading.enumerate())
    for weights in ("mapped", "resident"):
        llm = opened(directory, "reference", weights=weights)
        llm.generate([[0, 5]], SamplingParams(max_tokens=2, seed=1))
        del llm
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=20)
    assert set(threading.enumerate()) <= before
