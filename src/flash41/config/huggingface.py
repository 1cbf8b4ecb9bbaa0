"""config.json in and out: a strict reader and its inverse.

Unknown keys are refused by name, missing keys listed, values never converted: nothing in the engine fills a gap.  All
faults of the document are raised together; then the rules between fields (`config.validation`), then the topology.
spec: config.md sections 1 to 4.3.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flash41.config.architecture import (
    AttentionConfig,
    DsparkConfig,
    EngramConfig,
    IndexerConfig,
    MhcConfig,
    ModelConfig,
    MoeConfig,
    RopeConfig,
    TokenIds,
    VisionConfig,
)
from flash41.config.document import check_depth, read_document
from flash41.config.keys import ROOT, Constant, Information, Key, Kind, Section
from flash41.config.topology import topology
from flash41.config.validation import model_faults
from flash41.errors import ConfigError, combined, complaint

FILE_NAME = "config.json"
_LARGEST_INTEGER = 2**63 - 1


def read_config(path: Path) -> ModelConfig:
    """The model that a config.json describes; `path` is the file or the directory that holds it.

    Raises ConfigError for every fault: of the file, of its keys and values, and of the rules of config.md.
    """
    # os.path, because Path.is_dir raises for names that are too long.
    return config_from_dict(read_document(path / FILE_NAME if os.path.isdir(path) else path))


def config_from_dict(document: Mapping[str, object]) -> ModelConfig:
    """The model that a parsed config.json describes.  Raises ConfigError with every fault that was found."""
    check_depth(document, FILE_NAME)
    _check_model_type(document)
    reader = _Reader(document)
    reader.read(ROOT, document)
    _raise(reader.faults)
    config = _records(reader.values)
    _raise(model_faults(config))
    topology(config)
    return config


def config_to_dict(config: ModelConfig) -> dict[str, object]:
    """The document that `config_from_dict` reads as `config`, keys in the order of the release."""
    return _written(ROOT, config)


def _raise(faults: list[str]) -> None:
    if faults:
        heading = None if len(faults) == 1 else f"{FILE_NAME}: {len(faults)} faults"
        raise ConfigError(combined(faults, heading))


def _check_model_type(document: Mapping[str, object]) -> None:
    # Rule N1 comes alone: another model's file would fill a screen with unknown keys.
    found = document.get("model_type")
    if "model_type" not in document or found == "deepseek_v41":
        return
    older = isinstance(found, str) and found.startswith("deepseek_v4")
    remedy = "DeepSeek-V4 has other layers and other tensors; only V4.1 can be read" if older else None
    raise ConfigError(complaint("model_type", found, "'deepseek_v41'", remedy))


class _Reader:
    """Walks a document along the key tables, collecting values by record and field, and faults."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self.values: dict[str | None, dict[str, Any]] = {}
        self.faults: list[str] = []
        self._document = document

    def read(self, section: Section, found: Mapping[str, object]) -> None:
        self._check_names(section, found)
        for entry in section.entries:
            if isinstance(entry, Section):
                self._enter(entry, found.get(entry.name))
            elif entry.name not in found:
                continue
            elif isinstance(entry, Key):
                self._take(entry, section.label(entry.name), found[entry.name])
            elif isinstance(entry, Constant):
                self._compare(entry, section.label(entry.name), found[entry.name])
            elif not isinstance(found[entry.name], str):
                self.faults.append(complaint(section.label(entry.name), found[entry.name], "a string"))
        self._check_copies(section, found)

    def _check_names(self, section: Section, found: Mapping[str, object]) -> None:
        known = {entry.name for entry in section.entries} | {*section.ignored, *section.copies}
        # An inner object that is missing has a message of its own.
        required = [entry.name for entry in section.entries if isinstance(entry, (Key, Constant))]
        unknown = sorted((name for name in found if name not in known), key=str)
        missing = [name for name in required if name not in found]
        title = section.path or FILE_NAME
        if unknown:
            self.faults.append(f"{title}: unknown keys {unknown}")
        if missing:
            self.faults.append(f"{title}: missing keys {missing}")

    def _enter(self, section: Section, found: object) -> None:
        if isinstance(found, Mapping) and found:
            self.read(section, found)
        else:
            self.faults.append(complaint(section.path, found, "a non-empty mapping"))

    def _take(self, key: Key, label: str, found: object) -> None:
        faults_before = len(self.faults)
        value = self._value(key, label, found)
        if len(self.faults) == faults_before:
            self.values.setdefault(key.record, {})[key.field] = value

    def _value(self, key: Key, label: str, found: object) -> object:
        if key.kind is Kind.LAYERS or key.kind is Kind.INTEGERS:
            return self._list(key, label, found)
        if key.kind is Kind.OPTIONAL_NUMBER and found is None:
            return None
        if key.kind is Kind.INTEGER or key.kind is Kind.CANDIDATE:
            if not _is_integer(found):
                self.faults.append(complaint(label, found, key.kind.value))
            return None if key.kind is Kind.CANDIDATE and found == -1 else found
        if not _is_number(found):
            self.faults.append(complaint(label, found, key.kind.value))
            return None
        return float(found)  # type: ignore[arg-type]

    def _list(self, key: Key, label: str, found: object) -> tuple[object, ...]:
        if not isinstance(found, (list, tuple)):
            self.faults.append(complaint(label, found, key.kind.value))
            return ()
        if key.kind is Kind.INTEGERS:
            self.faults += [
                complaint(f"{label}[{index}]", value, Kind.INTEGER.value)
                for index, value in enumerate(found)
                if not _is_integer(value)
            ]
        return tuple(found)

    def _compare(self, constant: Constant, label: str, found: object) -> None:
        if not _same(found, constant.value):
            expected = repr(constant.value)
            self.faults.append(complaint(constant.label or label, found, expected, constant.reason))

    def _check_copies(self, section: Section, found: Mapping[str, object]) -> None:
        for name in section.copies:
            if name in found and name in self._document and not _same(found[name], self._document[name]):
                expected = repr(self._document[name])
                self.faults.append(complaint(section.label(name), found[name], expected, "the value at the root"))


