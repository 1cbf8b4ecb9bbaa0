"""Prompts as callers write them, made one kind of thing: texts, ids, arrays, one or several."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flash41.engine.llm_images import Pictured
from flash41.engine.request import SamplingParams
from flash41.errors import RequestError, combined, complaint

Prompt = str | Sequence[int]


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several: a text, ids, texts, or lists of ids; ids may be arrays of numpy or torch."""
    if isinstance(prompts, str):
        return [prompts]
    expected = "one prompt, or a list of texts and lists of ids"
    if not isinstance(plain(prompts), Iterable) or isinstance(prompts, (bytes, Mapping)):
        raise RequestError(complaint("prompts", prompts, expected))
    items = [plain(item) for item in plain(prompts)]
    is_prompt = [isinstance(item, (str, Sequence)) and not isinstance(item, bytes) for item in items]
    if any(is_prompt) and not all(is_prompt):
        raise RequestError(complaint("prompts", items[:8], expected))
    return items if all(is_prompt) else [items]


def plain(value: Any) -> Any:
    """Integers and lists in place of an array or a number of numpy or torch."""
    return value.tolist() if hasattr(value, "tolist") else value


def as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One set of parameters per prompt; raises RequestError when there are more or fewer than prompts."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(complaint("sampling parameters", len(params), f"one, or one per prompt ({count})"))
    return list(params)


def as_images(images: Sequence[Sequence[Pictured]] | None, count: int) -> list[Sequence[Pictured]]:
    """The pictures of each prompt; raises RequestError when there are more or fewer lists than prompts."""
    if images is None:
        return [()] * count
    if isinstance(images, (str, bytes)) or any(isinstance(item, (str, bytes)) for item in images):
        raise RequestError(complaint("images", "one image", "a list of images for each prompt"))
    if len(images) != count:
        raise RequestError(complaint("lists of images", len(images), f"one per prompt ({count})"))
    return list(images)


def check_ids(ids: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
    """Raises RequestError that names every token id outside the vocabulary."""
    faults = []
    given = {"token ids": ids, "logit_bias tokens": params.logit_bias, "stop_token_ids": params.stop_token_ids}
    for name, tokens in given.items():
        wrong = [token for token in tokens if not _is_integer(token) or not 0 <= token < vocab_size]
        if wrong:
            faults.append(complaint(name, wrong[:8], f"integers from 0 to {vocab_size - 1}"))
    if faults:
        raise RequestError(combined(faults))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
