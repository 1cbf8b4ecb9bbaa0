"""How a command opens an engine: one record of options, and a decorator that makes them options of a command.

    @takes_engine("max_num_seqs")                            all options of the record but this one
    def generate(model: options.Model = None, *, engine: EngineOptions) -> None:
        llm = engine.open(model, max_num_seqs=1)

To typer such a command looks as if its signature listed the options, each with the record's annotation and default.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any

from flash41.cli import options
from flash41.config.run import DEFAULT_IMAGE_INTERVAL, Draft, DraftAccept, Weights

PARAMETER = "engine"
"""Name of the parameter that the options of a command become."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of an engine in the order of help texts.  Raises a usage error for bytes that are none."""

    profile: options.Profile = "vendor"
    kv_cache_dtype: options.KvCacheDtype = None
    index_cache_dtype: options.IndexCacheDtype = None
    max_model_len: options.MaxModelLen = None
    max_num_seqs: options.MaxNumSeqs = 8
    max_num_batched_tokens: options.MaxNumBatchedTokens = 512
    block_size: options.BlockSize = None
    memory: options.Memory = None
    prefix_cache: options.PrefixCache = True
    state_image_interval: options.StateImageInterval = DEFAULT_IMAGE_INTERVAL
    decoder_replay: options.DecoderReplay = False
    prefix_replay: options.PrefixReplay = False
    images: options.Images = True
    draft: options.Draft = Draft.OFF.value
    draft_accept: options.DraftAccept = None
    backend: options.Backend = "auto"
    threads: options.Threads = None
    weights: options.Weights = Weights.AUTO.value
    weights_memory: options.WeightsMemory = None

    def __post_init__(self) -> None:
        _ = self.memory_bytes, self.weights_memory_bytes

    @property
    def memory_bytes(self) -> int | None:
        """What --memory says."""
        return None if self.memory is None else options.num_bytes(self.memory, "--memory")

    @property
    def weights_memory_bytes(self) -> int | None:
        """What --weights-memory says."""
        return None if self.weights_memory is None else options.num_bytes(self.weights_memory, "--weights-memory")

    @property
    def drafts(self) -> bool:
        """Whether the engine drafts, so that there is something to tell of drafts."""
        return self.draft != Draft.OFF.value

    @property
    def approximate(self) -> list[str]:
        """Names of the options given with which answers are approximate; whatever shows an answer shows these too."""
        given = {"decoder-replay": self.decoder_replay, "prefix-replay": self.prefix_replay}
        return [name for name, on in given.items() if on]

    @property
    def numbers(self) -> tuple[str | None, ...]:
        """What answers depend on besides model and request; drafts count under the rejection rule alone."""
        rejects = self.drafts and self.draft_accept == DraftAccept.REJECTION.value
        rule = [DraftAccept.REJECTION.value] if rejects else []
        return (self.profile, self.kv_cache_dtype, self.index_cache_dtype, *self.approximate, *rule)

    def keywords(self, **changes: Any) -> dict[str, Any]:
        """Keywords of `LLM`, plain values only; `changes` are further fields of this record that a command decides."""
        changed = replace(self, **changes)
        values = {field.name: getattr(changed, field.name) for field in fields(changed)}
        del values["memory"], values["weights_memory"]
        sizes = {"memory_bytes": changed.memory_bytes, "weights_memory_bytes": changed.weights_memory_bytes}
        return values | sizes

    def open(self, model: Path | None, change: Any = None, **changes: Any) -> Any:
        """The `LLM` of these options, opened, with a `ModelChange` if one is given.  Raises what it raises.

        A terminal shows how far its weights are read.
        """
        from flash41.cli.loading import loading_bar
        from flash41.engine.llm import LLM

        with loading_bar() as loading:
            return LLM(model, **loading, change=change, **self.keywords(**changes))


FIELDS = tuple(field.name for field in fields(EngineOptions))


def takes_engine(*without: str, only: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Puts options of an engine in the place of a command's parameter `engine`: all, all but some, or `only` some.

    What is not offered has its default, unless the command changes it where it opens the engine.
    """
    offered = [field for field in fields(EngineOptions) if field.name in (only or FIELDS) and field.name not in without]
    assert set(without) | set(only) <= set(FIELDS), f"no options: {set(without) | set(only)} of {FIELDS}"

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def expanded(**values: Any) -> None:
            engine = EngineOptions(**{field.name: values.pop(field.name) for field in offered})
            command(**values, **{PARAMETER: engine})

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name != PARAMETER:
                parameters.append(parameter.replace(kind=keyword))
                continue
            parameters += [
                inspect.Parameter(field.name, keyword, default=field.default, annotation=field.type)
                for field in offered
            ]
        expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return expanded

    return decorate
