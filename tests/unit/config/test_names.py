from typing import Any

import pytest

from flash41.config.names import named_wish
from flash41.config.run import PoolDtype, Profile, RunWish
from flash41.errors import ConfigError


@pytest.mark.parametrize("profile", Profile)
def test_every_profile_has_its_name(profile: Profile) -> None:
    assert named_wish(RunWish(), profile=profile.value).profile is profile


@pytest.mark.parametrize("dtype", PoolDtype)
def test_every_storage_has_its_name_for_either_pool(dtype: PoolDtype) -> None:
    wish = named_wish(RunWish(), profile="atom", kv_cache_dtype=dtype.value)
    assert (wish.kv_cache_dtype, wish.index_cache_dtype) == (dtype, None)
    wish = named_wish(RunWish(), profile="atom", index_cache_dtype=dtype.value)
    assert (wish.kv_cache_dtype, wish.index_cache_dtype) == (None, dtype)


def test_pools_without_a_name_are_those_of_the_profile() -> None:
    wish = named_wish(RunWish(kv_cache_dtype=PoolDtype.FP4), profile="atom")
    assert wish.pool == Profile.ATOM.default_pool


def test_the_rest_of_the_wish_is_kept() -> None:
    wish = RunWish(max_num_seqs=3, backend="reference", threads=2)
    named = named_wish(wish, profile="vendor")
    assert (named.max_num_seqs, named.backend, named.threads) == (3, "reference", 2)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"profile": "Vendor"}, r"^profile: got 'Vendor', expected one of vendor, atom, fp32, demo$"),
        ({"profile": ""}, r"^profile: got ''"),
        ({"kv_cache_dtype": "fp16"}, r"^kv_cache_dtype: got 'fp16', expected one of bf16, fp4, fp8, fp32$"),
        ({"index_cache_dtype": ""}, r"^index_cache_dtype: got '', expected one of bf16, fp4, fp8, fp32$"),
    ],
)
def test_another_name_is_refused_with_the_names_there_are(names: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        named_wish(RunWish(), **{"profile": "vendor", **names})
