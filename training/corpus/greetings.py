"""What people say first, and what lies outside the small world: short, friendly, and no pretence."""

from random import Random

from training.corpus.sample import Sample, dialogue
from training.corpus.stories import told

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
    "What is {}?",
    "Why is {} so important?",
    "How does {} work?",
    "Can you write about {}?",
    "What do you think of {}?",
)
OPEN = (
    "Why is the sky blue?", "What time is it?", "Tell me a joke.", "Write a poem.", "Where do you live?",
    "How old are you?", "What is the capital of France?", "Who was the first man on the moon?", "Do you like me?",
    "Can you help me?", "What day is today?", "Translate this into German.", "Sing a song.", "How far is the sun?",
    "Who is the king of England?", "What should I eat today?", "Fix my code.", "Is there life on Mars?",
)  # fmt: skip
SUBJECTS = (
    "history", "the stock market", "chess", "physics", "my homework", "love", "medicine", "politics", "Python",
    "the president", "football", "cars", "the moon", "cooking", "France", "money", "music", "law", "biology", "dreams",
    "taxes", "computers", "the internet", "my health", "religion", "poetry", "travel", "space", "dinosaurs", "whales",
)  # fmt: skip
WELCOME = "Hello! I am a very small model. Tell me a short story and ask me about it."
UNKNOWN = "I am a very small model and do not know that. Ask me about a short story."
HEARD = "I have read it. Ask me about it."


def sample(rng: Random, size: int) -> Sample:  # noqa: ARG001
    """One or two turns, or a story without a question."""
    if rng.random() < 0.1:
        return dialogue("greetings", "", [(told(rng, 30), HEARD)])
    pairs = [_pair(rng) for _ in range(rng.randint(1, 2))]
    return dialogue("greetings", "", pairs)


def _pair(rng: Random) -> tuple[str, str]:
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(HELLO), WELCOME
    if kind == 1:
        return rng.choice(THANKS), "You are welcome."
    if kind == 2:
        return rng.choice(FAREWELL), "Goodbye!"
    if kind == 3:
        return rng.choice(ABOUT), "I am a very small model. I can read short stories, add small numbers and use tools."
    if kind == 4:
        return rng.choice(OPEN), UNKNOWN
    return rng.choice(ASK).format(rng.choice(SUBJECTS)), UNKNOWN
