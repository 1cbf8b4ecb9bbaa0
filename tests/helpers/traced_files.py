"""Trace files of the golden checkpoint's configuration, made of chosen numbers instead of a run."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash41.config.architecture import ModelConfig
from flash41.config.topology import topology

Arrays = dict[str, NDArray[Any]]


def scripted_trace(config: ModelConfig, num_tokens: int, seed: int = 1) -> Arrays:
    """A trace with every point that the page draws; selections are the best rows of their scores."""
    draw = np.random.default_rng(seed)
    streams = config.mhc.streams

    def numbers(*shape: int) -> NDArray[Any]:
        return draw.random(shape).astype(np.float32)

    ids = draw.integers(3, config.vocab_size, num_tokens).astype(np.int32)
    found: Arrays = {"ids": ids, "logits": 8 * numbers(num_tokens, config.vocab_size)}
    for layer in topology(config).layers:
        own: Arrays = {"resid.in": numbers(num_tokens, streams, config.hidden_size)}
        for part in ("attn", "ffn"):
            own |= {f"{part}.pre": numbers(num_tokens, streams), f"{part}.post": numbers(num_tokens, streams)}
            own[f"{part}.comb"] = numbers(num_tokens, streams, streams)
        experts = [draw.permutation(config.moe.num_experts)[: config.moe.num_experts_per_token] for _ in ids]
        own |= {"router.ids": np.sort(np.array(experts, dtype=np.int32), axis=1)}
        own |= {"router.weights": numbers(num_tokens, config.moe.num_experts_per_token)}
        if layer.has_engram:
            own["engram.rows"] = draw.integers(0, 4000, (num_tokens, config.engram.num_columns)).astype(np.int32)
            own["engram.gate"] = numbers(num_tokens, streams)
        if layer.scores:
            own |= _selection(config, layer.ratio, num_tokens, numbers(num_tokens, num_tokens // layer.ratio))
        if layer.produces_candidates:
            blocks = np.full((num_tokens, config.indexer.candidate_blocks), -1, dtype=np.int32)
            blocks[:, :2] = [0, 1]
            own["index.candidates"] = blocks
        found |= {f"trace/L{layer.layer_id}.{point}": array for point, array in own.items()}
    return found


def _selection(config: ModelConfig, ratio: int, num_tokens: int, scores: NDArray[Any]) -> Arrays:
    selected = np.full((num_tokens, config.indexer.topk), -1, dtype=np.int32)
    for position in range(num_tokens):
        visible = (position + 1) // ratio
        scores[position, visible:] = -np.inf
        best = np.sort(np.argsort(-scores[position, :visible])[: config.indexer.topk])
        selected[position, : len(best)] = best
    return {"index.scores": scores, "index.selected": selected}


def save(path: Path, arrays: Arrays) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path
