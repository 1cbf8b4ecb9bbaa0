"""Where training begins: heads of the first layers look back by the distance they are given."""

import pytest
import torch
from torch import Tensor

from flash41.engram.vocabulary import TokenMap
from training.model import kernels
from training.model.build import Sequences, TrainableModel
from training.model.dense import dense_attention
from training.model.initial import CONSTANT, DISTANCES
from training.model.masters import Masters
from training.tokenizer import FOLDER, shipped_config

LENGTH = 40
SEEN_FIRST = (0.8, 0.5)
"""Part of the queries, by layer: what a second layer reads is not only the constant any more; chance is 0.03."""


def masses(monkeypatch: pytest.MonkeyPatch, ids: Tensor) -> list[Tensor]:
    """[L, H, rows] of every layer, window rows first."""
    found: list[Tensor] = []

    def noted(q: Tensor, *rest: Tensor, **more: bool) -> tuple[Tensor, Tensor]:
        outputs, mass = dense_attention(q, *rest, **more)  # type: ignore[arg-type]
        found.append(mass.view(LENGTH, q.shape[2], -1).detach())
        return outputs, mass

    monkeypatch.setattr(kernels, "dense_attention", noted)
    config = shipped_config()
    token_map = TokenMap.from_tokenizer(FOLDER / "tokenizer.json", config)
    model = TrainableModel(Masters(config, 1), token_map, dense=True, scoring=False)
    sequences = Sequences(ids=ids.view(1, LENGTH))
    model.forward(sequences, model.view(sequences), torch.arange(LENGTH))
    return found


def test_heads_of_the_first_layers_look_back_by_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(0, 1000, (LENGTH,), generator=torch.Generator().manual_seed(5))
    found = masses(monkeypatch, ids)
    positions = torch.arange(8, LENGTH)
    for layer, distances in enumerate(DISTANCES):
        for head, distance in enumerate(distances):
            if distance is None:
                continue
            best = found[layer][positions, head, :LENGTH].argmax(-1)
            assert (best == positions - distance).float().mean() > SEEN_FIRST[layer], (layer, head)


def test_every_embedding_has_the_constant_they_need() -> None:
    masters = Masters(shipped_config(), 1)
    assert masters.parameters["embed.weight"][:, 0].unique().tolist() == [CONSTANT]
    assert masters.parameters["embed.weight"][:, 1].std() > 0
