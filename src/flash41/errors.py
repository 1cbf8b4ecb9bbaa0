"""Every error that a user, a file or a client can cause, in one tree.

    Flash41Error
    |-- ConfigError        config.json, or options that contradict each other or the model
    |-- CheckpointError    files of a checkpoint directory
    |-- CapacityError      memory, pages or slots do not suffice
    |-- RequestError       one request asks for something that cannot be done
    |-- ProtocolError      two parts of the engine disagree about state (stops the engine on purpose)
    `-- KernelError        a backend cannot do what it was asked to do

Messages have one form: ``thing: got VALUE, expected CONDITION (reason or remedy)``.  `complaint` builds it.
An error about a set lists all members; `combined` joins several complaints into one error.
Mistakes of our own code are `assert` statements that show the numbers; they are not in this tree.
"""

from collections.abc import Sequence


class Flash41Error(Exception):
    """Root of the tree; the command line prints it without a traceback and exits with status 1."""


class ConfigError(Flash41Error):
    """A configuration value, or a combination of options, that this engine refuses."""


class CheckpointError(Flash41Error):
    """A checkpoint directory that is incomplete, inconsistent or not of this format."""


class CapacityError(Flash41Error):
    """Something does not fit: memory, pages, slots."""


class RequestError(Flash41Error):
    """One request is invalid or impossible; other requests are not affected."""


class ProtocolError(Flash41Error):
    """Two parts of the engine disagree about state, for example a cursor and a span's start."""


class KernelError(Flash41Error):
    """A kernel backend was asked for something it cannot do."""


def complaint(thing: str, got: object, expected: str, remedy: str | None = None) -> str:
    """The one form of an error message: ``thing: got VALUE, expected CONDITION (remedy)``."""
    tail = f" ({remedy})" if remedy else ""
    return f"{thing}: got {got!r}, expected {expected}{tail}"


def combined(faults: Sequence[str], heading: str | None = None) -> str:
    """All faults in one message: the fault itself if there is one, else a numbered list below `heading`."""
    if len(faults) == 1 and heading is None:
        return faults[0]
    lines = [heading or f"{len(faults)} faults"]
    return "\n".join([*lines, *(f"  {number}. {fault}" for number, fault in enumerate(faults, 1))])
