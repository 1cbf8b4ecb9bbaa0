"""The embedded default: a small trained checkpoint in the released format, part of the package, opened where it lies.

    four attention modes, with a REINDEX layer behind a candidate source that really drops blocks
    two Engram tables, four residual streams, three draft stages, a vision tower, a byte-level tokenizer

Nothing is copied and nothing is written, so an installation that cannot be written to will do.
"""

from importlib.resources import files
from pathlib import Path

from flash41.checkpoint.directory import survey
from flash41.checkpoint.embedded import TOKENIZER_FILES
from flash41.checkpoint.faults import Fault, FaultKind, FaultyCheckpointError, listed
from flash41.errors import CheckpointError, complaint

REMEDY = "install flash41 again, or name a checkpoint"


def default_checkpoint() -> Path:
    """Directory of the embedded default.

    Raises CheckpointError where the package lies in an archive, and with all faults where files are missing or damaged.
    """
    directory = files("flash41.checkpoint") / "data" / "default"
    if not isinstance(directory, Path):
        remedy = "weights are mapped from files: unpack it, or name a checkpoint"
        raise CheckpointError(complaint("place of the embedded default", str(directory), "a folder", remedy))
    found, faults = survey(directory)
    missing = tuple(name for name in TOKENIZER_FILES if name not in found.present)
    if missing:
        message = f"tokenizer: missing {listed(missing)}"
        faults.append(Fault(kind=FaultKind.DIRECTORY, message=message, names=missing))
    if faults:
        heading = complaint("embedded default", str(directory), "the files of the package", REMEDY)
        raise FaultyCheckpointError(faults, heading)
    return directory
