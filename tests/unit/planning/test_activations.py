"""The estimate is above what a forward really holds, term by term as written."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flash41.config.architecture import ModelConfig
from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams
from flash41.planning.activations import StepShape, activation_terms, encoder_term
from helpers.backends import kernels_or_skip
from helpers.checkpoints import TINY
from helpers.config_documents import release_config


def shape(**values: int) -> StepShape:
    sizes = {"rows": 512, "requests": 4, "context": 100_000, "draft_tokens": 0, "element_bytes": 2, "ranks": 1}
    return StepShape(**{**sizes, **values})


def sizes(config: ModelConfig, step: StepShape) -> dict[str, int]:
    return {term.name: term.num_bytes for term in activation_terms(config, step)}


def test_terms_of_the_release_by_hand() -> None:
    found = sizes(release_config(), shape())
    assert found["residual streams"] == 512 * 4 * 5120 * (3 * 2 + 16)
    assert found["queries"] == 512 * 65 * 512 * (4 * 2 + 16)
    assert found["gathered rows"] == 512 * 512 * (2 * 512 * 2 + 8) + (4 * 128 + 512) * 2 * 512 * 2
    assert found["row lists"] == 512 * 640 * 8 * 12
    assert found["index keys"] == 4 * 100_000 * (128 * 3 + 24)
    assert found["index scores"] == 40 * 2**25
    assert found["experts"] == 512 * (384 * 8 + 7 * (3 * 2304 + 5120) * 8)
    assert found["Engram rows"] == 512 * 2 * (24 * 16 + 6144 * 10)
    assert found["logits"] == 4 * (4 * 129_280 + 8 * 5120)


def test_what_grows_with_what() -> None:
    base = sizes(release_config(), shape())

    def changed(**values: int) -> set[str]:
        other = sizes(release_config(), shape(**values))
        return {name for name in base if other[name] != base[name]}

    assert changed(context=200_000) == {"index keys"}  # a band of scores is full already
    assert changed(draft_tokens=5) == {"logits"}
    assert changed(ranks=4) == {"queries"}
    assert changed(requests=5) == {"gathered rows", "index keys", "logits"}
    assert "kernel scratch" not in changed(rows=1024)
    # A request needs a row of a step, so more requests than rows take turns.
    assert sizes(release_config(), shape(rows=2, requests=9)) == sizes(release_config(), shape(rows=2, requests=2))


def test_the_largest_picture_by_hand() -> None:
    term = encoder_term(release_config(), 2)
    assert term.num_bytes == 9216 * 8 * 1024 * 2 + 64 * 2**22 + 256 * 160 * 2816


class Live(TorchDispatchMode):
    """Bytes of all memories that operations made and that are still alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.total = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                place = storage.data_ptr()
                if place and place not in self.sizes:
                    self.sizes[place] = storage.nbytes()
                    weakref.finalize(storage, self.drop, place)
                    self.total += storage.nbytes()
                    self.peak = max(self.peak, self.total)
        return out

    def drop(self, place: int) -> None:
        self.total -= self.sizes.pop(place)


def test_a_step_holds_less_than_the_estimate() -> None:
    kernels_or_skip("cpu")
    rows = 256
    llm = LLM(
        TINY, backend="cpu", max_num_batched_tokens=rows, max_num_seqs=1, max_model_len=2 * rows, prefix_cache=False
    )
    ids = tuple(7 * token % 400 + 8 for token in range(rows))
    llm.engine.add(llm.request(ids, SamplingParams(max_tokens=1, temperature=0.0)))
    with Live() as live:
        while llm.engine.num_unfinished:
            llm.engine.step()
    found = sizes(llm.config, shape(rows=rows, requests=1, context=2 * rows))
    assert live.peak > 2**20, "nothing was counted"
    assert live.peak <= sum(found.values()) - found["kernel scratch"]
