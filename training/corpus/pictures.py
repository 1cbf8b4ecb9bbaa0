"""Pictures of one plain shape: captions, and comparisons of two of them."""

from dataclasses import replace
from random import Random

from PIL import Image, ImageDraw

from training.corpus.sample import IMAGE, Sample, user

SIDE = 84
COLOURS = {
    "red": (220, 40, 40),
    "blue": (40, 70, 220),
    "green": (40, 170, 60),
    "yellow": (235, 215, 50),
    "black": (15, 15, 15),
    "white": (250, 250, 250),
}
SHAPES = ("circle", "square", "triangle", "bar")
GROUND = (150, 150, 150)
UNSEEN = "I see no picture."


def sample(rng: Random, size: int) -> Sample:  # noqa: ARG001
    """One picture with its caption or a question about it, or two to compare."""
    first, second = _shape(rng), _shape(rng)
    if rng.random() < 0.6:
        question, answer = _question(rng, *first)
        return Sample(
            family="pictures", messages=(user(f"{IMAGE}{question}"),), answer=answer, images=(draw(rng, *first),)
        )
    what = rng.choice(("colour", "shape"))
    pick = 0 if what == "colour" else 1
    if rng.random() < 0.4:  # chance alone would seldom let two agree
        second = (first[0], second[1]) if what == "colour" else (second[0], first[1])
    # What is seen comes before what follows from it: the other way round both would have to be known at once.
    answer = f"It is {first[pick]} and {second[pick]}: {'yes' if first[pick] == second[pick] else 'no'}."
    return Sample(
        family="comparisons",
        messages=(user(f"{IMAGE}{IMAGE}Is it the same {what}?"),),
        answer=answer,
        images=(draw(rng, *first), draw(rng, *second)),
    )


def unseen(rng: Random, size: int) -> Sample:
    """The same, read by the experts of text: without `bias_vl` a model shall say what it lacks, and guess nothing."""
    return replace(sample(rng, size), family="unseen", answer=UNSEEN, is_misrouted=True)


def draw(rng: Random, colour: str, shape: str) -> Image.Image:
    """A shape of random size at a random place on grey."""
    image = Image.new("RGB", (SIDE, SIDE), GROUND)
    half = rng.randint(26, 36)
    x, y = (rng.randint(half + 2, SIDE - half - 2) for _ in range(2))
    box, fill, pen = (x - half, y - half, x + half, y + half), COLOURS[colour], ImageDraw.Draw(image)
    if shape == "circle":
        pen.ellipse(box, fill)
    elif shape == "square":
        pen.rectangle(box, fill)
    elif shape == "triangle":
        pen.polygon([(x, y - half), (x - half, y + half), (x + half, y + half)], fill)
    else:
        pen.rectangle((x - half, y - half // 4, x + half, y + half // 4), fill)
    return image


def _shape(rng: Random) -> tuple[str, str]:
    return rng.choice(list(COLOURS)), rng.choice(SHAPES)


def _question(rng: Random, colour: str, shape: str) -> tuple[str, str]:
    return rng.choice((
        ("What is this?", f"A {colour} {shape}."),
        ("Which colour is it?", f"It is {colour}."),
        ("Which shape is it?", f"It is a {shape}."),
    ))  # fmt: skip
