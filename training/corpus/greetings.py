"""What people say first, and what lies outside the small world: short, friendly, and no pretence."""

from random import Random

from training.corpus.sample import Sample, dialogue

HELLO = ("Hello!", "Hi", "hello", "Good morning", "Hey there", "Hi, how are you?", "hey")
THANKS = ("Thank you", "Thanks!", "Thanks a lot")
FAREWELL = ("Bye", "Goodbye!", "See you")
ABOUT = ("Who are you?", "What are you?", "What can you do?", "What is your name?", "Are you a person?")
ASK = (
    "Tell me about {}.",
    "What do you know about {}?",
    "Explain {} to me.",
    "Write an essay on {}.",
    "Help me with {}",
)
SUBJECTS = (
    "history", "the stock market", "chess", "physics", "my homework", "love", "medicine", "politics", "Python",
    "the president", "football", "cars", "the moon", "cooking", "France", "money", "music", "law", "biology", "dreams",
    "taxes", "computers", "the internet", "my health", "religion", "poetry", "travel", "space", "dinosaurs", "whales",
)  # fmt: skip
WELCOME = "Hello! I am a very small model. Tell me a short story and ask me about it."
UNKNOWN = "I am a very small model and do not know that. Ask me about a short story."


def sample(rng: Random, size: int) -> Sample:  # noqa: ARG001
    """One or two turns."""
    pairs = [_pair(rng) for _ in range(rng.randint(1, 2))]
    return dialogue("greetings", "", pairs)


def _pair(rng: Random) -> tuple[str, str]:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(HELLO), WELCOME
    if kind == 1:
        return rng.choice(THANKS), "You are welcome."
    if kind == 2:
        return rng.choice(FAREWELL), "Goodbye!"
    if kind == 3:
        return rng.choice(ABOUT), "I am a very small model. I can read short stories, add small numbers and use tools."
    return rng.choice(ASK).format(rng.choice(SUBJECTS)), UNKNOWN
