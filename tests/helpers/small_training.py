"""A model of a few thousand parameters with every mechanism, over the vocabulary of `training`."""

import functools
from dataclasses import replace

import pytest
import torch

from flash41.config.architecture import ModelConfig
from flash41.config.primes import table_rows
from flash41.config.run import Profile
from flash41.engram.vocabulary import TokenMap
from training.curriculum import Phase
from training.model.masters import Masters
from training.state import save
from training.team import Team
from training.tokenizer import FOLDER, shipped_config
from training.train import Run, parse

PHASES = (
    Phase(name="first", until_tokens=200, longest=64, batch_tokens=192, dense=True, prompt_weight=0.1),
    Phase(name="second", until_tokens=1e9, longest=96, batch_tokens=192, dense=False, prompt_weight=0.1),
    Phase(name="third", until_tokens=float("inf"), longest=96, batch_tokens=192, dense=False, prompt_weight=0.1),
)


@functools.cache
def small_config() -> ModelConfig:
    """Narrow, with few experts, a window of 16 and candidate blocks that drop rows from 33 rows on."""
    config = shipped_config()
    return replace(
        config,
        hidden_size=32,
        attention=replace(
            config.attention, num_heads=2, head_dim=32, q_lora_rank=32, o_lora_rank=32, o_groups=2, window=16
        ),
        indexer=replace(config.indexer, num_heads=2, head_dim=32, topk=8, candidate_blocks=4, candidate_block_size=8),
        moe=replace(config.moe, intermediate_size=32, num_experts=4, num_experts_per_token=2),
        engram=replace(config.engram, vocab_size=200, table_rows=tuple(table_rows(200, 2, 4, 2))),
        dspark=replace(config.dspark, num_experts=2, num_experts_per_token=1, markov_rank=32),
        vision=replace(config.vision, num_layers=1, hidden_size=32, num_heads=2, intermediate_size=32),
    )


@functools.cache
def small_map() -> TokenMap:
    return TokenMap.from_tokenizer(FOLDER / "tokenizer.json", small_config())


def restless(seed: int = 3) -> Masters:
    """Masters whose biases and sinks are not at their start, so that all of them matter."""
    masters = Masters(small_config(), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in masters.parameters.items():
            if name.endswith(("bias", "bias_vl", "attn_sink")):
                value.add_(torch.randn(value.shape, generator=generator), alpha=0.1)
    return masters


PROFILES = (Profile.VENDOR, Profile.FP32)


def one_step(arguments: list[str], team: Team) -> None:
    """A process of a team: takes a step and leaves what it became; stands here so that a new process finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.batches.POOL_SAMPLES", 24)
        one = Run(parse(arguments), small_config(), PHASES, team)
        one.step()
    save(one.wish.out / f"{team.rank}.safetensors", one.progress, one.masters.parameters, one.optimizer.moments())


def failing(_: list[str], team: Team) -> None:
    """A process of a team whose leader fails while the other waits for it."""
    if team.leads:
        raise ValueError("the leader fell")
    team.gather("here")
