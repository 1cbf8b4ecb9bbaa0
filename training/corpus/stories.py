"""Short stories about people who go somewhere, take things and meet animals, and questions about how it stands now."""

from random import Random

from training.corpus.sample import Sample, dialogue, user
from training.corpus.words import ANIMALS, COLOURS, FILLERS, NAMES, PLACES, THINGS, VERBS, count_words, distinct

State = dict[str, dict[str, str]]


def sample(rng: Random, size: int) -> Sample:
    """A story of about `size` words; one in three is answered after a thought."""
    sentences, state = _story(rng, size)
    pairs = _questions(rng, state)
    opening = " ".join(sentences)
    if rng.random() < 0.33:
        question, answer, thought = rng.choice(pairs)
        messages = (user(f"{opening}\n{question}"),)
        return Sample(family="stories", messages=messages, answer=answer, reasoning=thought)
    return dialogue("stories", opening, [(question, answer) for question, answer, _ in pairs[:3]])


def told(rng: Random, size: int) -> str:
    """A story of about `size` words that nobody asks about."""
    return " ".join(_story(rng, size)[0])


def _story(rng: Random, size: int) -> tuple[list[str], State]:
    people, sentences = distinct(rng, NAMES, 2 + size // 60), list[str]()
    state: State = {name: {} for name in people}
    for name in people:
        state[name]["place"] = rng.choice(PLACES)
        sentences.append(f"{name} is in the {state[name]['place']}.")
    while count_words(sentences) < size:
        name = rng.choice(people)
        kind = rng.randrange(4)
        if kind == 0:
            state[name]["place"] = rng.choice(PLACES)
            sentences.append(f"{name} goes to the {state[name]['place']}.")
        elif kind == 1:
            state[name]["thing"] = f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"
            sentences.append(f"{name} takes a {state[name]['thing']}.")
        elif kind == 2:
            state[name]["animal"] = rng.choice(ANIMALS)
            sentences.append(f"{name} sees a {state[name]['animal']}.")
        else:
            sentences.append(f"{name} {rng.choice(VERBS)[0]}." if rng.random() < 0.5 else rng.choice(FILLERS))
    return sentences, state


def _questions(rng: Random, state: State) -> list[tuple[str, str, str]]:
    """(question, answer, thought) about the last thing that was told of each person."""
    found = []
    for name, facts in state.items():
        place = facts["place"]
        found.append((f"Where is {name}?", f"{name} is in the {place}.", f"Last I read of {name}: the {place}."))
        if "thing" in facts:
            thing = facts["thing"]
            found.append((f"What did {name} take last?", f"{name} took a {thing}.", f"{name} takes a {thing}."))
        if "animal" in facts:
            animal = facts["animal"]
            found.append((f"What did {name} see last?", f"{name} saw a {animal}.", f"{name} sees a {animal}."))
    rng.shuffle(found)
    return found
