"""From wishes to pools: sizes by hand, reasons, refusals with their numbers, and memory that is what was planned."""

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.geometry import pool_geometry
from flash41.cache.placement import placement
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import config_from_dict
from flash41.config.run import Draft, DraftAccept, PoolDtype, PoolFormat, Profile, RunWish
from flash41.errors import CapacityError, ConfigError
from flash41.planning.resolve import DEFAULT_MODEL_LEN, RunPlan, default_block_size, resolve
from helpers.command_line import environment
from helpers.config_documents import DATA, patched, release_config, tiny_config, tiny_text

PAIRS = [(profile, pool) for profile in Profile for pool in profile.allowed_pools]
PAGE, STATE, IMAGE = 739_840, 5_276_672, 5_242_880
"""Bytes of the release with BF16 main and FP8 index rows."""


def tiny_with(**values: Any) -> ModelConfig:
    document = patched({f"text_config.{key}": value for key, value in values.items()}, json.loads(tiny_text()))
    return config_from_dict(document)


def windows_only() -> ModelConfig:
    """A model whose layers have no compressed rows."""
    return tiny_with(
        compress_ratios=[0] * len(json.loads(tiny_text())["text_config"]["compress_ratios"]),
        kv_source_layer_ids=[],
        index_source_layer_ids=[],
        candidate_source_layer_id=-1,
        candidate_block_size=0,
        candidate_topk_blocks=0,
    )


def atom(**values: Any) -> RunWish:
    return RunWish(profile=Profile.ATOM, **values)


def reasons(plan: RunPlan) -> dict[str, str]:
    return {choice.name: choice.reason for choice in plan.choices}


def test_without_a_budget_every_request_fits_at_full_length() -> None:
    plan = resolve(atom(max_num_seqs=3, max_model_len=1000), release_config())
    assert (plan.num_pages, plan.max_num_seqs, plan.max_model_len, plan.block_size) == (3 * 4, 3, 1000, 256)
    assert plan.max_num_batched_tokens == RunWish().max_num_batched_tokens
    assert plan.placement is not None
    assert plan.placement.total_bytes == 12 * PAGE + 3 * STATE
    assert [str(choice) for choice in plan.choices] == [
        "slots 3: 5,276,672 bytes of STATE each",
        "pages 12: 256 tokens and 739,840 bytes each; enough for every request at full length",
        "pool bytes 24,708,096: pages and STATE in one allocation",
        "images 14: 5,242,880 bytes of STATE each; 2 per slot and 8 more",
        "longest request 1,000: as asked",
    ]


def test_a_budget_pays_for_state_first_and_leaves_the_rest_to_pages() -> None:
    budget = 4 * STATE + 7 * PAGE + 3 * 256 + 1024  # and the alignment of the zones
    plan = resolve(atom(max_num_seqs=4, memory_bytes=budget), release_config())
    assert (plan.num_pages, plan.max_num_seqs, plan.max_model_len) == (7, 4, 7 * 256)
    assert plan.placement is not None
    assert budget - PAGE < plan.placement.total_bytes <= budget
    assert reasons(plan)["pages"] == f"256 tokens and 739,840 bytes each; what a budget of {budget:,} bytes leaves"
    assert reasons(plan)["longest request"] == "where the pool ends"


def test_a_budget_that_holds_everything_changes_nothing() -> None:
    wish = {"max_num_seqs": 2, "max_model_len": 500}
    free = resolve(atom(**wish), release_config())
    assert free.placement is not None
    exact = free.total_bytes
    assert exact == free.placement.total_bytes + 12 * IMAGE
    assert resolve(atom(**wish, memory_bytes=exact), release_config()) == free
    assert resolve(atom(**wish, memory_bytes=2**50), release_config()) == free
    less = resolve(atom(**wish, memory_bytes=exact - 1), release_config())
    assert (less.num_images, less.num_pages) == (11, free.num_pages)
    alone = free.placement.total_bytes - 1
    scarce = resolve(atom(**wish, memory_bytes=alone, prefix_cache=False), release_config())
    assert scarce.num_pages == free.num_pages - 1


