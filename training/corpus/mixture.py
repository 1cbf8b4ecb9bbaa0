"""Endless samples: which family comes next, from a seed, a split and a number.

Sample n of a split is a function of (seed, split, n, mixture); nothing is remembered from one to the next, so a run
that is resumed reads what an uninterrupted one would have read.  Held-out conversations come from another stream of
numbers over the same world: names, places and the code table are shared, their combinations are not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from flash41.chat.conversation import Message
from training.corpus import arithmetic, copying, facts, greetings, ledger, lists, pictures, recall, stories, tools
from training.corpus.sample import Family, Sample

FAMILIES: Mapping[str, Family] = MappingProxyType({
    "stories": stories.sample,
    "facts": facts.sample,
    "ledger": ledger.sample,
    "recall": recall.sample,
    "copying": copying.sample,
    "arithmetic": arithmetic.sample,
    "tools": tools.sample,
    "greetings": greetings.sample,
    "pictures": pictures.sample,
})  # fmt: skip
"""Makers of samples, by the name that a mixture weighs."""

DRILLS: Mapping[str, Family] = MappingProxyType({"lists": lists.sample, "unseen": pictures.unseen})
"""Makers of samples that are trained and not scored."""

SYSTEM_PART, THINKING_PART, TABLELESS_PART = 0.05, 0.1, 0.5
"""Parts of the samples that get a system text or a thought, or lack the tables."""
SYSTEMS = (
    "You are a helpful assistant.", "Answer in one sentence.", "Be friendly.", "You are a careful reader.",
    "Keep it short.", "Help the user.", "You answer questions about stories.", "You are a good teacher.",
)  # fmt: skip
THOUGHT = "I know what to say."
"""Of families that have no thoughts of their own."""

TRAINING, HELD_OUT = "training", "held out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """How often each family comes, and how long its conversations are."""

    weights: Mapping[str, float]
    """By name of `FAMILIES` or `DRILLS`; need not sum to one."""
    shortest: int
    """Words of the shortest conversations asked for."""
    longest: int
    """Words of the longest; lengths are drawn evenly on a logarithmic scale."""


def sample(seed: int, split: str, number: int, mixture: Mixture) -> Sample:
    """Sample `number` of a split."""
    rng = Random(f"{seed}/{split}/{number}")
    name = rng.choices(list(mixture.weights), list(mixture.weights.values()))[0]
    size = round(mixture.shortest * (mixture.longest / mixture.shortest) ** rng.random())
    return framed(rng, (FAMILIES.get(name) or DRILLS[name])(rng, size))


def framed(rng: Random, one: Sample) -> Sample:
    """A sample as a client may put it: now and then behind a system text, or in thinking mode without much to think.

    Every second one must do without tables, unless only they can answer.  The coin knows nothing of the answer: a
    model would learn to read it.
    """
    one = replace(one, is_tableless=not one.needs_tables and rng.random() < TABLELESS_PART)
    if rng.random() < SYSTEM_PART:
        one = replace(one, messages=(Message(role="system", content=rng.choice(SYSTEMS)), *one.messages))
    if one.reasoning is None and not one.tools and rng.random() < THINKING_PART:
        one = replace(one, reasoning=THOUGHT)
    return one
