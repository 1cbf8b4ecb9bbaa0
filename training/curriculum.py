"""What is trained when: context lengths, mixtures of families, and how wide a selection is.

    phase     tokens up to   context   selection
    drills        2.5 M         96    every visible row; scorers rest; mostly lists
    words         5 M          128    the same
    pages         7.5 M        224    every visible row: scorers imitate before anything depends on them; with pictures
    rows         10 M          512    the model's own top-k and candidate blocks
    books           -        2,048    the model's own

The learning rate falls over the last fifth of the planned tokens, whatever the phase.
A phase is a function of the tokens that were trained so far, so a resumed run is in the phase it left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from flash41.config.architecture import ModelConfig
from training.corpus.mixture import Mixture

UNSEEN_PART = 0.2
"""Pictures that text's experts read, for one that is read as it should be."""
WARM_UP_STEPS = 100
DECAY_PART = 0.2
"""Part of the planned tokens over which the learning rate falls to a tenth."""

TEXT: Mapping[str, float] = MappingProxyType({
    "stories": 12.0,
    "facts": 4.0,
    "ledger": 4.0,
    "recall": 2.0,
    "copying": 4.0,
    "arithmetic": 8.0,
    "tools": 2.5,
    "greetings": 2.0,
    "lists": 6.0,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of training."""

    name: str
    until_tokens: float
    """Tokens trained before the next phase begins."""
    longest: int
    """Tokens of the longest conversation; longer samples are passed over."""
    batch_tokens: int
    """Tokens of a step at most, padding included."""
    dense: bool
    """Whether every visible row is selected."""
    scoring: bool = True
    """Whether scorers learn; only where every row is selected may they wait."""
    drills: float = 5.0
    """Weight of the drills in the mixture."""
    pictures: float = 0.0
    """Weight of pictures and comparisons in the mixture; those that shall not be seen come besides."""
    hides: bool = True
    """Whether rows are hidden from layers up to the candidate source."""
    rate: float = 1.0
    """Learning rate over that of the stage."""
    prompt_weight: float
    """Weight of a prompt token's loss; that of an answer's is 1."""


_FIRST: Mapping[str, Any] = MappingProxyType({"dense": True, "scoring": False, "hides": False, "prompt_weight": 0.05})
_SHOWN: Mapping[str, Any] = MappingProxyType({"pictures": 25.0})
PHASES = (
    Phase(name="drills", until_tokens=2.5e6, longest=96, batch_tokens=3072, drills=25.0, rate=1.6, **_FIRST),
    Phase(name="words", until_tokens=5e6, longest=128, batch_tokens=3072, drills=10.0, **_FIRST),
    Phase(name="pages", until_tokens=7.5e6, longest=224, batch_tokens=4096, dense=True, prompt_weight=0.05, **_SHOWN),
    Phase(name="rows", until_tokens=10e6, longest=512, batch_tokens=4096, dense=False, prompt_weight=0.02, **_SHOWN),
    Phase(
        name="books",
        until_tokens=float("inf"),
        longest=2048,
        batch_tokens=6144,
        dense=False,
        prompt_weight=0.02,
        pictures=40.0,
    ),
)


def phase_at(tokens: float, phases: tuple[Phase, ...] = PHASES) -> Phase:
    """The phase in which this many tokens have been trained."""
    return next(phase for phase in phases if tokens < phase.until_tokens)


def mixture(phase: Phase, weights: Mapping[str, float]) -> Mixture:
    """Families of a phase; sizes count words, which are about four fifths of the tokens."""
    drilled = {**weights, "lists": phase.drills} if "lists" in weights else weights
    pictures = {"pictures": phase.pictures, "unseen": UNSEEN_PART * phase.pictures}
    shown = {**drilled, **pictures} if phase.pictures else drilled
    return Mixture(weights=shown, shortest=10, longest=int(phase.longest * 0.8))


def widened(config: ModelConfig, phase: Phase) -> ModelConfig:
    """The configuration a phase computes with: the model's, or one whose selection holds every row there can be."""
    if not phase.dense:
        return config
    indexer = config.indexer
    topk = max(indexer.topk, phase.longest)
    # One block more than fits: the newest, which is always kept, may hold a single row (decision D9).
    blocks = max(indexer.candidate_blocks, -(-topk // indexer.candidate_block_size) + 1)
    return replace(config, indexer=replace(indexer, topk=topk, candidate_blocks=blocks))


def learning_rate(peak: float, step: int, tokens: float, planned_tokens: float) -> float:
    """Warm-up, a plateau, and a straight line to a tenth over the last fifth of the planned tokens."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    left = (planned_tokens - tokens) / (DECAY_PART * planned_tokens)
    return peak * warm * min(1.0, max(0.1, 0.1 + 0.9 * left))
