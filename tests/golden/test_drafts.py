"""The golden cases of the drafter: blocks behind seven prompts, forced acceptance of 0 to 5, two drafted texts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from flash41.config.run import Profile
from flash41.model.draft_heads import Drafts
from flash41.tools.points import draft_point_names
from flash41.tools.traces import trace
from helpers.drafting import DraftingFeeder, Turn, speculative
from helpers.golden_judge import (
    CHECKPOINT,
    CLOSE_MARGIN,
    Array,
    Case,
    Noise,
    close_share,
    distance,
    greedy_faults,
    load_case,
    relative_rows,
    t1_faults,
    t2_faults,
)
from helpers.models import Models

LENGTHS = (1, 2, 7, 8, 9, 30, 41)
TRACED = 41
"""The length whose block is traced."""
VERIFIED = (12, 13, 28)
SHARP = 2.0**-19
"""Relative error of a row in profile fp32: thirty FP32 roundings in one direction."""
MEASURED = {1: "bos_only", 9: "window_cross", 25: "odd_25"}
"""Text cases by length.  The draft cases come without a noise; a block is computed from what a prompt's forward leaves,
so it is judged by the noise of the longest of these that is not longer."""

Blocks = Callable[[int, Profile], "Block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The trace of a prompt and of the block behind it, and the golden arrays."""

    traced: dict[str, Array]
    golden: dict[str, Array]

    def error(self, point: str, array: str) -> Array:
        return relative_rows(self.traced[f"trace/{point}"], self.golden[array])

    @property
    def logits(self) -> Array:
        return self.traced["trace/draft.logits"]


def noise_of(length: int) -> Noise:
    noise = load_case(MEASURED[max(known for known in MEASURED if known <= length)]).noise
    assert noise is not None
    return noise


def prefix(profile: Profile) -> str:
    return "fp32/" if profile is Profile.FP32 else ""


def arrays_of(case: Case, start: str) -> dict[str, Array]:
    return {name.removeprefix(start): array for name, array in case.arrays.items() if name.startswith(start)}


@pytest.fixture(scope="module")
def blocks(models: Models) -> Blocks:
    case, kept = load_case("dspark_drafts"), dict[tuple[int, Profile], Block]()

    def block(length: int, profile: Profile) -> Block:
        if (length, profile) not in kept:
            golden = arrays_of(case, f"{prefix(profile)}n{length}/")
            traced = trace(models(CHECKPOINT, profile), golden["ids"].tolist(), draft=True)
            kept[length, profile] = Block(traced=traced, golden=golden)
        return kept[length, profile]

    return block


def test_the_cases_hold_the_lengths_and_the_traced_block() -> None:
    case = load_case("dspark_drafts")
    found = {name.split("/")[0] for name in case.arrays if not name.startswith("fp32/")}
    assert found == {f"n{length}" for length in LENGTHS}
    assert {name.split("/")[0] for name in case.arrays if "/trace/" in name} == {f"n{TRACED}"}


@pytest.mark.parametrize("profile", [Profile.FP32, Profile.VENDOR])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_anchor_is_the_likeliest_token(length: int, profile: Profile, blocks: Blocks) -> None:
    block = blocks(length, profile)
    assert block.traced["logits"][-1].argmax() == block.golden["anchor"].item()


@pytest.mark.parametrize("length", LENGTHS)
def test_fp32_blocks_are_the_golden_ones(length: int, blocks: Blocks) -> None:
    block = blocks(length, Profile.FP32)
    assert block.traced["trace/draft.ids"].tolist() == block.golden["draft_ids"].tolist()
    assert not t1_faults(distance(block.logits, block.golden["draft_logits"]))
    assert not t1_faults(distance(block.traced["trace/draft.base_logits"], block.golden["base_logits"]))
    for point, array in (
        ("dspark.main_x", "main_x"),
        ("draft.base_logits", "base_logits"),
        ("draft.logits", "draft_logits"),
    ):
        assert block.error(point, array).max() < SHARP, point
    assert block.error("draft.confidence", "confidence_logit") < SHARP


