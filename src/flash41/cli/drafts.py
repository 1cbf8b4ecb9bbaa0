"""What commands tell of drafts: one line for people, one object for programs."""

from typing import Any


def draft_facts(stats: Any) -> dict[str, Any]:
    """Counts of an engine's statistics, in all and by position, and the tokens an answer gained per verification."""
    steps = stats.num_draft_blocks
    return {
        "num_draft_tokens": sum(stats.drafted_tokens),
        "num_accepted_tokens": sum(stats.accepted_tokens),
        "drafted_tokens": list(stats.drafted_tokens),
        "accepted_tokens": list(stats.accepted_tokens),
        "tokens_per_step": stats.num_block_tokens / steps if steps else None,
    }


def draft_line(stats: Any) -> str:
    """One line; of an engine that had nothing to draft for, that it had not."""
    drafted, accepted = sum(stats.drafted_tokens), sum(stats.accepted_tokens)
    if not drafted:
        return "drafts: none"
    per_step = stats.num_block_tokens / stats.num_draft_blocks
    return f"drafts: {accepted:,} of {drafted:,} accepted, {per_step:.2f} tokens per step"
