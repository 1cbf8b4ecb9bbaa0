from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flash41.engine.llm import LLM
from flash41.tools.canary.asking import Asked
from flash41.tools.canary.drafts import MOST_OF_A_FAMILY, draft_figures, shortest
from helpers.canary_questions import answered, question

PROMPTS = [[0, 7, 9, 300], [0, 5], [0, 41, 42, 43, 44]]


def test_the_shortest_questions_of_each_family_are_asked() -> None:
    asked = [
        Asked(question=question(family, number), ids=(0,) * number, pictures=(), answer=(1,))
        for family, count in (("a", 20), ("b", 2))
        for number in range(count, 0, -1)
    ]
    found = shortest(asked)
    assert sorted(len(one.ids) for one in found if one.question.family == "a") == list(range(1, MOST_OF_A_FAMILY + 1))
    assert sum(one.question.family == "b" for one in found) == 2


@pytest.fixture(scope="module")
def engines(tiny_directory: Path) -> tuple[LLM, LLM]:
    plain, drafting = (
        LLM(tiny_directory, draft=draft, max_model_len=64, max_num_seqs=1, prefix_cache=False, threads=1)
        for draft in ("off", "on")
    )
    return plain, drafting


def test_answers_are_equal_and_drafts_counted(engines: tuple[LLM, LLM]) -> None:
    plain, drafting = engines
    asked = answered(plain, PROMPTS, "a", 6)
    seen: list[tuple[int, int]] = []
    found = draft_figures(plain, drafting, asked, lambda done, total: seen.append((done, total)))
    assert found.equal
    assert (found.answers, seen) == (3, [(1, 3), (2, 3), (3, 3)])
    assert found.drafted > 0
    assert found.accepted_share == found.accepted / found.drafted
    assert found.tokens_per_step is not None
    assert found.tokens_per_step >= 1
    assert len(found.by_position) <= drafting.plan.draft_tokens
    assert found.speedup == found.seconds_without / found.seconds_with


def test_right_drafts_are_accepted_and_another_answer_is_noticed(
    engines: tuple[LLM, LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, drafting = engines
    asked = answered(plain, PROMPTS[:1], "a", 7)
    assert drafting.engine.drafting is not None
    right = list(asked[0].answer)
    drafting.engine.drafting.forced = lambda request, drafts: right[len(request.output_ids) :][: len(drafts)]
    found = draft_figures(plain, drafting, asked)
    drafting.engine.drafting.forced = None
    assert (found.accepted_share, found.equal) == (1.0, True)
    assert found.tokens_per_step == 6.0

    finished = LLM.as_finished

    def spoiling(self: LLM, requests: Any) -> Iterator[Any]:
        for answer in finished(self, requests):
            if self is drafting:
                answer.request.output_ids[-1] += 1
            yield answer

    monkeypatch.setattr(LLM, "as_finished", spoiling)
    assert not draft_figures(plain, drafting, asked).equal
