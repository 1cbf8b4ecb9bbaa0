"""Bytes of a rank against the published totals and against a built model."""

import pytest
import torch
from torch import nn

from flash41.checkpoint.release import release_config
from flash41.config.run import PoolDtype, PoolFormat, Profile
from flash41.engine.load import load_model
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.rope import Rope
from flash41.numerics.scaled import Quantized
from flash41.planning.weights import RankWeights, rank_weights
from helpers.checkpoints import TINY, published
from helpers.config_documents import tiny_config

POOL = PoolFormat(main=PoolDtype.BF16, index=PoolDtype.FP4)


def everything(world: int = 1) -> RankWeights:
    return rank_weights(release_config(), world, drafts=True, images=True)


def stored_bytes(weights: RankWeights) -> int:
    """What lies in the files, without the FP32 copies that are made of it."""
    return weights.loaded_bytes - weights.widened_bytes


def test_one_rank_holds_the_published_bytes_of_every_owner() -> None:
    weights, split = everything(), published()["split_bytes"]
    backbone = weights.dense_bytes + weights.expert_bytes
    markov = 129280 * 256 * 2
    assert backbone + weights.embedding_bytes - markov == split["backbone"]
    assert weights.draft_dense_bytes + weights.draft_expert_bytes + markov == split["dspark"]
    assert weights.vision_bytes == split["vision"]
    assert weights.table_bytes == split["engram_tables"]
    assert weights.expert_bytes == 40 * 384 * published()["units"]["expert_bytes"]
    assert weights.head_bytes == 129280 * 5120 * 2
    assert stored_bytes(weights) + weights.table_bytes == published()["totals"]["payload_bytes"]


@pytest.mark.parametrize("row", published()["tensor_parallel"], ids=lambda row: f"tp{row['tp']}")
def test_ranks_hold_the_published_bytes_but_for_three_rules_of_this_project(row: dict[str, int]) -> None:
    world = row["tp"]
    # The published figures are the reference's: wo_a as BF16 without its scales, index heads cut, tables cut too.
    wo_a, wo_a_scale = 43 * 8192 * 4096 // world, 43 * 256 * 128 // world
    index = 8 * (4096 * 1280 + 128 * 40 + 2 * 32 * 5120)
    expected = row["backbone_bytes"] - wo_a + wo_a_scale + index - index // world
    assert stored_bytes(everything(world)) == expected
    assert everything(world).table_bytes == published()["split_bytes"]["engram_tables"]


def test_what_is_not_loaded_is_not_counted() -> None:
    plain = rank_weights(release_config(), 1, drafts=False, images=False)
    assert (plain.draft_dense_bytes, plain.draft_expert_bytes, plain.vision_bytes) == (0, 0, 0)
    assert plain.embedding_bytes == 129280 * 5120 * 2
    assert plain.loaded_bytes == plain.always_bytes + plain.sometimes_bytes


PARTS = ("flash41.model.", "torch.nn.modules.container", __name__)
"""Where the classes are whose objects hold weights, or hold what does."""


class Held:
    """Bytes of every tensor below a module, mapped codes and copies apart, each memory once."""

    def __init__(self, *modules: object) -> None:
        self.seen: dict[int, torch.Tensor] = {}
        for module in modules:
            self.visit(module)

    def visit(self, thing: object) -> None:
        if isinstance(thing, torch.Tensor):
            self.seen.setdefault(thing.data_ptr(), thing)
        elif isinstance(thing, Quantized):
            self.visit(thing.codes)
            self.visit(thing.scales)
        elif type(thing).__module__.startswith(PARTS) and not isinstance(thing, Rope):  # frequencies are no weights
            for name in getattr(thing, "__dict__", getattr(type(thing), "__slots__", ())):
                self.visit(getattr(thing, name, None))
        elif isinstance(thing, dict):
            for value in thing.values():
                self.visit(value)
        elif hasattr(thing, "w1"):
            for name in ("w1", "w3", "w2"):
                self.visit(getattr(thing, name))

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.seen.values())


def test_a_built_model_holds_what_was_planned_to_the_byte() -> None:
    """Experts are taken when a token asks for them, and tables row by row; all else is bound when a model is built."""
    loaded = load_model(TINY, Profile.VENDOR, POOL, ReferenceKernels(), drafts=True, images=True)
    assert loaded.drafter is not None
    assert loaded.encoder is not None
    weights = rank_weights(tiny_config(), 1, drafts=True, images=True)
    held = Held(loaded.backbone, loaded.drafter, loaded.encoder)
    # Norms are held as FP32 only; their BF16 originals stay in the files.
    originals = weights.widened_bytes // 2
    assert held.num_bytes == weights.always_bytes + weights.embedding_bytes - originals
    tables = sum(table.num_rows * (table.head_dim + table.head_dim // 32) for _, table in loaded.tables.values())
    assert tables == weights.table_bytes
    first = loaded.backbone.layers[0].ffn.experts
    experts = sum(Held(_Box(first(expert_id))).num_bytes for expert_id in range(tiny_config().moe.num_experts))
    assert experts * tiny_config().num_layers == weights.expert_bytes


class _Box(nn.Module):
    """A module with one attribute."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held
