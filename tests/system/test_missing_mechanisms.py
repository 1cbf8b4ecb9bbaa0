"""Models of the format in which a mechanism is absent: every part must do without its neighbours."""

import json
from pathlib import Path

import numpy as np
import pytest

from flash41.checkpoint.synthetic import synthetic_weights
from flash41.checkpoint.writer import write_checkpoint
from flash41.config.huggingface import config_from_dict
from flash41.config.run import Profile
from flash41.engine.load import load_model
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.traces import trace
from helpers.config_documents import patched, tiny_text
from helpers.golden_judge import CHECKPOINT

IDS = [0, 7, 9, 300, 41, 41, 6, 2, 99, 13, 250, 251, 8, 70, 71, 3, 17, 18, 19, 77, 401]

NO_ENGRAM = {"engram_layer_ids": [], "engram_num_embeddings": []}
NO_DRAFTS = {
    "num_nextn_predict_layers": 0,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1],
    "dspark_target_layer_ids": [],
}
NO_CANDIDATES = {"candidate_source_layer_id": -1}
WINDOWS_ONLY = {
    "compress_ratios": [0] * 13,
    "kv_source_layer_ids": [],
    "index_source_layer_ids": [],
    **NO_CANDIDATES,
}
TWO_STREAMS = {"hc_mult": 2}
ONE_STREAM = {"hc_mult": 1}

PATCHES = {
    "no engram": NO_ENGRAM,
    "no drafts": NO_DRAFTS,
    "no candidates": NO_CANDIDATES,
    "windows only": WINDOWS_ONLY,
    "two streams": TWO_STREAMS,
    "one stream": ONE_STREAM,
    "nothing but windows": {**NO_ENGRAM, **NO_DRAFTS, **WINDOWS_ONLY, "compress_ratios": [0] * 10},
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_model_without_a_mechanism_runs_and_does_not_depend_on_chunks(name: str, tmp_path: Path) -> None:
    patch = {f"text_config.{key}": value for key, value in PATCHES[name].items()}
    config = config_from_dict(patched(patch, json.loads(tiny_text())))
    tokenizer = (CHECKPOINT / "tokenizer.json").read_bytes()
    directory = tmp_path / "model"
    write_checkpoint(
        directory,
        config,
        synthetic_weights(config, 5),
        max_shard_bytes=1 << 30,
        tokenizer_files={"tokenizer.json": tokenizer},
    )
    profile = Profile.VENDOR
    model = load_model(directory, profile, profile.default_pool, ReferenceKernels(), drafts=True)
    whole = trace(model, IDS)
    chunked = trace(model, IDS, [3, 1, 6])
    assert np.isfinite(whole["logits"]).all()
    assert np.array_equal(whole["logits"], chunked["logits"])
    assert whole["logits"].std() > 0.1
