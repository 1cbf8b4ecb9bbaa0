"""Loaded models for whole-model tests, and a second checkpoint that shares no width with the golden one."""

import json
from pathlib import Path

from flash41.checkpoint.synthetic import synthetic_weights
from flash41.checkpoint.writer import write_checkpoint
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict
from flash41.config.primes import table_rows
from flash41.config.run import PoolFormat, Profile
from flash41.engine.load import LoadedModel, load_model
from flash41.kernels.interface import Kernels
from flash41.kernels.reference.backend import ReferenceKernels
from helpers.config_documents import patched, tiny_text
from helpers.golden_judge import CHECKPOINT

SECOND_SEED = 2
SECOND_TOPOLOGY = {
    # layer                0     1        2       3     4      5        6       7        draft
    # mode                 FULL  REINDEX  WINDOW  FULL  REUSE  REINDEX  WINDOW  REINDEX  WINDOW
    "compress_ratios": [2, 2, 0, 1, 1, 1, 0, 1, 0],
    "num_hidden_layers": 8,
    "num_nextn_predict_layers": 1,
    "kv_source_layer_ids": [0, 3],
    "index_source_layer_ids": [0, 1, 3, 5, 7],
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 3,
    "candidate_block_size": 3,
    "index_topk": 6,
    "sliding_window": 5,
    "engram_layer_ids": [2],
    "dspark_target_layer_ids": [4, 6],
}
SECOND_WIDTHS = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "head_dim": 96,
    "qk_rope_head_dim": 24,
    "q_lora_rank": 32,
    "o_lora_rank": 32,
    "o_groups": 3,
    "index_n_heads": 3,
    "index_head_dim": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5,
    "engram_max_ngram_size": 3,
    "engram_n_heads": 2,
    "engram_head_dim": 64,
    "engram_vocab_size": 120,
    "engram_num_embeddings": list(table_rows(120, 2, 3, 1)),
    "dspark_n_routed_experts": 4,
}


class Models:
    """Models by directory, profile and pool, each opened once, all computed by one backend."""

    def __init__(self, kernels: Kernels | None = None) -> None:
        self.kernels = ReferenceKernels() if kernels is None else kernels
        self._loaded: dict[tuple[Path, Profile, PoolFormat], LoadedModel] = {}

    def __call__(self, directory: Path, profile: Profile, pool: PoolFormat | None = None) -> LoadedModel:
        """The model of a checkpoint under a profile; shared, so nobody may change it."""
        key = (directory, profile, pool or profile.default_pool)
        if key not in self._loaded:
            self._loaded[key] = load_model(*key, self.kernels, drafts=True, images=True)
        return self._loaded[key]


def fresh_model(
    profile: Profile, kernels: type[ReferenceKernels] = ReferenceKernels, directory: Path = CHECKPOINT
) -> LoadedModel:
    """A model of its own, for tests that change it or one of its kernels."""
    return load_model(directory, profile, profile.default_pool, kernels(), drafts=True, images=True)


def second_config() -> ModelConfig:
    """Other widths and another order of modes: a plane in layer 0, scorers on both sides of a window layer."""
    patch = {f"text_config.{key}": value for key, value in {**SECOND_TOPOLOGY, **SECOND_WIDTHS}.items()}
    return config_from_dict(patched(patch, json.loads(tiny_text())))


def write_second(directory: Path) -> None:
    """Random weights for the second configuration, with the golden checkpoint's tokenizer."""
    config = second_config()
    weights = synthetic_weights(config, SECOND_SEED)
    tokenizer = {"tokenizer.json": (CHECKPOINT / "tokenizer.json").read_bytes()}
    write_checkpoint(directory, config, weights, num_shards=2, tokenizer_files=tokenizer)