def test_the_length_nobody_asked_for_is_the_default_or_where_model_or_pool_end() -> None:
    config = release_config()
    assert resolve(atom(max_num_seqs=1), config).max_model_len == DEFAULT_MODEL_LEN
    assert reasons(resolve(atom(max_num_seqs=1), config))["longest request"] == "the default"
    short = tiny_with(max_position_embeddings=4096)
    plan = resolve(RunWish(max_num_seqs=1), short)
    assert plan.max_model_len == short.max_positions == 4096
    assert reasons(plan)["longest request"] == "where the model ends"
    tight = resolve(atom(max_num_seqs=1, memory_bytes=STATE + PAGE + 4096), config)
    assert (tight.num_pages, tight.max_model_len) == (1, 256)


@pytest.mark.parametrize(
    ("block_size", "ratios", "expected"),
    [(1, {1, 2}, 256), (3, {1, 2}, 258), (4, {1, 2}, 256), (5, {1, 2}, 260), (7, {1, 2}, 266), (200, {1, 2}, 400)],
)
def test_the_default_page_is_the_next_one_with_whole_candidate_blocks(
    block_size: int, ratios: set[int], expected: int
) -> None:
    config = tiny_with(candidate_block_size=block_size, candidate_topk_blocks=40)
    assert {config.attention.compress_ratios[owner] for owner in config.attention.kv_source_layer_ids} == ratios
    assert default_block_size(config) == expected
    plan = resolve(RunWish(max_num_seqs=2, max_model_len=40, block_size=expected), config)
    assert plan.block_size == expected
    with pytest.raises(ConfigError, match="block_size"):
        resolve(RunWish(max_num_seqs=2, max_model_len=40, block_size=expected - 1), config)


def test_the_release_has_pages_of_256() -> None:
    assert default_block_size(release_config()) == 256


def test_a_budget_below_one_request_is_refused_with_what_would_do() -> None:
    config = release_config()
    for given_bytes in (1, 2 * STATE - 1, 2 * STATE, 2 * STATE + PAGE - 1):
        with pytest.raises(
            CapacityError, match=rf"got {given_bytes}, expected at least \d+ for 2 STATE entries"
        ) as error:
            resolve(atom(max_num_seqs=2, memory_bytes=given_bytes), config)
        least = int(str(error.value).split("at least ")[1].split()[0])
        assert resolve(atom(max_num_seqs=2, memory_bytes=least), config).num_pages == 1
        with pytest.raises(CapacityError):
            resolve(atom(max_num_seqs=2, memory_bytes=least - 1), config)


def test_a_longer_request_than_a_budget_holds_is_refused_with_both_numbers_and_a_way_out() -> None:
    budget = STATE + 3 * PAGE + 4096
    with pytest.raises(CapacityError) as error:
        resolve(atom(max_num_seqs=1, max_model_len=769, memory_bytes=budget), release_config())
    message = str(error.value)
    assert message.startswith(
        f"max_model_len: got 769, expected at most the 768 tokens that a budget of {budget} bytes holds ("
    )
    needed = int(message.split("(")[1].split()[0])
    for given_bytes, fits in ((needed, True), (needed - 1, False)):
        wish = atom(max_num_seqs=1, max_model_len=769, memory_bytes=given_bytes)
        if fits:
            assert resolve(wish, release_config()).max_model_len == 769
        else:
            with pytest.raises(CapacityError):
                resolve(wish, release_config())
    assert resolve(atom(max_num_seqs=1, max_model_len=768, memory_bytes=budget), release_config()).num_pages == 3


