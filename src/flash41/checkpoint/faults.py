"""What is wrong with a checkpoint: one record per fault, one error for all of them.

The text of the error shows the first ones and counts the rest; `FaultyCheckpointError.faults` holds every one.
"""

import enum
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from flash41.errors import CheckpointError, combined

SHOWN_FAULTS = 20
SHOWN_NAMES = 8


class FaultKind(enum.Enum):
    """Where a fault lies."""

    DIRECTORY = "directory"
    CONFIG = "config"
    INDEX = "index"
    SHARD = "shard"
    HEADER = "header"
    SCHEMA = "schema"
    SCALE = "scale"
    CHANGED = "changed"
    UNBOUND = "unbound"
    TOKEN_MAP = "token map"
    GENERATION = "generation config"
    WEIGHT = "weight"
    CHECKSUM = "checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong."""

    kind: FaultKind
    """Where it lies."""
    message: str
    """Thing, value and condition."""
    names: tuple[str, ...] = ()
    """Every tensor or file concerned, where the message counts more than it shows."""


class FaultyCheckpointError(CheckpointError):
    """A checkpoint with faults; all of them are in `faults`."""

    def __init__(self, faults: Sequence[Fault], heading: str | None = None) -> None:
        self.faults = tuple(faults)
        messages = [fault.message for fault in self.faults[:SHOWN_FAULTS]]
        if len(self.faults) > SHOWN_FAULTS:
            messages.append(f"and {len(self.faults) - SHOWN_FAULTS} more")
        super().__init__(combined(messages, heading))


def refuse(kind: FaultKind, message: str, names: Sequence[str] = ()) -> NoReturn:
    """Raises FaultyCheckpointError with this one fault."""
    raise FaultyCheckpointError([Fault(kind=kind, message=message, names=tuple(names))])


def brief(value: object) -> str:
    """The value as Python prints it, cut where a damaged file made it long."""
    printer = reprlib.Repr()
    printer.maxstring = printer.maxother = printer.maxlong = 120
    return printer.repr(value)


def mismatch(thing: str, value: object, expected: str) -> str:
    """``thing: got VALUE, expected CONDITION`` with a value of any length."""
    return f"{thing}: got {brief(value)}, expected {expected}"


def listed(names: Sequence[str]) -> str:
    """``[a, b, c]``, or the first ones and a count: ``[a, b, ... 94 in all]``."""
    shown = [ascii(name)[1:-1] for name in names[:SHOWN_NAMES]]
    if len(names) > SHOWN_NAMES:
        shown.append(f"... {len(names)} in all")
    return f"[{', '.join(shown)}]"
