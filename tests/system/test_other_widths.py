"""Checkpoints of other widths and other layer orders against the oracle of `oracles.text_model`.

The oracle shares nothing with the package and gives the golden logits of both profiles; so what it says of another
configuration is what an independent implementation says.  In profile `vendor` a BF16 tie that falls differently moves a
row and the rows that read it, so there the judge counts the rows that no tie has reached.
"""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flash41.checkpoint.synthetic import synthetic_weights
from flash41.checkpoint.writer import write_checkpoint
from flash41.config.huggingface import config_from_dict, read_config
from flash41.config.primes import table_rows
from flash41.config.run import Profile
from flash41.engine.load import load_model
from flash41.engram.vocabulary import token_map
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.anatomy import dissect
from flash41.tools.doctor import examine
from flash41.tools.traces import trace
from helpers.config_documents import patched, tiny_text
from helpers.golden_judge import CHECKPOINT, Array, load_case
from oracles.text_model import Model

LENGTH, SEED = 37, 5
CHUNKS = (3, 1, 7, 1, 1, 2)
SHARP = 2e-6
"""Relative error of a row in profile `fp32`, and of a row of `vendor` that no tie has reached."""


def layers(ratios: list[int], owners: list[int], scorers: list[int], source: int, engrams: list[int]) -> dict[str, Any]:
    """One draft stage that reads the last two layers without Engram."""
    return {
        "num_hidden_layers": len(ratios),
        "num_nextn_predict_layers": 1,
        "compress_ratios": [*ratios, 0],
        "kv_source_layer_ids": owners,
        "index_source_layer_ids": scorers,
        "candidate_source_layer_id": source,
        "candidate_topk_blocks": 3,
        "candidate_block_size": 2,
        "index_topk": 4,
        "engram_layer_ids": engrams,
        "dspark_target_layer_ids": [layer_id for layer_id in range(len(ratios)) if layer_id not in engrams][-2:],
    }


USUAL = layers([0, 2, 1, 1], [1, 2], [1, 2, 3], 2, [1])
CONFIGS: dict[str, dict[str, Any]] = {
    "ratio 1 in front of ratio 2, candidates of ratio 2": {
        **layers([1, 1, 0, 2, 2, 2, 2], [0, 3], [0, 1, 3, 5], 3, [4]),
        "sliding_window": 3,
        "candidate_topk_blocks": 5,
        "candidate_block_size": 3,
        "index_topk": 6,
    },
    "only windows, no draft stage": {
        **layers([0, 0, 0], [], [], -1, [1]),
        "num_nextn_predict_layers": 0,
        "compress_ratios": [0, 0, 0],
        "dspark_target_layer_ids": [],
    },
    "one stream, one Sinkhorn round, no Engram": {
        **layers([0, 2, 1, 1], [1, 2], [1, 2, 3], 2, []),
        "hc_mult": 1,
        "hc_sinkhorn_iters": 1,
    },
    "eight streams, 5-grams": {
        **USUAL,
        "hc_mult": 8,
        "engram_max_ngram_size": 5,
        "engram_n_heads": 3,
        "engram_head_dim": 32,
        "engram_vocab_size": 50,
        "routed_scaling_factor": 2.5,
    },
    "the release's heads, vocabulary no multiple of 32": {
        **USUAL,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "o_groups": 8,
        "num_attention_heads": 8,
        "q_lora_rank": 96,
        "hidden_size": 160,
        "moe_intermediate_size": 96,
        "vocab_size": 521,
    },
    "the least of everything": {
        **layers([2, 1, 1], [0, 1], [0, 1, 2], 1, [0]),
        "candidate_topk_blocks": 1,
        "candidate_block_size": 1,
        "index_topk": 1,
        "sliding_window": 1,
        "qk_rope_head_dim": 2,
        "n_routed_experts": 3,
        "num_experts_per_tok": 3,
        "index_n_heads": 1,
        "engram_max_ngram_size": 2,
        "engram_n_heads": 1,
        "engram_vocab_size": 7,
        "max_position_embeddings": 64,
    },
}


def classes_of(vocab_size: int) -> list[int]:
    classes: list[int] = token_map(CHECKPOINT / "tokenizer.json", vocab_size).tolist()
    return classes


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS.keys())
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of one of the configurations."""
    document = json.loads(tiny_text())
    text = {**document["text_config"], **request.param}
    text["engram_compressed_vocab_size"] = max(classes_of(text["vocab_size"])) + 1
    sizes = (text["engram_vocab_size"], text["engram_n_heads"], text["engram_max_ngram_size"])
    text["engram_num_embeddings"] = list(table_rows(*sizes, len(text["engram_layer_ids"])))
    config = config_from_dict(patched({"text_config": text}, document))
    folder = tmp_path_factory.mktemp("other") / "checkpoint"
    tokenizer = {"tokenizer.json": (CHECKPOINT / "tokenizer.json").read_bytes()}
    write_checkpoint(
        folder, config, synthetic_weights(config, SEED), max_shard_bytes=1 << 20, tokenizer_files=tokenizer
    )
    return folder


def prompt(folder: Path) -> list[int]:
    dice = random.Random(SEED)
    return [0, *(dice.randrange(read_config(folder).vocab_size) for _ in range(LENGTH - 1))]


def logits(folder: Path, profile: Profile, chunks: tuple[int, ...] | None = None) -> Array:
    model = load_model(folder, profile, profile.default_pool, ReferenceKernels(), drafts=True)
    return trace(model, prompt(folder), chunks, points=())["logits"]


def relative(got: Array, expected: Array) -> Array:
    distance: Array = np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return distance


@pytest.mark.parametrize(("variant", "rounded"), [("logits_fp32", False), ("logits", True)])
def test_the_oracle_gives_the_golden_logits(variant: str, rounded: bool) -> None:
    case = load_case("odd_25")
    got = Model(CHECKPOINT, classes_of(512), rounded).logits(case.ids)
    assert relative(got, case.arrays[variant]).max() < SHARP


def test_profile_fp32_is_the_mathematics_of_the_oracle(other: Path) -> None:
    expected = Model(other, classes_of(read_config(other).vocab_size)).logits(prompt(other))
    assert relative(logits(other, Profile.FP32), expected).max() < SHARP


def test_profile_vendor_rounds_where_the_oracle_rounds(other: Path) -> None:
    expected = Model(other, classes_of(read_config(other).vocab_size), rounded=True).logits(prompt(other))
    got = relative(logits(other, Profile.VENDOR), expected)
    assert got[0] < SHARP
    assert (got < SHARP).mean() > 0.6


@pytest.mark.parametrize("profile", [Profile.VENDOR, Profile.ATOM, Profile.FP32], ids=lambda profile: profile.value)
def test_chunks_change_no_bit(other: Path, profile: Profile) -> None:
    assert np.array_equal(logits(other, profile, CHUNKS), logits(other, profile))


def test_doctor_finds_no_fault_and_inspect_finds_every_layer(other: Path) -> None:
    assert examine(other).faults == ()
    assert len(dissect(read_config(other)).to_dict()["layers"]) >= read_config(other).num_layers