def _is_integer(value: object) -> bool:
    # A bool is an int to Python; 63 bits are what every reader of the file can hold.
    return type(value) is int and abs(value) <= _LARGEST_INTEGER


def _is_number(value: object) -> bool:
    return _is_integer(value) or (type(value) is float and math.isfinite(value))


def _same(found: object, expected: object) -> bool:
    """Equality that tells true from 1 but not [32, 32] from (32, 32), nor 0 from 0.0."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return False
        return all(_same(left, right) for left, right in zip(found, expected, strict=True))
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or found.keys() != expected.keys():
            return False
        return all(_same(found[name], expected[name]) for name in expected)
    if isinstance(expected, float):
        return _is_number(found) and found == expected
    return type(found) is type(expected) and found == expected


def _records(values: dict[str | None, dict[str, Any]]) -> ModelConfig:
    return ModelConfig(
        **values[None],
        tokens=TokenIds(**values["tokens"]),
        rope=RopeConfig(**values["rope"]),
        attention=AttentionConfig(**values["attention"]),
        indexer=IndexerConfig(**values["indexer"]),
        moe=MoeConfig(**values["moe"]),
        mhc=MhcConfig(**values["mhc"]),
        engram=EngramConfig(**values["engram"]),
        dspark=DsparkConfig(**values["dspark"]),
        vision=VisionConfig(**values["vision"]),
    )


def _written(section: Section, config: ModelConfig) -> dict[str, object]:
    document: dict[str, object] = {}
    for entry in section.entries:
        if isinstance(entry, Section):
            document[entry.name] = _written(entry, config)
        elif isinstance(entry, Key):
            document[entry.name] = _written_value(entry, config)
        elif isinstance(entry, Information):
            document[entry.name] = entry.value
        else:
            document[entry.name] = list(entry.value) if isinstance(entry.value, list) else entry.value
    return document


def _written_value(key: Key, config: ModelConfig) -> object:
    value: object = getattr(config if key.record is None else getattr(config, key.record), key.field)
    if key.kind is Kind.CANDIDATE:
        return -1 if value is None else value
    if isinstance(value, tuple):
        return list(value)
    if key.whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
