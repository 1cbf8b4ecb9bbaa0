"""The corpus: a function of numbers, answerable from what it shows, rendered as the product renders."""

import json
import re
from random import Random

import numpy as np
import pytest

from flash41.chat.conversation import ChatCodec
from flash41.chat.parts import text_of
from flash41.chat.tokenizer import Tokenizer
from training.corpus import arithmetic, copying, facts, greetings, ledger, pictures, recall, stories, tools
from training.corpus.mixture import FAMILIES, HELD_OUT, THOUGHT, TRAINING, Mixture, sample
from training.corpus.render import Renderer, body, calls_text
from training.corpus.sample import Sample
from training.tokenizer import FOLDER, shipped_config

EVERY = Mixture(weights=dict.fromkeys(FAMILIES, 1.0), shortest=16, longest=200)
each_family = pytest.mark.parametrize("name", list(FAMILIES))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    config = shipped_config()
    return Renderer(ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image), config)


def asked(one: Sample) -> str:
    return text_of(one.messages[0].content)


def turns(one: Sample) -> list[tuple[str, str]]:
    """(question, answer) of every exchange."""
    contents = [*(text_of(message.content) for message in one.messages), one.answer]
    return list(zip(contents[::2], contents[1::2], strict=True))


def test_a_sample_is_a_function_of_seed_split_and_number() -> None:
    first = [sample(1, TRAINING, number, EVERY) for number in range(30)]
    again = [sample(1, TRAINING, number, EVERY) for number in range(30)]
    strip = [(one.family, one.messages, one.answer, one.reasoning) for one in first]
    assert strip == [(one.family, one.messages, one.answer, one.reasoning) for one in again]
    assert len({one.family for one in first}) > 5


def test_held_out_conversations_are_none_of_the_training_ones() -> None:
    mixture = Mixture(weights={"stories": 1.0, "facts": 1.0, "ledger": 1.0}, shortest=30, longest=60)
    trained = {first_turn(sample(1, TRAINING, number, mixture)) for number in range(200)}
    held = {first_turn(sample(0, HELD_OUT, number, mixture)) for number in range(200)}
    assert not trained & held


def first_turn(one: Sample) -> str:
    return next(text_of(message.content) for message in one.messages if message.role == "user")


def test_now_and_then_a_sample_has_a_system_text_or_a_thought(renderer: Renderer) -> None:
    mixture = Mixture(weights={"facts": 1.0, "tools": 1.0}, shortest=30, longest=60)
    found = [sample(1, TRAINING, number, mixture) for number in range(400)]
    led = [one for one in found if one.messages[0].role == "system"]
    thinking = [one for one in found if one.reasoning == THOUGHT]
    assert 0 < len(led) < 0.1 * len(found)
    assert 0 < len(thinking) < 0.2 * len(found)
    assert not any(one.tools for one in thinking), "they have thoughts of their own"
    decode = renderer.codec.tokenizer.decode
    assert all(text_of(one.messages[0].content) in decode(renderer.example(one).ids) for one in led[:3])
    assert all(decode(renderer.example(one).answer).startswith(f"{THOUGHT}</think>") for one in thinking[:3])


def test_a_story_without_a_question_is_acknowledged() -> None:
    found = [greetings.sample(Random(seed), 0) for seed in range(100)]
    heard = [one for one in found if one.answer == greetings.HEARD]
    assert 0 < len(heard) < 25
    assert all("?" not in asked(one) for one in heard)


@each_family
def test_a_sample_is_about_as_long_as_asked(name: str) -> None:
    for size in (16, 300):
        one = FAMILIES[name](Random(size), size)
        words = sum(len(text_of(message.content).split()) for message in one.messages)
        assert 0 < words < 2.5 * size + 60


@each_family
def test_a_rendered_sample_is_prompt_and_answer(name: str, renderer: Renderer) -> None:
    eos = shipped_config().tokens.eos
    for number in range(12):
        mixture = Mixture(weights={name: 1.0}, shortest=16, longest=80)
        one = sample(3, TRAINING, number, mixture)
        example = renderer.example(one)
        assert len(example.marks) == len(example.ids)
        assert example.ids[-1] == eos
        assert all(example.marks[example.num_prompt :])
        assert example.num_prompt > 2
        assert not any(example.marks[:2])
        prompt = renderer.codec.encode(renderer.codec.convert(body(one)))
        if not one.images:
            assert example.ids[: example.num_prompt] == prompt.ids
        marked = [token for token, mark in zip(example.ids, example.marks, strict=True) if mark]
        answers = [message for message in one.messages if message.role == "assistant"]
        assert marked.count(eos) == 1 + len(answers)
        spelled = renderer.codec.tokenizer.decode(marked)
        assert one.answer in spelled
        assert all(text_of(message.content) in spelled for message in answers)


