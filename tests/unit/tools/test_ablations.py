"""What a model computes without a mechanism, against a model that lacks it in another way, bit by bit."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from flash41.chat.images import from_rgb
from flash41.config.huggingface import config_from_dict, read_config
from flash41.config.run import Profile
from flash41.engine.load import LoadedModel, load_model
from flash41.engine.prompt_images import image_sizes
from flash41.errors import RequestError
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.ablations import ABLATIONS, named_ablations
from flash41.tools.broken_kernels import Wrapped
from flash41.tools.traces import trace
from helpers.checkpoints import copied, edit_json
from helpers.config_documents import patched, tiny_text
from helpers.golden_judge import CHECKPOINT, Array, load_case

IDS = load_case("candidate_drop").ids[:40]
"""Long enough for all mechanisms: rows beyond top-k, dropped blocks, many windows."""
PROFILE = Profile.VENDOR
OF_TEXT = [name for name in ABLATIONS if name not in ("bias_vl", "vision", "drafts")]


def opened(*names: str, kernels: Any = None, directory: Path = CHECKPOINT, images: bool = False) -> LoadedModel:
    change = named_ablations(names, read_config(directory)) if names else None
    return load_model(
        directory, PROFILE, PROFILE.default_pool, kernels or ReferenceKernels(), images=images, change=change
    )


def logits(model: LoadedModel) -> Array:
    return trace(model, IDS, None, ("final.norm",))["logits"]


@pytest.fixture(scope="module")
def whole() -> Array:
    return logits(opened())


@pytest.fixture(scope="module")
def ablated() -> Callable[[str], Array]:
    """Logits without a mechanism, computed once."""
    return functools.cache(lambda name: logits(opened(name)))


class NoGate(Wrapped):
    def engram_gate(self, x: Tensor, *_rest: Any) -> Tensor:
        return torch.zeros(x.shape[:2])


class NoRows(Wrapped):
    def select_rows(self, scores: Tensor, _allowed: Tensor, topk: int) -> Tensor:
        return torch.full((len(scores), topk), -1)


class ByNumber(Wrapped):
    """The last visible rows, written out."""

    def select_rows(self, _scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
        kept = [row.nonzero().flatten()[-topk:] for row in allowed]
        return torch.stack([torch.nn.functional.pad(row, (0, topk - len(row)), value=-1) for row in kept])


class InsideTheSourcesChoice(Wrapped):
    """Allows a bounded scorer the rows that were selected when the candidate blocks were."""

    chosen: Tensor
    is_source = False

    def candidate_blocks(self, *given: Any) -> Tensor:
        self.is_source = True
        return self.inner.candidate_blocks(*given)

    def select_rows(self, *given: Any) -> Tensor:
        found = self.inner.select_rows(*given)
        if self.is_source:
            self.is_source, self.chosen = False, found
        return found

    def inside_blocks(self, candidates: Tensor, num_rows: int, _block_size: int) -> Tensor:
        marks = torch.zeros(len(candidates), num_rows + 1, dtype=torch.bool)
        return marks.scatter_(1, self.chosen.where(self.chosen >= 0, num_rows), True)[:, :num_rows]


class EvenGroups(Wrapped):
    def pool_group(self, values: Tensor, scores: Tensor) -> Tensor:
        return self.inner.pool_group(values, torch.zeros_like(scores))


class NoChosenExpert(Wrapped):
    def experts(self, x: Tensor, ids: Tensor, weights: Tensor, *rest: Any) -> Any:
        return self.inner.experts(x, ids, torch.zeros_like(weights), *rest)


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("engram", NoGate),
        ("compressed", NoRows),
        ("topk", ByNumber),
        ("candidates", InsideTheSourcesChoice),
        ("experts", NoChosenExpert),
    ],
)
def test_a_mechanism_left_out_is_one_that_gives_nothing(
    name: str, oracle: type[Wrapped], ablated: Callable[[str], Array]
) -> None:
    np.testing.assert_array_equal(ablated(name), logits(opened(kernels=oracle(ReferenceKernels()))))


def test_groups_weighed_alike_are_pooled_with_equal_scores(ablated: Callable[[str], Array], whole: Array) -> None:
    found, even = ablated("pooling"), logits(opened(kernels=EvenGroups(ReferenceKernels())))
    # A mean and a softmax of zeros are sums of the same values in FP32, rounded at another place.
    assert np.abs(found - even).max() < 0.1 * np.abs(found - whole).max()


def test_without_the_window_a_query_sees_what_a_window_of_one_shows(
    tmp_path: Path, ablated: Callable[[str], Array]
) -> None:
    narrow = copied(CHECKPOINT, tmp_path)
    edit_json(narrow / "config.json", lambda document: document["text_config"].update(sliding_window=1))
    np.testing.assert_array_equal(ablated("window"), logits(opened(directory=narrow)))


def test_without_candidates_later_scorers_select_what_the_source_did() -> None:
    source = opened().config.indexer.candidate_source_layer_id
    found = trace(opened("candidates"), IDS, None, (f"L{source}.index.selected", "L8.index.selected"))
    whole = trace(opened(), IDS, None, (f"L{source}.index.selected", "L8.index.selected"))
    np.testing.assert_array_equal(found[f"trace/L{source}.index.selected"], whole[f"trace/L{source}.index.selected"])
    assert "trace/L8.index.selected" not in found  # no scorer is asked any more
    assert not np.array_equal(whole["trace/L8.index.selected"], whole[f"trace/L{source}.index.selected"])


@pytest.mark.parametrize("name", OF_TEXT)
def test_every_mechanism_of_text_counts(name: str, ablated: Callable[[str], Array], whole: Array) -> None:
    assert np.isfinite(ablated(name)).all()
    assert not np.array_equal(ablated(name), whole), "nothing was left out"


@pytest.mark.parametrize("name", ["window", "compressed", "candidates"])
def test_without_a_mechanism_chunks_do_not_count_either(name: str, ablated: Callable[[str], Array]) -> None:
    chunked = trace(opened(name), IDS, [7, 1, 20], ("final.norm",))["logits"]
    np.testing.assert_array_equal(chunked, ablated(name))


def shown(model: LoadedModel, inverted: bool = False) -> Array:
    """Logits of a prompt with a picture."""
    image = Image.radial_gradient("L").resize((48, 48)).convert("RGB")
    picture = from_rgb(ImageOps.invert(image) if inverted else image, image_sizes(model.config.vision))
    return trace(model, [0, 5, model.config.tokens.image, 6, 7], None, ("final.norm",), pictures=(picture,))["logits"]


class ByTextBias(Wrapped):
    """Routes every row by the bias of the last one, which is text."""

    def route(self, logits: Tensor, bias: Tensor, *rest: Any) -> Any:
        return self.inner.route(logits, bias[-1:].expand_as(bias), *rest)


def test_without_bias_vl_positions_of_pictures_are_routed_as_text() -> None:
    found = shown(opened("bias_vl", images=True))
    np.testing.assert_array_equal(found, shown(opened(kernels=ByTextBias(ReferenceKernels()), images=True)))
    assert not np.array_equal(found, shown(opened(images=True)))


def test_without_vision_all_pictures_of_a_size_look_alike() -> None:
    blind, seeing = opened("vision", images=True), opened(images=True)
    np.testing.assert_array_equal(shown(blind), shown(blind, inverted=True))
    assert not np.array_equal(shown(seeing), shown(seeing, inverted=True))


def test_several_are_left_out_at_once(ablated: Callable[[str], Array]) -> None:
    both = logits(opened("engram", "compressed"))
    assert not np.array_equal(both, ablated("engram"))
    assert not np.array_equal(both, ablated("compressed"))


@pytest.mark.parametrize(
    ("patch", "absent"),
    [
        ({"engram_layer_ids": [], "engram_num_embeddings": []}, {"engram"}),
        ({"candidate_source_layer_id": -1}, {"candidates"}),
        ({"hc_mult": 1}, {"mhc"}),
        (
            {
                "num_nextn_predict_layers": 0,
                "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1],
                "dspark_target_layer_ids": [],
            },
            {"drafts"},
        ),
        (
            {
                "compress_ratios": [0] * 13,
                "kv_source_layer_ids": [],
                "index_source_layer_ids": [],
                "candidate_source_layer_id": -1,
            },
            {"compressed", "topk", "candidates", "pooling"},
        ),
    ],
)
def test_what_a_model_does_not_have_cannot_be_left_out(patch: dict[str, Any], absent: set[str]) -> None:
    document = patched({f"text_config.{key}": value for key, value in patch.items()}, json.loads(tiny_text()))
    config = config_from_dict(document)
    assert {name for name, one in ABLATIONS.items() if not one.is_in(config)} == absent
    for name in absent:
        with pytest.raises(RequestError, match=f"mechanism: got '{name}', expected one that this model has"):
            named_ablations([name], config)


def test_all_wrong_names_are_listed_with_those_that_exist() -> None:
    with pytest.raises(RequestError) as caught:
        named_ablations(["attention", "engram", "Window"], read_config(CHECKPOINT))
    message = str(caught.value)
    assert "'attention'" in message
    assert "'Window'" in message
    assert ", ".join(ABLATIONS) in message


def test_a_name_twice_is_left_out_once() -> None:
    assert len(named_ablations(["engram", "engram"], read_config(CHECKPOINT)).ablations) == 1


def test_drafts_are_left_out_by_an_option() -> None:
    found = named_ablations(["drafts", "engram"], read_config(CHECKPOINT))
    assert found.keywords == {"draft": "off", "draft_accept": None}
