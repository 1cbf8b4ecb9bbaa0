"""Every engine whose arrays we know, by its name on the command line."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

from flash41.errors import RequestError, complaint
from flash41.tools.adapters.llama_cpp import LLAMA_CPP
from flash41.tools.adapters.record import Adapter, Hook, matches
from flash41.tools.adapters.sglang import SGLANG
from flash41.tools.adapters.transformers import TRANSFORMERS
from flash41.tools.adapters.vllm import VLLM

ADAPTERS: Mapping[str, Adapter] = MappingProxyType(
    {adapter.engine: adapter for adapter in (VLLM, SGLANG, TRANSFORMERS, LLAMA_CPP)}
)


def find_adapter(engine: str) -> Adapter:
    """The adapter of an engine; RequestError listing the engines for a name that is none of theirs."""
    if engine not in ADAPTERS:
        raise RequestError(complaint("engine", engine, f"one of {', '.join(ADAPTERS)}"))
    return ADAPTERS[engine]


def shown(adapter: Adapter, points: Collection[str]) -> Iterator[tuple[str, Hook, dict[str, int]]]:
    """Of `points`, ascending, those the engine shows, with their hook and the numbers of its placeholders."""
    for point in sorted(points):
        for hook, values in matches(adapter, point, "point"):
            yield point, hook, values


def check_like(adapter: Adapter, patterns: Sequence[str], points: Collection[str], num_streams: int) -> None:
    """RequestError listing the patterns that match none of the points the engine shows, and a width it cannot have."""
    known = list(shown(adapter, points))
    idle = [text for text in patterns if not any(fnmatchcase(point, text) for point, _, _ in known)]
    if idle:
        remedy = f"`flash41 hooks {adapter.engine} DIR` lists them"
        raise RequestError(complaint("points that match nothing", idle, f"points that {adapter.engine} shows", remedy))
    fixed = {hook.change.num_streams for _, hook, _ in known} - {None, num_streams}
    if fixed:
        expected = f"the {max(number for number in fixed if number)} that arrays of {adapter.engine} hold"
        raise RequestError(complaint("residual streams (hc_mult)", num_streams, expected))
