from itertools import pairwise
from pathlib import Path

from flash41.engine.llm import LLM
from flash41.tools.canary.asking import paper
from flash41.tools.canary.conversations import read_set


def test_prompts_are_those_of_the_checkpoints_own_codec(llm: LLM) -> None:
    (question,) = read_set().chosen(["copying"], 1)
    (asked,) = paper(llm, [question]).asked
    assert asked.ids == llm.codec.encode(llm.codec.convert(question.body)).ids
    assert llm.tokenizer.decode(asked.answer[:-1]) == question.answer["content"]
    request = asked.request(llm)
    assert (request.params.temperature, request.params.max_tokens) == (0, len(asked.answer))
    assert tuple(request.prompt_ids) == asked.ids


def test_a_picture_takes_the_positions_of_its_span(llm: LLM) -> None:
    (question,) = read_set().chosen(["comparisons"], 1)
    (asked,) = paper(llm, [question]).asked
    assert len(asked.pictures) == asked.ids.count(llm.config.tokens.image) == 2
    assert len(asked.request(llm).prompt_ids) == asked.prompt_tokens > len(asked.ids)


def test_what_is_too_long_or_pictured_is_left_out_with_its_reason(tiny_directory: Path) -> None:
    blind = LLM(tiny_directory, max_model_len=600, images=False, threads=1)
    found = paper(blind, read_set().chosen(["facts", "pictures"]))
    reasons = {(question.family, reason) for question, reason in found.left_out}
    assert reasons == {
        ("facts", "it is longer than 600 tokens"),
        ("pictures", "it shows pictures, and no image encoder is open"),
    }
    assert {one.question.family for one in found.asked} == {"facts"}
    assert all(one.prompt_tokens + len(one.answer) <= 600 for one in found.asked)
    for one in found.asked:
        one.request(blind)  # would be refused


def test_long_conversations_begin_and_turns_come_one_round_after_the_other(llm: LLM) -> None:
    together = llm.plan.max_num_seqs
    found = paper(llm, read_set().chosen(["copying", "arithmetic"], 60)).asked
    places: dict[int, list[int]] = {}
    for place, one in enumerate(found):
        places.setdefault(one.question.conversation, []).append(place)
    lengths = [max(found[place].prompt_tokens for place in turns) for turns in places.values()]
    assert lengths == sorted(lengths, reverse=True)
    for turns in places.values():
        depths = [len(found[place].question.body["messages"]) for place in turns]
        assert depths == sorted(depths)
        assert all(later - earlier <= together for earlier, later in pairwise(turns))
    assert max(map(len, places.values())) > 1
