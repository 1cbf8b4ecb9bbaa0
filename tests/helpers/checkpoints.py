"""Checkpoints to damage: raw safetensors files, copies of the golden checkpoint, weights of any config."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from flash41.checkpoint.reader import DTYPES
from flash41.checkpoint.schema import schema
from flash41.config.architecture import ModelConfig

TINY = Path(__file__).resolve().parents[1] / "golden" / "checkpoints" / "tiny-a"
LEDGER = Path(__file__).resolve().parents[1] / "data" / "checkpoint" / "ledger.json"

Header = dict[str, Any]


def published() -> dict[str, Any]:
    """The published totals and the release's schema by name pattern."""
    document: dict[str, Any] = json.loads(LEDGER.read_text())
    return document


def tiny_copy(folder: Path) -> Path:
    """A writable copy of the golden checkpoint."""
    return copied(TINY, folder)


def copied(checkpoint: Path, folder: Path) -> Path:
    """A writable copy of a checkpoint."""
    directory = folder / "tiny"
    shutil.copytree(checkpoint, directory)
    for path in [directory, *directory.iterdir()]:
        path.chmod(0o755)
    return directory


def shard_bytes(header: Header | str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file; `length` overrides the true header length."""
    text = json.dumps(header) if isinstance(header, dict) else header
    raw = text.encode() if isinstance(text, str) else text
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def read_raw(path: Path) -> tuple[Header, bytes]:
    """Header document and data of a shard."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def edit_header(path: Path, edit: Callable[[Header], None]) -> None:
    """Rewrites a shard's header, its data unchanged."""
    header, data = read_raw(path)
    edit(header)
    path.write_bytes(shard_bytes(header, data))


def edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Rewrites a JSON file."""
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def set_byte(directory: Path, name: str, index: int, value: int) -> None:
    """Overwrites one byte of a tensor's data."""
    for path in sorted(directory.glob("*.safetensors")):
        header, data = read_raw(path)
        if name in header:
            start = path.stat().st_size - len(data) + header[name]["data_offsets"][0]
            with path.open("r+b") as file:
                file.seek(start + index)
                file.write(bytes([value]))
            return
    raise AssertionError(name)


def patterned_weights(config: ModelConfig) -> dict[str, Tensor]:
    """Every tensor of a config with bytes 1..120 that depend on its name; no NaN anywhere."""
    tensors = {}
    for name, spec in schema(config).items():
        raw = (torch.arange(spec.num_bytes, dtype=torch.int64) * 7 + crc32(name.encode())) % 120 + 1
        tensors[name] = raw.to(torch.uint8).view(DTYPES[spec.dtype]).view(spec.shape)
    return tensors
