from collections import Counter
from dataclasses import replace

import pytest
import torch

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from flash41.config.topology_rules import check_topology
from helpers.small_training import PHASES, small_config
from training.batches import LENGTH_STEP, Batch, Batches, Position
from training.corpus.mixture import TRAINING, Mixture, sample
from training.corpus.render import Renderer
from training.curriculum import PHASES as SHIPPED_PHASES
from training.curriculum import WARM_UP_STEPS, Phase, learning_rate, mixture, phase_at, widened
from training.tokenizer import FOLDER, shipped_config

WEIGHTS = {"stories": 1.0, "recall": 1.0, "arithmetic": 1.0}


def corpus(position: Position) -> Batches:
    config = small_config()
    codec = ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image)
    return Batches(Renderer(codec, config), config.tokens.pad, 7, TRAINING, position)


def taken(batches: Batches, phases: list[Phase]) -> list[Batch]:
    return [batches.next(phase, WEIGHTS) for phase in phases]


def same(one: Batch, other: Batch) -> bool:
    return torch.equal(one.ids, other.ids) and torch.equal(one.weights, other.weights)


def test_a_corpus_that_is_taken_up_again_goes_on_where_it_was() -> None:
    small = replace(PHASES[0], batch_tokens=4096)
    phases = [*[small] * 9, *[PHASES[1]] * 3]
    whole = taken(corpus(Position()), phases)
    for cut in (1, 5, 9, 10):
        position = Position()
        taken(corpus(position), phases[:cut])
        again = Position(position.pool, position.batch, position.phase)
        rest = taken(corpus(again), phases[cut:])
        assert all(same(one, other) for one, other in zip(rest, whole[cut:], strict=True))
    assert corpus(Position()).position.pool == 0


def test_a_batch_holds_answers_prompts_and_padding_apart() -> None:
    batch = corpus(Position()).next(PHASES[0], WEIGHTS)
    assert batch.ids.numel() <= PHASES[0].batch_tokens
    assert batch.ids.shape[1] % LENGTH_STEP == 0
    assert len(batch.families) == len(batch.ids)
    assert set(batch.weights.unique().tolist()) <= {0.0, float(torch.tensor(PHASES[0].prompt_weight)), 1.0}
    assert (batch.weights[:, 0] == 0).all()
    assert int((batch.weights > 0).sum()) == batch.num_tokens - len(batch.ids)


def test_whether_tables_are_left_out_says_nothing_about_the_answer() -> None:
    """Of pictures every prompt looks alike: a coin that knew the answer would be read instead of the picture."""
    mixture = Mixture(weights={"pictures": 1.0}, shortest=10, longest=20)
    drawn = [sample(1, TRAINING, number, mixture) for number in range(2000)]
    counts = Counter((one.answer, one.is_tableless) for one in drawn if one.answer.startswith("It is a "))
    for answer in {answer for answer, _ in counts}:
        with_tables, without = counts[answer, False], counts[answer, True]
        # Five deviations of a fair coin.
        assert abs(with_tables - without) < 5 * (with_tables + without) ** 0.5
        assert min(with_tables, without) > 10


def test_half_of_what_does_not_need_the_tables_is_learned_without_them() -> None:
    small = replace(PHASES[0], batch_tokens=4096)
    batches = taken(corpus(Position()), [small] * 12)
    flags = [pair for one in batches for pair in zip(one.families, one.tableless.tolist(), strict=True)]
    without = [bare for family, bare in flags if family != "recall"]
    assert not any(bare for family, bare in flags if family == "recall")
    assert 0.3 < sum(without) / len(without) < 0.7
    assert all(one.misrouted is None for one in batches)


def test_pictures_that_shall_not_be_seen_are_read_by_the_experts_of_text() -> None:
    shown = replace(PHASES[1], batch_tokens=4096, pictures=10.0)
    batches = [one for one in taken(corpus(Position()), [shown] * 20) if one.pictures]
    assert any(one.misrouted is not None for one in batches)
    for one in batches:
        wanted = [family == "unseen" for family in one.families]
        assert one.misrouted is None if not any(wanted) else one.misrouted.tolist() == wanted


def test_pictures_stand_in_batches_of_their_own_with_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.batches.MOST_PICTURES", 3)
    shown = replace(PHASES[1], batch_tokens=4096, pictures=10.0)
    batches = taken(corpus(Position()), [shown] * 20)
    kinds = [{family in ("pictures", "comparisons", "unseen") for family in batch.families} for batch in batches]
    assert {len(kind) for kind in kinds} == {1}, "never side by side with text"
    with_pictures = [batch for batch in batches if batch.pictures]
    assert 0 < len(with_pictures) < len(batches)
    assert max(len(batch.ids) for batch in with_pictures) == 3
    assert "pictures" not in mixture(PHASES[1], WEIGHTS).weights


def test_phases_follow_the_tokens_and_the_last_one_never_ends() -> None:
    assert phase_at(0) is SHIPPED_PHASES[0]
    assert phase_at(SHIPPED_PHASES[0].until_tokens) is SHIPPED_PHASES[1]
    assert phase_at(1e12) is SHIPPED_PHASES[-1]
    assert not SHIPPED_PHASES[-1].dense


def test_a_dense_phase_selects_every_row_and_keeps_the_rules_of_the_topology() -> None:
    config = shipped_config()
    for phase in SHIPPED_PHASES:
        wide = widened(config, phase)
        check_topology(wide)
        if phase.dense:
            assert wide.indexer.topk >= phase.longest
            assert wide.indexer.candidate_blocks * wide.indexer.candidate_block_size >= phase.longest
        else:
            assert wide is config


def test_the_learning_rate_warms_up_stays_and_falls_to_a_tenth() -> None:
    rates = [learning_rate(1.0, step, 0, 1e6) for step in range(WARM_UP_STEPS)]
    assert rates == sorted(rates)
    assert rates[0] < 0.02
    assert rates[-1] == 1.0
    assert learning_rate(1.0, 10_000, 8e5, 1e6) == 1.0
    assert 0.5 < learning_rate(1.0, 10_000, 9e5, 1e6) < 0.6
    assert learning_rate(1.0, 10_000, 2e6, 1e6) == 0.1
