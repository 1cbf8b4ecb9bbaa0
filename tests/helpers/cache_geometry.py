"""Geometries for tests: the published figures, and pools of the release, of the small checkpoint and of patches."""

import json
from pathlib import Path
from typing import Any

from flash41.cache.geometry import PoolGeometry, pool_geometry
from flash41.config.huggingface import config_from_dict
from flash41.config.run import PoolDtype, PoolFormat
from helpers.config_documents import release_config, text_patched, tiny_config

DATA = Path(__file__).resolve().parents[1] / "data" / "cache"
MAINS = [PoolDtype.BF16, PoolDtype.FP4, PoolDtype.FP32]
INDICES = [PoolDtype.BF16, PoolDtype.FP4, PoolDtype.FP8, PoolDtype.FP32]
PAIRS = [(main, index) for main in MAINS for index in INDICES]


def published() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((DATA / "geometry.json").read_text(encoding="utf-8"))
    return figures


def pool(main: PoolDtype | str = "bf16", index: PoolDtype | str = "fp8") -> PoolFormat:
    return PoolFormat(main=PoolDtype(main), index=PoolDtype(index))


def release(main: str = "bf16", index: str = "fp8", block_size: int = 256, draft_tokens: int = 0) -> PoolGeometry:
    return pool_geometry(release_config(), pool(main, index), block_size=block_size, draft_tokens=draft_tokens)


def tiny(main: PoolDtype, index: PoolDtype, block_size: int = 8, draft_tokens: int = 0) -> PoolGeometry:
    return pool_geometry(tiny_config(), pool(main, index), block_size=block_size, draft_tokens=draft_tokens)


def release_with(patch: dict[str, Any], main: str = "bf16", index: str = "fp8", block_size: int = 256) -> PoolGeometry:
    return pool_geometry(config_from_dict(text_patched(patch)), pool(main, index), block_size=block_size)
