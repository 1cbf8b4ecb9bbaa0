"""Configuration documents for tests: the release, the small golden checkpoint, and patches of either."""

import copy
import json
from pathlib import Path
from typing import Any

from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict

DATA = Path(__file__).resolve().parents[1] / "data" / "config"


class _Absent:
    """A patch value that removes its key; prints alike in every process, as names of tests must."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


def release_text() -> str:
    return (DATA / "release.json").read_text(encoding="utf-8")


def tiny_text() -> str:
    return (DATA / "tiny-a.json").read_text(encoding="utf-8")


def topology_vectors() -> dict[str, Any]:
    vectors: dict[str, Any] = json.loads((DATA / "topology.json").read_text(encoding="utf-8"))
    return vectors


def patched(patch: dict[str, Any], document: dict[str, Any] | None = None) -> dict[str, Any]:
    """A copy of the release's document with values at dotted paths replaced, as in {"text_config.head_dim": 96}."""
    result = copy.deepcopy(json.loads(release_text()) if document is None else document)
    for path, value in patch.items():
        *sections, key = path.split(".")
        target = result
        for section in sections:
            target = target[section]
        if value is ABSENT:
            del target[key]
        else:
            target[key] = value
    return result


def text_patched(patch: dict[str, Any]) -> dict[str, Any]:
    return patched({f"text_config.{key}": value for key, value in patch.items()})


def release_config() -> ModelConfig:
    return config_from_dict(json.loads(release_text()))


def tiny_config() -> ModelConfig:
    return config_from_dict(json.loads(tiny_text()))