def test_refused_options_are_refused_before_anything_is_laid_out() -> None:
    wish = RunWish(block_size=7, max_model_len=-1, kv_cache_dtype=PoolDtype.FP8)
    with pytest.raises(ConfigError) as error:
        resolve(wish, tiny_config())
    assert all(name in str(error.value) for name in ("block_size", "max_model_len", "kv_cache_dtype"))


@pytest.mark.parametrize(("profile", "pool"), PAIRS, ids=str)
def test_every_pool_has_a_plan_of_its_geometry(profile: Profile, pool: PoolFormat) -> None:
    config = tiny_config()
    wish = RunWish(
        profile=profile,
        kv_cache_dtype=pool.main,
        index_cache_dtype=pool.index,
        max_num_seqs=3,
        max_model_len=50,
        block_size=8,
    )
    plan = resolve(wish, config)
    assert plan.placement == placement(pool_geometry(config, pool, block_size=8), 3 * 7, 3)


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(0, 400_000),
    slots=st.integers(1, 6),
    length=st.none() | st.integers(1, 200),
    tiles=st.integers(1, 6),
    pair=st.sampled_from(PAIRS),
)
def test_a_plan_keeps_its_budget_and_holds_its_longest_request(
    budget: int, slots: int, length: int | None, tiles: int, pair: tuple[Profile, PoolFormat]
) -> None:
    profile, pool = pair
    wish = RunWish(
        profile=profile,
        kv_cache_dtype=pool.main,
        index_cache_dtype=pool.index,
        max_num_seqs=slots,
        max_model_len=length,
        block_size=8 * tiles,
        memory_bytes=budget or None,
    )
    try:
        plan = resolve(wish, tiny_config())
    except CapacityError:
        geometry = pool_geometry(tiny_config(), pool, block_size=8 * tiles)
        assert placement(geometry, geometry.pages_for(length or 1), slots).total_bytes > budget
        return
    assert plan.placement is not None
    assert plan.placement.num_pages == plan.num_pages
    assert plan.total_bytes <= (budget or plan.total_bytes)
    assert plan.prefix_cache == (plan.num_images > 0)
    assert length is None or plan.max_model_len == length
    assert 0 < plan.max_model_len <= plan.num_pages * plan.block_size
    assert plan.num_pages <= slots * -(-(length or DEFAULT_MODEL_LEN) // plan.block_size)
    assert all(choice.reason for choice in plan.choices)


def test_a_model_without_owners_needs_no_pages_and_says_what_its_windows_cost() -> None:
    config = windows_only()
    plan = resolve(RunWish(max_num_seqs=3, max_model_len=100), config)
    assert plan.placement is None
    assert (plan.num_pages, plan.max_model_len) == (3, 100)
    per_slot = config.num_layers * config.attention.window * 2 * config.attention.head_dim
    assert reasons(plan) == {"slots": f"{per_slot:,} bytes of windows each, no pages", "longest request": "as asked"}
    assert default_block_size(config) == 256
    assert resolve(RunWish(max_num_seqs=3, memory_bytes=3 * per_slot), config).max_num_seqs == 3
    with pytest.raises(
        CapacityError, match=f"got {3 * per_slot - 1}, expected at least {3 * per_slot} for the windows"
    ):
        resolve(RunWish(max_num_seqs=3, memory_bytes=3 * per_slot - 1), config)


def test_replay_modes_are_labelled_and_change_nothing_else() -> None:
    config = release_config()
    exact = resolve(atom(max_num_seqs=2), config)
    assert not exact.decoder_replay
    assert not exact.prefix_replay
    assert "APPROXIMATE" not in "".join(map(str, exact.choices))
    decoder = resolve(atom(max_num_seqs=2, decoder_replay=True), config)
    assert decoder.choices == (*exact.choices, decoder.choices[-1])
    assert str(decoder.choices[-1]) == (
        "decoder replay 128: APPROXIMATE: layers from 21 on read no more than these last tokens of a prompt"
    )
    prefix = resolve(atom(max_num_seqs=2, prefix_replay=True), config)
    assert str(prefix.choices[-1]).startswith("prefix replay 128: APPROXIMATE: ")
    assert (prefix.num_images, prefix.prefix_cache, prefix.prefix_replay) == (0, True, True)
    assert reasons(prefix)["images"].endswith("by approximation")
    windows = resolve(RunWish(prefix_replay=True), windows_only())
    assert (windows.prefix_cache, windows.prefix_replay) == (False, False)


GROWTH = """
import json, os, pathlib, sys
from flash41.cache.image_store import ImageStore
from flash41.cache.paged import PagedStore
from flash41.cache.store_shape import store_shape
from flash41.config.huggingface import config_from_dict
from flash41.config.run import Profile, RunWish
from flash41.planning.resolve import resolve

def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

config = config_from_dict(json.loads(pathlib.Path(sys.argv[1]).read_text()))
plan = resolve(RunWish(profile=Profile.ATOM, max_num_seqs=8, max_model_len=16384, memory_bytes=300 << 20), config)
# What torch allocates once and for all is no part of a pool.
small = resolve(RunWish(max_num_seqs=1, max_model_len=256), config)
ImageStore(PagedStore(store_shape(config, 1, 256), small.placement), 1)
before = resident()
store = PagedStore(store_shape(config, plan.max_num_seqs, plan.max_model_len), plan.placement)
store.pool.memory.fill_(1)
images = ImageStore(store, plan.num_images)
images.memory.fill_(1)
print(plan.num_images, plan.total_bytes, resident() - before)
"""


def test_touched_pool_and_images_take_the_memory_that_was_planned() -> None:
    command = [sys.executable, "-c", GROWTH, str(DATA / "release.json")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(), timeout=120)
    num_images, planned, grown = map(int, found.stdout.split())
    assert num_images > 2
    assert 256 << 20 <= planned <= 300 << 20
    assert abs(grown - planned) <= 0.02 * planned


@pytest.mark.parametrize(
    ("wish", "state", "image"),
    [
        (atom(draft=Draft.ON), 5_971_968, 43 * 128 * 1024),
        (RunWish(draft=Draft.ADAPTIVE, kv_cache_dtype=PoolDtype.FP4), 3_134_720, 43 * 128 * 528),
    ],
)
def test_drafting_deepens_every_ring_and_adds_those_of_the_stages(wish: RunWish, state: int, image: int) -> None:
    plan = resolve(replace(wish, max_num_seqs=2, max_model_len=512), release_config())
    assert plan.placement is not None
    geometry = plan.placement.geometry
    assert (geometry.state_bytes, geometry.image_bytes) == (state, image)
    assert (plan.draft, plan.draft_accept, plan.draft_tokens) == (wish.draft, DraftAccept.SHARED_NOISE, 5)
    expected = f"{wish.draft.value}, as asked; rings of 133 rows take back what is not accepted"
    assert reasons(plan)["drafts per step"] == expected
    off = resolve(replace(wish, draft=Draft.OFF, max_num_seqs=2, max_model_len=512), release_config())
    assert off.placement is not None
    assert (off.draft_tokens, off.placement.geometry.page_bytes) == (0, geometry.page_bytes)
    assert "drafts per step" not in reasons(off)


def test_a_model_of_windows_has_rings_for_drafts_too() -> None:
    config = windows_only()
    sizes = {}
    for draft in (Draft.OFF, Draft.ON):
        plan = resolve(RunWish(draft=draft, max_num_seqs=2, max_model_len=32), config)
        sizes[draft] = next(choice.reason for choice in plan.choices if choice.name == "slots")
    row = config.attention.head_dim * 2
    assert sizes[Draft.OFF].startswith(f"{config.num_layers * 8 * row:,} bytes")
    assert sizes[Draft.ON].startswith(f"{(config.num_layers + 3) * 13 * row:,} bytes")