def test_an_answer_with_calls_is_spelled_as_the_codec_spells_it_in_a_history(renderer: Renderer) -> None:
    followed = 0
    for number in range(40):
        one = tools.sample(Random(number), 0)
        if one.calls:
            continue
        followed += 1
        called = Sample(
            family="tools",
            messages=one.messages[:1],
            answer="",
            calls=one.messages[1].tool_calls,
            tools=one.tools,
            reasoning=one.messages[1].reasoning,
        )
        example = renderer.example(called)
        assert renderer.example(one).ids[: len(example.ids)] == example.ids
        parsed = renderer.codec.parser(renderer.codec.convert(body(called)))
        assert calls_text(called.calls) in renderer.codec.tokenizer.decode(example.answer)
        assert parsed is not None
    assert followed > 5


def test_facts_and_shelves_hold_their_answers() -> None:
    for seed in range(20):
        one = facts.sample(Random(seed), 80)
        told = asked(one)
        for question, answer in turns(one):
            thing = re.search(r"(\w+ \w+)\.$", answer) if question.startswith("What") else None
            assert thing is None or thing[1] in told
        one = ledger.sample(Random(seed), 120)
        for question, answer in turns(one):
            found = re.search(r"has the (\w+) of (\w+)\?", question)
            assert found is not None
            line = next(line for line in asked(one).splitlines() if line.startswith(f"{found[2]}:"))
            assert f"{found[1]} of {found[2]}: {answer.rstrip('.').split()[-1]}" in line


def test_answers_repeat_what_was_asked_before_they_say_what_is_looked_up() -> None:
    for seed in range(20):
        for question, answer in turns(facts.sample(Random(seed), 80)):
            asked_for = question.splitlines()[-1].removeprefix("Where is the ").removeprefix("Where does ")
            known = asked_for.removeprefix("What does ").removesuffix("?").removesuffix(" keep")
            assert answer.removeprefix("The ").replace(" keeps ", " keep ").startswith(known)


def test_a_ledger_longer_than_its_names_goes_on_with_fillers() -> None:
    long = asked(ledger.sample(Random(1), 6000))
    assert len(long.split()) > 5000
    assert len(re.findall(r" of (\w+): ", long)) == len(set(re.findall(r"(\w+ of \w+): ", long))), "no thing twice"


def test_a_shelf_of_a_long_ledger_has_more_rows_than_a_selection_holds(renderer: Renderer) -> None:
    one = ledger.sample(Random(1), 400)
    shelf = asked(one).splitlines()[1]
    assert len(renderer.codec.tokenizer.encode(shelf)) > shipped_config().indexer.topk


def test_stories_are_asked_about_their_last_word() -> None:
    for seed in range(30):
        one = stories.sample(Random(seed), 60)
        told = asked(one)
        for question, answer in turns(one):
            where = re.search(r"Where is (\w+)\?", question)
            if where:
                places = re.findall(rf"{where[1]} (?:is in|goes to) the (\w+)\.", told)
                assert answer == f"{where[1]} is in the {places[-1]}."


def test_sums_are_right_and_identifiers_are_repeated() -> None:
    for seed in range(40):
        for question, answer in turns(arithmetic.sample(Random(seed), 60)):
            a, sign, b = re.findall(r"(\d+) ([+-]) (\d+)", question)[0]
            assert int(answer) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
        assert all(question.endswith(f" {answer}") for question, answer in turns(copying.sample(Random(seed), 60)))


def test_the_code_table_is_fixed_and_larger_than_the_lexicon() -> None:
    known = dict(recall.table())
    assert len(known) == recall.NUM_PHRASES
    assert recall.table()[0] == recall.table.__wrapped__()[0]
    for question, answer in turns(recall.sample(Random(1), 100)):
        assert f"{known[question.removeprefix('Code ').removesuffix('?')]}." == answer


def test_tool_arguments_are_those_of_the_question() -> None:
    for seed in range(30):
        one = tools.sample(Random(seed), 0)
        call = one.calls[0] if one.calls else one.messages[1].tool_calls[0]
        declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in one.tools}
        arguments = json.loads(call.arguments)
        assert list(arguments) == declared[call.name]["required"]
        assert all(str(value) in asked(one) for value in arguments.values())


def test_pictures_show_what_their_captions_say(renderer: Renderer) -> None:
    counts = set()
    for seed in range(20):
        one = pictures.sample(Random(seed), 0)
        counts.add(len(one.images))
        if len(one.images) == 1 and "colour" in asked(one):
            colour = pictures.COLOURS[one.answer.removeprefix("It is ").rstrip(".")]
            assert (np.asarray(one.images[0]) == colour).all(-1).sum() > 100
        example = renderer.example(one)
        image = shipped_config().tokens.image
        assert example.ids.count(image) == sum(picture.plan.num_tokens for picture in example.pictures)
    assert counts == {1, 2}


def test_about_half_of_the_compared_pictures_agree() -> None:
    compared = [one for one in (pictures.sample(Random(seed), 0) for seed in range(200)) if len(one.images) == 2]
    agreeing = sum(one.answer.endswith(": yes.") for one in compared)
    assert 0.3 < agreeing / len(compared) < 0.7
