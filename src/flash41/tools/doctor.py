"""Examines a checkpoint directory: what it is, what is wrong with it.

Never stops at the first fault, and reads no weight unless a deep examination is asked for (`tools.deep`).  Works as far
as it can where config.json itself is broken.
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
from flash41.checkpoint.release import release_config
from flash41.checkpoint.schema import schema
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import read_config
from flash41.engram.vocabulary import TokenMap, digest
from flash41.errors import CheckpointError, ConfigError, complaint
from flash41.tools.deep import DeepReport, Progress, read_sums, scan_files
from flash41.tools.generation import GENERATION_FILE, generation_faults
from flash41.tools.ledger import Amount, ledger

TOKENIZER_FILE = "tokenizer.json"

RELEASE_INDEX_SHA256 = "74b0686a"
"""First digits of the index of revision dba1be0a of DeepSeek-V4.1-Flash (2026-09-10)."""

RELEASE_MAP_SHA256 = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"
"""Of the release's token map as little-endian int32.  spec: engram.md section 1."""


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
    token_map_sha256: str | None
    """Of the map as little-endian int32, where a tokenizer gave one of the right size."""
    engram_rows: tuple[int, ...]
    """Rows of the Engram tables, each checked to be the sum of its prime moduli; empty without a valid config."""
    deep: DeepReport | None
    """What reading every byte found; None where nobody asked for it."""
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
            "token_map_sha256": self.token_map_sha256,
            "engram_rows": list(self.engram_rows),
            "deep": _deep(self.deep),
            "has_generation_config": self.has_generation_config,
            "leftovers": list(self.leftovers),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepWish:
    """How every byte is to be read."""

    state: Path | None = None
    """File that an interrupted scan leaves and goes on from."""
    sums: Path | None = None
    """Output of `sha256sum` to compare with."""
    progress: Progress | None = None
    """Called with the shard and the bytes read since the last call."""


@collector_paused()
def examine(directory: Path, deep: DeepWish | None = None) -> Report:
    """The report on a directory; raises nothing a directory can cause, CheckpointError for what `deep` names."""
    sums = {} if deep is None or deep.sums is None else read_sums(deep.sums)
    files, faults = survey(directory)
    config = _config(files, faults)
    if config:
        faults += disagreement(schema(config), files).faults()
    token_map, map_sha256 = _token_map(files, config, faults)
    if GENERATION_FILE in files.present:
        faults += generation_faults(directory, config)
    found = None if deep is None else scan_files(files, state=deep.state, sums=sums, progress=deep.progress)
    if found is not None:
        faults += found.faults
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
        shards=_shards(files),
        expected=model.total if model else None,
        owners=model.owners if model else {},
        token_map=token_map,
        token_map_sha256=map_sha256,
        engram_rows=config.engram.table_rows if config else (),
        deep=found,
        has_generation_config=GENERATION_FILE in files.present,
        leftovers=leftovers(files.present),
    )


def _shards(files: CheckpointFiles) -> dict[str, ShardFacts]:
    return {
        name: ShardFacts(
            num_tensors=len(header.tensors),
            payload_bytes=header.payload_bytes,
            file_bytes=header.identity.file_bytes,
        )
        for name, header in files.shards.items()
    }


def _deep(found: DeepReport | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {"sha256": dict(found.sha256), "num_resumed": found.num_resumed, "num_compared": found.num_compared}


def _config(files: CheckpointFiles, faults: list[Fault]) -> ModelConfig | None:
    """The config, or None and, unless its absence was reported already, a fault."""
    if CONFIG_FILE not in files.present:
        return None
    try:
        return read_config(files.directory)
    except ConfigError as error:
        faults.append(Fault(kind=FaultKind.CONFIG, message=str(error)))
        return None


def _token_map(
    files: CheckpointFiles, config: ModelConfig | None, faults: list[Fault]
) -> tuple[TokenMapStatus, str | None]:
    if TOKENIZER_FILE not in files.present:
        return TokenMapStatus.NO_TOKENIZER, None
    if config is None:
        return TokenMapStatus.NO_CONFIG, None
    try:
        found = digest(TokenMap.from_tokenizer(files.directory / TOKENIZER_FILE, config).classes)
    except (CheckpointError, ConfigError) as error:
        faults.append(Fault(kind=FaultKind.TOKEN_MAP, message=str(error)))
        return TokenMapStatus.WRONG, None
    if config == release_config() and found != RELEASE_MAP_SHA256:
        reason = "another tokenizer re-hashes the Engram tables"
        message = complaint("SHA-256 of the token map", found, f"{RELEASE_MAP_SHA256} of the release", reason)
        faults.append(Fault(kind=FaultKind.TOKEN_MAP, message=message))
        return TokenMapStatus.WRONG, found
    return TokenMapStatus.CHECKED, found


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
