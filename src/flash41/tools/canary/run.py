"""The canary: opens a model as often as needed, asks its questions, and gathers what came of it.

    scores         of the model, with whatever the wish leaves out of it
    ablations      of the model without one mechanism after the other
    perplexities   by profile
    drafts         what the model's own drafts bring

Knows nothing of options: how a model is opened comes in as a function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flash41.config.architecture import ModelConfig
from flash41.config.run import Profile
from flash41.engine.llm import LLM
from flash41.errors import RequestError, combined, complaint
from flash41.tools.ablations import ABLATIONS, Ablations, named_ablations
from flash41.tools.canary.asking import Paper, paper
from flash41.tools.canary.conversations import CanarySet, Question
from flash41.tools.canary.drafts import DraftFigures, draft_figures
from flash41.tools.canary.score import Scores, perplexities, score

PROFILES = (Profile.VENDOR, Profile.ATOM, Profile.FP32)
"""Whose perplexities are compared."""

Progress = Callable[[str, int, int], None]
"""Called with (what runs, answers finished, answers in all)."""


class Opener(Protocol):
    """Opens the model in question."""

    def __call__(self, change: Ablations | None, **changes: Any) -> LLM:
        """An engine with a change and with other values of options than those given."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryWish:
    """What to ask and to measure; names as on the command line.  Raises RequestError listing all that is wrong."""

    families: Sequence[str] = ()
    """None means all."""
    num_samples: int | None = None
    """Questions of each family; None asks all."""
    seed: int = 0
    """Decides which, where not all are asked."""
    without: Sequence[str] = ()
    """Mechanisms left out, all of them at once."""
    all_ablations: bool = False
    """Whether every mechanism is left out, one after the other."""
    perplexity: bool = False
    """Whether to measure it under the given profile."""
    profiles: bool = False
    """Whether to measure it under all of `PROFILES`."""
    drafts: bool = False
    """Whether to measure drafts."""

    def __post_init__(self) -> None:
        faults = []
        if self.all_ablations and self.without:
            faults.append(complaint("--all-ablations with --without", list(self.without), "one of the two"))
        if self.drafts and self.without:
            remedy = "both engines would need them"
            faults.append(complaint("--drafts with --without", list(self.without), "the model as it is", remedy))
        if faults:
            raise RequestError(combined(faults))


@dataclass(slots=True, kw_only=True)
class CanaryResult:
    """What came of it."""

    scores: Scores
    ablations: dict[str, Scores] = field(default_factory=dict)
    perplexities: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """By profile, then by family."""
    drafts: DraftFigures | None = None


def canary(
    wish: CanaryWish,
    canary_set: CanarySet,
    config: ModelConfig,
    opener: Opener,
    profile: str,
    is_drafting: bool,
    progress: Progress | None = None,
) -> CanaryResult:
    """Everything the wish asks for.  Raises RequestError for names that do not exist before a model is opened."""
    run = _Canary(wish, canary_set.chosen(wish.families, wish.num_samples, wish.seed), config, opener, progress)
    return run.result(profile, is_drafting)


class _Canary:
    def __init__(
        self,
        wish: CanaryWish,
        questions: Sequence[Question],
        config: ModelConfig,
        opener: Opener,
        progress: Progress | None,
    ) -> None:
        self._wish, self._questions, self._config, self._opener = wish, questions, config, opener
        self._progress = progress or (lambda _what, _done, _total: None)

    def result(self, profile: str, is_drafting: bool) -> CanaryResult:
        wish = self._wish
        self._check(is_drafting)
        llm, asked = self._opened(wish.without)
        result = CanaryResult(scores=score(llm, asked, self._told("scores")))
        if wish.perplexity or wish.profiles:
            result.perplexities[profile] = perplexities(llm, asked, self._told(f"perplexity, {profile}"))
        if wish.drafts:
            result.drafts = self._drafts()
        for other in PROFILES if wish.profiles else ():
            if other.value not in result.perplexities:
                pools = {"kv_cache_dtype": None, "index_cache_dtype": None}
                llm, asked = self._opened(wish.without, profile=other.value, **pools)
                found = perplexities(llm, asked, self._told(f"perplexity, {other.value}"))
                result.perplexities[other.value] = found
        if wish.all_ablations:
            for name, ablation in ABLATIONS.items():
                if ablation.is_in(self._config) and (name != "drafts" or is_drafting):
                    llm, asked = self._opened([name])
                    result.ablations[name] = score(llm, asked, self._told(f"without {name}"))
        return result

    def _check(self, is_drafting: bool) -> None:
        """Refuses what would otherwise be found out when everything else is measured."""
        wish = self._wish
        if "drafts" in wish.without and not is_drafting:
            raise RequestError(complaint("--without drafts", "--draft off", "--draft on or --draft adaptive"))
        if wish.drafts and not self._config.dspark.num_stages:
            raise RequestError(complaint("draft stages of the model", 0, "at least one for --drafts"))
        if wish.drafts and all(one.shows_pictures for one in self._questions):
            families = sorted({one.family for one in self._questions})
            remedy = "such requests have no drafts"
            raise RequestError(complaint("--drafts with --family", families, "one that shows no pictures", remedy))

    def _opened(self, without: Sequence[str], **changes: Any) -> tuple[LLM, Paper]:
        change = named_ablations(without, self._config) if without else None
        llm = self._opener(change, **({} if change is None else change.keywords), **changes)
        return llm, paper(llm, self._questions)

    def _drafts(self) -> DraftFigures | None:
        alone = {"max_num_seqs": 1, "prefix_cache": False, "images": False}
        drafting = self._opener(None, draft="on", **alone)
        plain = self._opener(None, draft="off", **alone)
        asked = paper(plain, self._questions).asked
        return draft_figures(plain, drafting, asked, self._told("drafts")) if asked else None

    def _told(self, what: str) -> Callable[[int, int], None]:
        self._progress(what, 0, len(self._questions))
        return lambda done, total: self._progress(what, done, total)
