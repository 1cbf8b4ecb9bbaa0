import json

import pytest

from flash41.errors import RequestError
from flash41.tools.canary.conversations import MOST_ASKED, CanarySet, Question, parsed_set, read_set


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str, **others: str) -> dict[str, str]:
    return {"role": "assistant", "content": text, **others}


def line(family: str, *messages: dict[str, str], **others: object) -> str:
    return json.dumps({"family": family, "messages": messages, **others})


def small() -> CanarySet:
    families = {name: {"needs": f"what {name} needs", "chance": 0.5} for name in ("a", "b")}
    talk = [part for number in range(6) for part in (user(f"q{number}"), said(f"r{number}"))]
    lines = [
        line("a", *talk[:4]),
        line("a", *talk),
        line("a", user("q"), said("r", reasoning_content="t")),
        line("b", user("q"), said("r"), tools=[{"type": "function"}]),
    ]
    return parsed_set("\n".join([json.dumps({"families": families}), *lines]))


def answers(questions: list[Question]) -> list[tuple[int, str]]:
    return [(one.conversation, one.answer["content"]) for one in questions]


def test_every_answer_of_a_conversation_is_asked_up_to_a_number_of_the_last() -> None:
    found = answers(small().chosen(["a"]))
    assert found == [(0, "r0"), (0, "r1"), *((1, f"r{turn}") for turn in range(6 - MOST_ASKED, 6)), (2, "r")]


def test_a_question_is_what_stands_before_its_answer() -> None:
    first, second, *_ = small().chosen()
    assert [message["content"] for message in first.body["messages"]] == ["q0"]
    assert [message["content"] for message in second.body["messages"]] == ["q0", "r0", "q1"]


def test_an_answer_with_reasoning_is_asked_in_thinking_mode_and_tools_are_declared() -> None:
    *_, thought, called = small().questions
    assert thought.body["thinking"] == {"type": "enabled"}
    assert called.body["thinking"] == {"type": "disabled"}
    assert "tools" not in thought.body
    assert called.body["tools"] == [{"type": "function"}]


def test_a_conversation_is_asked_twice_when_all_others_were_asked_once() -> None:
    some = small()
    for seed in range(5):
        assert {number for number, _ in answers(some.chosen(["a"], 3, seed))} == {0, 1, 2}
    assert len(some.chosen(["a"], 5)) == 5
    assert answers(some.chosen(["a"], 100)) == answers(some.chosen(["a"]))


def test_the_seed_decides_which_are_taken() -> None:
    whole = read_set()
    assert whole.chosen((), 3, 1) == whole.chosen((), 3, 1)
    assert whole.chosen((), 3, 1) != whole.chosen((), 3, 2)
    counts = dict.fromkeys(whole.families, 0)
    for one in whole.chosen((), 3, 1):
        counts[one.family] += 1
    assert set(counts.values()) == {3}


def test_a_wrong_name_or_number_is_refused() -> None:
    with pytest.raises(RequestError, match=r"family: got 'c', expected one of a, b") as caught:
        small().chosen(["c", "a", "d"])
    assert "'d'" in str(caught.value)
    with pytest.raises(RequestError, match="samples: got 0, expected an integer of at least 1"):
        small().chosen((), 0)


def test_the_set_of_the_package_has_enough_of_every_family() -> None:
    whole = read_set()
    for family, traits in whole.families.items():
        assert traits.needs
        assert 0 <= traits.chance < 0.6
        assert len(whole.chosen([family])) >= 24, family
    pictured = {one.family for one in whole.questions if one.shows_pictures}
    assert pictured
    assert pictured < set(whole.families)
