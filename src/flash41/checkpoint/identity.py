"""A checkpoint as a short name, without reading a weight.

    H(config.json, index, and per shard by name: file name, length, header)        H = BLAKE2b, 16 bytes, hexadecimal

Names, shapes, formats, places and sizes of all tensors enter it; weights do not, since reading half a terabyte to name
it would cost more than any cache saves.  Within one engine, whose files are checked not to change, that is enough to
tell layouts apart; whoever exchanges cached pages between engines must know that both have the same files.
spec: cache.md section 3 (model hash).
"""

import hashlib

from flash41.checkpoint.directory import CONFIG_FILE, INDEX_FILE, CheckpointFiles
from flash41.errors import CheckpointError, complaint

DIGEST_BYTES = 16


def model_hash(files: CheckpointFiles) -> str:
    """The name, lower-case hexadecimal; CheckpointError where a file cannot be read any more."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    try:
        for name in (CONFIG_FILE, INDEX_FILE) if files.index else (CONFIG_FILE,):
            _add(digest, name.encode(), (files.directory / name).read_bytes())
        for name, header in sorted(files.shards.items()):
            with header.path.open("rb") as file:
                _add(digest, name.encode(), str(header.identity.file_bytes).encode(), file.read(header.data_start))
    except OSError as error:
        raise CheckpointError(
            complaint(f"checkpoint {files.directory}", str(error), "files that can be read")
        ) from error
    return digest.hexdigest()


def _add(digest: "hashlib.blake2b", *parts: bytes) -> None:
    """Each part behind its length, so that no two lists of parts look alike."""
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