def test_vendor_blocks_are_inside_t2_with_at_most_one_outside(blocks: Blocks) -> None:
    outside = {}
    for length in LENGTHS:
        block = blocks(length, Profile.VENDOR)
        pairs = ((block.logits, "draft_logits"), (block.traced["trace/draft.base_logits"], "base_logits"))
        noise = noise_of(length)
        faults = [fault for got, name in pairs for fault in t2_faults(distance(got, block.golden[name]), noise, length)]
        # The confidence is one more linear function of the same hidden rows, so it moves no further than they do.
        if not block.error("draft.confidence", "confidence_logit") <= max(0.02, 1.5 * noise.rel_p90 + 0.015):
            faults.append("confidence")
        if faults:
            outside[length] = faults
    assert len(outside) <= 1, outside


def test_vendor_tokens_are_the_golden_ones(blocks: Blocks) -> None:
    for length in LENGTHS:
        block = blocks(length, Profile.VENDOR)
        faults = greedy_faults(
            block.traced["trace/draft.ids"].tolist(),
            block.golden["draft_ids"].tolist(),
            block.golden["draft_logits"],
            5,
        )
        assert faults == [], length


def test_a_drafted_trace_has_exactly_the_points_of_the_manifest(blocks: Blocks, models: Models) -> None:
    block, model = blocks(TRACED, Profile.VENDOR), models(CHECKPOINT, Profile.VENDOR)
    golden = {name for name in block.golden if name.startswith("trace/")}
    traced = {name for name in block.traced if name.startswith(("trace/mtp", "trace/draft"))}
    assert traced == golden == {f"trace/{name}" for name in draft_point_names(model.config)}
    plain = trace(model, block.golden["ids"].tolist())
    assert set(block.traced) - set(plain) == golden
    assert all(np.array_equal(plain[name], block.traced[name]) for name in plain)


def test_a_traced_block_has_the_golden_dtypes_shapes_and_values(blocks: Blocks) -> None:
    block = blocks(TRACED, Profile.VENDOR)
    for name in (name for name in block.golden if name.startswith("trace/")):
        ours, theirs = block.traced[name], block.golden[name]
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        if theirs.dtype == np.int32:
            assert np.array_equal(ours, theirs), name
        else:
            assert close_share(ours, theirs) >= 0.99, name


def commits(models: Models, profile: Profile, length: int) -> Iterator[tuple[int, Turn, Drafts, Array]]:
    """(forced acceptance, verify step, drafts behind it, logits behind the next anchor) of one prompt."""
    golden = arrays_of(load_case("verify_accept_0_to_5"), f"{prefix(profile)}n{length}/")
    # One request for each number of drafts to accept, all in one batch: rows do not know each other.
    anchor, drafts = golden["anchor"].item(), dict(enumerate(golden["drafts"].tolist()))
    feeder = DraftingFeeder(models(CHECKPOINT, profile), len(drafts), length + 12)
    logits = feeder.feed(dict.fromkeys(drafts, golden["ids"].tolist()))
    assert {int(rows[-1].argmax()) for rows in logits.values()} == {anchor}
    turns = feeder.verify({slot: [anchor, *ids] for slot, ids in drafts.items()})
    last = {slot: turn.verdict.tokens[-1] for slot, turn in turns.items()}
    behind = feeder.draft(last)
    after = feeder.feed({slot: [token] for slot, token in last.items()})
    for slot, turn in turns.items():
        yield slot, turn, behind[slot], after[slot][0].numpy()


def draft_faults(drafts: Drafts, golden: list[int]) -> list[str]:
    """The first draft that is another one, unless the stages were undecided; those behind it continue another text."""
    for place, (got, wanted) in enumerate(zip(drafts.ids[0].tolist(), golden, strict=True)):
        if got != wanted:
            margin = float(drafts.logits[0, place, got] - drafts.logits[0, place, wanted])
            return [] if margin < CLOSE_MARGIN else [f"draft {place}: {got} for {wanted} at margin {margin:.3f}"]
    return []


