"""The held-out conversations that `flash41 canary` asks, written into the package as Chat Completions messages.

    python -m training.canary_set        rewrites src/flash41/tools/canary/data/conversations.jsonl.gz

The first line says of each family what it needs and what guessing scores; every other line is one conversation, whose
assistant turns are the right answers.  Families come from `corpus.mixture`, lengths from `SIZES`, numbers from a stream
of their own, so no conversation is one of training or of its evaluations.  The same corpus gives the same lines.
"""

import base64
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from PIL import Image

from flash41.chat.conversation import ChatCodec, ToolCall
from flash41.chat.parts import STAND_IN
from flash41.chat.tokenizer import Tokenizer
from flash41.errors import ConfigError, complaint
from training.corpus import pictures, words
from training.corpus.mixture import FAMILIES, HELD_OUT
from training.corpus.render import Renderer, body
from training.corpus.sample import Sample
from training.tokenizer import FOLDER, shipped_config

TARGET = Path(__file__).parents[1] / "src" / "flash41" / "tools" / "canary" / "data" / "conversations.jsonl.gz"
SEED = 41
LIMIT = 8192
"""Tokens of the longest conversation, answer included, as the model's own tokenizer counts them."""
TRIES = 100
"""Samples looked at for one conversation; small families have not as many different ones."""

SHORT = (16, 32, 48, 64, 96, 128) * 5
LADDER = (24, 48, 96, 192, 384, 768) * 4 + (1500, 1500, 3000, 3000, 9000)
"""Words; 9,000 is cut to what `LIMIT` holds."""
SHELVES = (48, 64, 96, 128, 192, 256) * 4 + (384, 384, 768, 768, 1500)
"""Words of ledgers: with fewer, window and first selection hold everything."""
SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType({"facts": LADDER, "ledger": SHELVES, "stories": LADDER[:24]})
"""Words of each conversation, for families that are not `SHORT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a table says of a family."""

    needs: str
    """The mechanism its answers need."""
    chance: float
    """Score of whoever knows the language and guesses what only the conversation, or the table of codes, says."""


def _mean(*parts: float) -> float:
    return sum(parts) / len(parts)


_THINGS = len(words.COLOURS) * len(words.THINGS)

TRAITS: Mapping[str, Traits] = MappingProxyType({
    # A person is in one of the places, holds a coloured thing, or saw an animal.
    "stories": Traits(
        needs="compressed rows", chance=_mean(1 / len(words.PLACES), 1 / _THINGS, 1 / len(words.ANIMALS))
    ),
    "facts": Traits(
        needs="compressed rows and their selection",
        chance=_mean(1 / len(words.PLACES), 1 / _THINGS, 1 / len(words.PLACES)),
    ),
    "ledger": Traits(needs="a second selection inside candidate blocks", chance=1 / len(words.COLOURS)),
    "recall": Traits(needs="n-gram tables", chance=0.0),
    "copying": Traits(needs="the window", chance=0.0),
    "arithmetic": Traits(needs="digits one by one", chance=0.0),
    "tools": Traits(needs="the format of calls", chance=0.0),
    "greetings": Traits(needs="a short answer", chance=0.0),
    "pictures": Traits(
        needs="vision tower and bias_vl",
        chance=_mean(
            1 / len(pictures.COLOURS) / len(pictures.SHAPES), 1 / len(pictures.COLOURS), 1 / len(pictures.SHAPES)
        ),
    ),
    # Both are guessed, the second as the first: it was made to agree (0.4), or does so by accident.
    "comparisons": Traits(
        needs="vision tower and bias_vl",
        chance=_mean(*(part * (0.4 + 0.6 * part) for part in (1 / len(pictures.COLOURS), 1 / len(pictures.SHAPES)))),
    ),
})  # fmt: skip


def lines() -> Iterator[str]:
    """The file, line by line.  Raises ConfigError listing families of which `TRAITS` says nothing."""
    config = shipped_config()
    renderer = Renderer(ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image), config)
    found = [sample for maker in FAMILIES for sample in _conversations(maker, renderer)]
    names = list(dict.fromkeys(sample.family for sample in found))
    unknown = [name for name in names if name not in TRAITS]
    if unknown:
        raise ConfigError(complaint("families", unknown, "those that TRAITS of training/canary_set.py describes"))
    families = {name: {"needs": TRAITS[name].needs, "chance": round(TRAITS[name].chance, 4)} for name in names}
    yield line({"families": families})
    for sample in found:
        yield line(document(sample))


def document(sample: Sample) -> dict[str, Any]:
    """A sample as messages, its answer the last of them."""
    wire = body(sample)
    shown = iter(sample.images)
    messages: list[dict[str, Any]] = [
        {**message, "content": _with_pixels(message["content"], shown)} for message in wire["messages"]
    ]
    found: dict[str, Any] = {"family": sample.family, "messages": [*messages, _answer(sample)]}
    return {**found, "tools": wire["tools"]} if "tools" in wire else found


def _conversations(maker: str, renderer: Renderer) -> Iterator[Sample]:
    """Of one maker, which may make several families: as many of each as there are sizes, or different ones."""
    sizes = SIZES.get(maker, SHORT)
    missing = {_drawn(maker, number, sizes[0]).family: list(sizes) for number in range(40)}
    known: set[str] = set()
    for number in range(TRIES * len(sizes)):
        if not any(missing.values()):
            return
        longest = max(missing, key=lambda family: len(missing[family]))
        sample = _fitting(maker, number, missing[longest][0], renderer)
        left, asked = missing[sample.family], str((sample.messages, [image.tobytes() for image in sample.images]))
        if left and asked not in known:
            known.add(asked)
            left.pop(0)
            yield sample


def _fitting(maker: str, number: int, size: int, renderer: Renderer) -> Sample:
    """A sample of `size` words, or of as many as the longest conversation holds."""
    sample = _drawn(maker, number, size)
    while len(renderer.example(sample).ids) > LIMIT:
        size = size * 97 // 100
        sample = _drawn(maker, number, size)
    return sample


def _drawn(maker: str, number: int, size: int) -> Sample:
    return FAMILIES[maker](Random(f"{SEED}/{HELD_OUT} canary {maker}/{number}"), size)


def _with_pixels(content: Any, shown: Iterator[Image.Image]) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "image_url", "image_url": {"url": _data_url(next(shown))}} if part["type"] == "image_url" else part
        for part in content
    ]


def _data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return STAND_IN + base64.b64encode(file.getvalue()).decode("ascii")


def _answer(sample: Sample) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": "assistant", "content": sample.answer}
    if sample.reasoning is not None:
        wire["reasoning_content"] = sample.reasoning
    if sample.calls:
        wire["tool_calls"] = [_call(call) for call in sample.calls]
    return wire


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def line(value: Mapping[str, Any]) -> str:
    """A line of the file."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def main() -> None:
    """Writes the file."""
    text = "".join(lines())
    TARGET.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
