"""Options as people write them, turned into a `RunWish`."""

from dataclasses import replace
from typing import TypeVar

from flash41.config.run import Draft, DraftAccept, PoolDtype, Profile, RunWish, Weights
from flash41.errors import ConfigError, complaint

Choice = TypeVar("Choice", Profile, PoolDtype, Draft, DraftAccept, Weights)


def named_wish(
    wish: RunWish,
    *,
    profile: str,
    kv_cache_dtype: str | None = None,
    index_cache_dtype: str | None = None,
    draft: str | None = None,
    draft_accept: str | None = None,
    weights: str | None = None,
) -> RunWish:
    """`wish` with what these names say; None leaves a pool to the profile, and drafting and weights as they are.

    Raises ConfigError naming the option, the value and the values there are.
    """
    main = None if kv_cache_dtype is None else _member(PoolDtype, "kv_cache_dtype", kv_cache_dtype)
    index = None if index_cache_dtype is None else _member(PoolDtype, "index_cache_dtype", index_cache_dtype)
    chosen = _member(Profile, "profile", profile)
    return replace(
        wish,
        profile=chosen,
        kv_cache_dtype=main,
        index_cache_dtype=index,
        draft=wish.draft if draft is None else _member(Draft, "draft", draft),
        draft_accept=wish.draft_accept if draft_accept is None else _member(DraftAccept, "draft_accept", draft_accept),
        weights=wish.weights if weights is None else _member(Weights, "weights", weights),
    )


def _member(kind: type[Choice], name: str, value: str) -> Choice:
    for member in kind:
        if member.value == value:
            return member
    raise ConfigError(complaint(name, value, f"one of {', '.join(member.value for member in kind)}"))
