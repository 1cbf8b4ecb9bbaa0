"""Examines a checkpoint directory from its headers: what it is, what is wrong with it.

Never stops at the first fault, and never opens a weight.  Works as far as it can where config.json itself is broken.
spec: checkpoint.md sections 7 to 9.
"""

import enum
import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flash41.checkpoint.agreement import disagreement
from flash41.checkpoint.collector import collector_paused
from flash41.checkpoint.directory import CONFIG_FILE, INDEX_FILE, CheckpointFiles, survey
from flash41.checkpoint.faults import Fault, FaultKind
from flash41.checkpoint.foreign import leftovers
from flash41.checkpoint.headers import read_identity
from flash41.checkpoint.schema import schema
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import read_config
from flash41.engram.vocabulary import TokenMap
from flash41.errors import CheckpointError, ConfigError
from flash41.tools.ledger import Amount, ledger

TOKENIZER_FILE = "tokenizer.json"
GENERATION_FILE = "generation_config.json"

RELEASE_INDEX_SHA256 = "74b0686a"
"""First digits of the index of revision dba1be0a of DeepSeek-V4.1-Flash (2026-09-10)."""


class TokenMapStatus(enum.Enum):
    """What is known of the Engram token map."""

    CHECKED = "checked"
    WRONG = "wrong"
    NO_TOKENIZER = "not checked (no tokenizer.json)"
    NO_CONFIG = "not checked (no valid config.json)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """One shard."""

    num_tensors: int
    """Tensors in its header."""
    payload_bytes: int
    """Bytes of its tensors."""
    file_bytes: int
    """Length of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a directory holds."""

    directory: str
    """Folder examined."""
    faults: tuple[Fault, ...]
    """Everything that is wrong; empty for a good checkpoint."""
    identity: str
    """Which checkpoint this is, by the hash of its index."""
    hashes: Mapping[str, str]
    """SHA-256 of config.json and of the index, where present."""
    num_tensors: int
    """Tensors in all readable headers."""
    payload_bytes: int
    """Bytes of all tensors."""
    file_bytes: int
    """Bytes of all shards."""
    bytes_by_dtype: Mapping[str, int]
    """Bytes by stored format."""
    shards: Mapping[str, ShardFacts]
    """By file name."""
    expected: Amount | None
    """What the config's schema amounts to; None without a valid config."""
    owners: Mapping[str, Amount]
    """The same by part of the model."""
    token_map: TokenMapStatus
    """Whether the tokenizer gives the token map the Engram tables were trained with."""
    has_generation_config: bool
    """Whether generation_config.json is present; nothing depends on it."""
    leftovers: tuple[str, ...]
    """Weight files of other formats, which nothing reads."""

    @property
    def header_bytes(self) -> int:
        """Bytes of all shards that are no tensors."""
        return self.file_bytes - self.payload_bytes

    def to_dict(self) -> dict[str, object]:
        """The report as JSON values."""
        return {
            "directory": self.directory,
            "healthy": not self.faults,
            "faults": [
                {"kind": fault.kind.value, "message": fault.message, "names": list(fault.names)}
                for fault in self.faults
            ],
            "identity": self.identity,
            "sha256": dict(self.hashes),
            "num_tensors": self.num_tensors,
            "payload_bytes": self.payload_bytes,
            "file_bytes": self.file_bytes,
            "header_bytes": self.header_bytes,
            "bytes_by_dtype": dict(self.bytes_by_dtype),
            "shards": {name: asdict(facts) for name, facts in self.shards.items()},
            "expected": asdict(self.expected) if self.expected else None,
            "owners": {name: asdict(amount) for name, amount in self.owners.items()},
            "token_map": self.token_map.value,
            "has_generation_config": self.has_generation_config,
            "leftovers": list(self.leftovers),
        }


@collector_paused()
def examine(directory: Path) -> Report:
    """The report on a directory; raises nothing a directory can cause."""
    files, faults = survey(directory)
    config = _config(files, faults)
    if config:
        faults += disagreement(schema(config), files).faults()
    token_map = _token_map(files, config, faults)
    hashes = _hashes(directory)
    model = ledger(config) if config else None
    return Report(
        directory=str(directory),
        faults=tuple(faults),
        identity=_identity(hashes),
        hashes=hashes,
        num_tensors=len(files.shard_of),
        payload_bytes=files.payload_bytes,
        file_bytes=files.file_bytes,
        bytes_by_dtype=_bytes_by_dtype(files),
        shards={
            name: ShardFacts(
                num_tensors=len(header.tensors),
                payload_bytes=header.payload_bytes,
                file_bytes=header.identity.file_bytes,
            )
            for name, header in files.shards.items()
        },
        expected=model.total if model else None,
        owners=model.owners if model else {},
        token_map=token_map,
        has_generation_config=GENERATION_FILE in files.present,
        leftovers=leftovers(files.present),
    )


def _config(files: CheckpointFiles, faults: list[Fault]) -> ModelConfig | None:
    """The config, or None and, unless its absence was reported already, a fault."""
    if CONFIG_FILE not in files.present:
        return None
    try:
        return read_config(files.directory)
    except ConfigError as error:
        faults.append(Fault(kind=FaultKind.CONFIG, message=str(error)))
        return None


def _token_map(files: CheckpointFiles, config: ModelConfig | None, faults: list[Fault]) -> TokenMapStatus:
    if TOKENIZER_FILE not in files.present:
        return TokenMapStatus.NO_TOKENIZER
    if config is None:
        return TokenMapStatus.NO_CONFIG
    try:
        TokenMap.from_tokenizer(files.directory / TOKENIZER_FILE, config)
    except (CheckpointError, ConfigError) as error:
        faults.append(Fault(kind=FaultKind.TOKEN_MAP, message=str(error)))
        return TokenMapStatus.WRONG
    return TokenMapStatus.CHECKED


def _hashes(directory: Path) -> dict[str, str]:
    hashes = {}
    for name in (CONFIG_FILE, INDEX_FILE):
        try:
            read_identity(directory / name)  # refuses what is no regular file, which could block a reader
            with (directory / name).open("rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            continue  # its absence is a fault of its own where it matters
    return hashes


def _identity(hashes: Mapping[str, str]) -> str:
    if hashes.get(INDEX_FILE, "").startswith(RELEASE_INDEX_SHA256):
        return "DeepSeek-V4.1-Flash, revision dba1be0a (2026-09-10)"
    return "no known release (by the hash of its index)"


def _bytes_by_dtype(files: CheckpointFiles) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for header in files.shards.values():
        for entry in header.tensors.values():
            totals[entry.dtype.value] += entry.end - entry.begin
    return dict(totals)
