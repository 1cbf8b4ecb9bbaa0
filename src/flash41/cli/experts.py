"""What commands tell of experts that lie in the files: one line for people, a list of layers for programs."""

from dataclasses import asdict
from typing import Any

from flash41.cli.common import human_bytes


def expert_facts(stats: Any) -> list[dict[str, Any]]:
    """Counts of every layer."""
    return [asdict(counts) for counts in stats.experts]


def expert_line(stats: Any) -> str:
    """One line over all layers."""
    names = ("num_hits", "num_misses", "read_bytes", "num_hot", "num_expected", "num_right")
    total = {name: sum(getattr(counts, name) for counts in stats.experts) for name in names}
    visited = total["num_hits"] + total["num_misses"]
    share = f"{100 * total['num_hits'] / visited:.1f} % of {visited:,}" if visited else "none"
    return (
        f"experts: {share} were in memory, {total['num_hot']:,} are kept there; "
        f"{human_bytes(total['read_bytes'])} read; {total['num_right']:,} of {total['num_expected']:,} guesses right"
    )
