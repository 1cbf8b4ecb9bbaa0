"""What became of the routed experts of one layer, as numbers.  Integers only."""

from dataclasses import dataclass


@dataclass(slots=True)
class ExpertCounts:
    """Sums since the start."""

    layer: str
    """Name of the layer or draft stage."""
    num_hits: int = 0
    """Experts of a forward that were in memory, or on their way because they were expected."""
    num_misses: int = 0
    """Experts of a forward that had to be read from the disk, if only in part."""
    read_bytes: int = 0
    """Bytes asked of the disk, those of expected experts among them."""
    num_hot: int = 0
    """Experts kept in memory now."""
    num_moves: int = 0
    """Times an expert was moved into memory."""
    num_expected: int = 0
    """Experts that were expected and not in memory."""
    num_right: int = 0
    """Of these, chosen next."""