def test_a_draft_that_is_another_one_without_a_tie_is_noticed() -> None:
    logits = torch.zeros(1, 2, 4)
    logits[0, 0, 1], logits[0, 1, 2], logits[0, 1, 3] = 5.0, 1.0, 0.95
    drafts = Drafts(ids=torch.tensor([[1, 2]]), base_logits=logits, logits=logits, confidence=torch.zeros(1, 2))
    assert draft_faults(drafts, [1, 2]) == draft_faults(drafts, [1, 3]) == []
    assert draft_faults(drafts, [0, 2]) == ["draft 0: 1 for 0 at margin 5.000"]


@pytest.mark.parametrize("length", VERIFIED)
def test_every_acceptance_from_0_to_5_commits_as_the_golden_one(length: int, models: Models) -> None:
    golden = arrays_of(load_case("verify_accept_0_to_5"), f"fp32/n{length}/")
    assert golden["accepted"].tolist() == [0, 1, 2, 3, 4, 5]
    after = []
    for number, turn, behind, logits in commits(models, Profile.FP32, length):
        assert turn.verdict.num_accepted == golden["accepted"][number]
        assert turn.verdict.tokens[-1] == golden["next_anchor"][number]
        assert turn.target == golden["target_argmax"][number].tolist()
        assert behind.ids[0].tolist() == golden["next_drafts"][number].tolist(), number
        rows = number + 1  # of k accepted drafts have seen what those of five have
        assert relative_rows(turn.logits.numpy()[:rows], golden["verify_logits_k5"][:rows]).max() < SHARP
        after.append(logits)
    assert relative_rows(np.stack(after), golden["logits_after_commit"]).max() < SHARP


@pytest.mark.parametrize("length", VERIFIED)
def test_vendor_commits_the_same_but_where_the_target_is_undecided(length: int, models: Models) -> None:
    golden, noise = arrays_of(load_case("verify_accept_0_to_5"), f"n{length}/"), noise_of(length)
    after, expected = [], []
    for number, turn, behind, logits in commits(models, Profile.VENDOR, length):
        rows = number + 1
        target = golden["target_argmax"][number].tolist()[:rows]
        assert greedy_faults(turn.target[:rows], target, golden["verify_logits_k5"][:rows], rows) == []
        assert not t2_faults(distance(turn.logits.numpy()[:rows], golden["verify_logits_k5"][:rows]), noise, length)
        if turn.target[:rows] == target:
            assert turn.verdict.num_accepted == golden["accepted"][number]
            assert turn.verdict.tokens[-1] == golden["next_anchor"][number]
            assert draft_faults(behind, golden["next_drafts"][number].tolist()) == [], number
            after.append(logits)
            expected.append(golden["logits_after_commit"][number])
    assert len(after) >= 3
    assert not t2_faults(distance(np.stack(after), np.stack(expected)), noise, length)


@pytest.mark.parametrize("name", ["greedy_24", "greedy_24_long"])
def test_a_drafted_text_is_the_golden_text_with_the_golden_acceptance(name: str, models: Models) -> None:
    case = load_case(name)
    tokens, turns = speculative(models(CHECKPOINT, Profile.FP32), case.ids, 24)
    assert tokens == case.arrays["fp32/tokens"].tolist()
    assert [turn.verdict.num_accepted for turn in turns] == case.arrays["fp32/spec_accepted"].tolist()


@pytest.mark.parametrize("name", ["greedy_24", "greedy_24_long"])
def test_a_drafted_vendor_text_follows_the_golden_one_and_so_do_its_drafts(name: str, models: Models) -> None:
    case = load_case(name)
    golden, logits, stable = case.arrays["tokens"].tolist(), case.arrays["step_logits"], case.stable_tokens
    assert stable is not None
    tokens, turns = speculative(models(CHECKPOINT, Profile.VENDOR), case.ids, 24)
    assert greedy_faults(tokens, golden, logits, stable) == []
    if tokens == golden:  # else a tie fell differently, and these are the counts of another text
        assert [turn.verdict.num_accepted for turn in turns] == case.arrays["spec_accepted"].tolist()
        assert [turn.anchor_position for turn in turns] == case.arrays["spec_anchor_position"].tolist()
        assert [turn.drafts for turn in turns] == case.arrays["spec_drafts"].tolist()
