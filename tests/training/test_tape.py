"""Rules of the scorers: what they imitate, which rows are hidden, who is confined."""

from dataclasses import replace

import torch
from torch import Tensor

from flash41.config.run import Profile
from helpers.small_training import PHASES, restless, small_map
from training.curriculum import widened
from training.model.build import Sequences, TrainableModel
from training.model.tape import Tape, block_imitation, excess, imitation

LENGTH = 72
"""With windows of 16, eight rows of a selection and four blocks of eight, most rows are dropped."""


def ids(count: int = 1) -> Tensor:
    return torch.randint(3, 900, (count, LENGTH), generator=torch.Generator().manual_seed(4))


def forward(dense: bool = False, hidden: Tensor | None = None, confined: Tensor | None = None) -> tuple[Tensor, Tape]:
    masters = restless()
    masters.config = widened(masters.config, replace(PHASES[0], dense=dense, longest=LENGTH))
    model = TrainableModel(masters, small_map(), Profile.FP32, dense=dense)
    sequences = Sequences(ids=ids(), hidden=hidden, confined=confined)
    view = model.view(sequences)
    with torch.no_grad():
        logits = model.forward(sequences, view, torch.arange(LENGTH)).logits
    return logits, model.tape


def test_a_scorer_that_ranks_as_attention_does_has_the_entropy_for_its_loss() -> None:
    mass = torch.tensor([[0.5, 0.25, 0.25, 0.0]])
    rows = torch.tensor([[0, 2, 3, -1]])
    scores = torch.full((1, 5), 9.0)
    scores[0, [0, 2, 3]] = mass[0, :3].log()
    entropy = -(mass[0, :3] * mass[0, :3].log()).sum()
    torch.testing.assert_close(imitation(scores, rows, mass), entropy)
    assert imitation(scores.flip(1), rows, mass) > entropy


def test_blocks_are_ranked_by_their_best_visible_row() -> None:
    scores = torch.tensor([[0.0, 5.0, 1.0, 9.0, 7.0]])
    visible = torch.tensor([[True, True, True, True, False]])
    rows, mass = torch.tensor([[0, 2, -1]]), torch.tensor([[0.25, 0.75, 1.0]])
    best = torch.tensor([5.0, 9.0])
    wanted = -(torch.tensor([0.25, 0.75]) * best.log_softmax(0)).sum()
    torch.testing.assert_close(block_imitation(scores, visible, rows, mass, 2), wanted)


def test_a_block_without_a_visible_row_is_asked_for_nothing() -> None:
    scores, visible = torch.tensor([[0.0, 5.0, 1.0]]), torch.tensor([[True, True, False]])
    rows, mass = torch.tensor([[0, 2]]), torch.tensor([[0.5, 0.5]])
    assert block_imitation(scores, visible, rows, mass, 2) == 0.0


def test_a_hidden_row_costs_what_it_lacks_of_being_one_below_the_last_selected() -> None:
    scores = torch.tensor([5.0, 3.0, 1.0, 2.5, 0.0, 9.0]).view(1, 1, 6)
    allowed = torch.tensor([True] * 5 + [False]).view(1, 1, 6)
    hidden = torch.tensor([False, False, False, True, True, True]).view(1, 1, 6)
    # The second of the others has 3: row 3 is half above 2, row 4 far below, row 5 not visible.
    torch.testing.assert_close(excess(scores, allowed, hidden, 2), torch.tensor(0.5 / 2))
    # Fewer others than a selection holds: the last of them counts.
    torch.testing.assert_close(excess(scores, allowed, hidden, 5), torch.tensor(2.5 / 2))
    assert excess(scores, allowed & hidden, hidden, 2) == 0.0


def test_an_unimportant_query_teaches_as_little_as_it_weighs() -> None:
    mass = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    rows, scores = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    each = [imitation(scores[n : n + 1], rows[n : n + 1], mass[n : n + 1]) for n in range(2)]
    weighed = imitation(scores, rows, mass, torch.tensor([1.0, 0.25]))
    torch.testing.assert_close(weighed, (each[0] + 0.25 * each[1]) / 1.25)


def test_no_block_binds_where_rows_are_hidden() -> None:
    hidden = torch.zeros(1, LENGTH, dtype=torch.bool)
    _, bound = forward()
    hidden[0, 10] = True
    _, tape = forward(hidden=hidden)
    visible = torch.arange(LENGTH) <= torch.arange(LENGTH).unsqueeze(1)
    assert torch.equal(tape._scored[3].allowed, visible)
    assert not torch.equal(bound._scored[3].allowed, visible), "four blocks hold less than the whole"


def test_the_source_learns_to_score_hidden_rows_low() -> None:
    hidden = torch.zeros(2, LENGTH, dtype=torch.bool)
    hidden[1, 5:9] = True
    masters = restless()
    model = TrainableModel(masters, small_map(), Profile.FP32)
    sequences = Sequences(ids=ids(2), hidden=hidden)
    model.forward(sequences, model.view(sequences), torch.arange(2 * LENGTH))
    (loss,) = model.tape.shunned
    scored = model.tape._scored[2]
    rows = scored.scores.view(2, LENGTH, -1)[1:], scored.allowed.view(2, LENGTH, -1)[1:]
    torch.testing.assert_close(loss, excess(*rows, hidden[1:, None], masters.config.indexer.topk))
    loss.backward()
    gradient = masters.parameters["layers.2.attn.indexer.wq_b.weight"].grad
    assert gradient is not None
    assert gradient.abs().max() > 0


def test_hidden_rows_change_what_early_layers_read_and_nothing_before_them() -> None:
    hidden = torch.zeros(1, LENGTH, dtype=torch.bool)
    hidden[0, 30] = True
    for dense in (False, True):
        plain, _ = forward(dense)
        marked, tape = forward(dense, hidden)
        assert tape.blocked is None, "the last layers read everything"
        # Row 30 of ratio 1 is visible from query 30 on, its pair from query 31 on.
        assert torch.equal(plain[:30], marked[:30])
        assert not torch.equal(plain[30:], marked[30:])


def test_a_group_with_a_hidden_member_is_hidden() -> None:
    tape = Tape(hidden=torch.tensor([[False, True, False, False, False], [False] * 4 + [True]]))
    tape.block(2)
    assert tape.blocked is not None
    assert tape.blocked.tolist() == [True, False, False, False]
    tape.reads(3, 2)
    assert tape.blocked is None
    tape.block(1)
    assert tape.blocked is not None
    assert tape.blocked.nonzero().flatten().tolist() == [1, 9]


def test_confined_queries_read_the_selection_of_the_source() -> None:
    free, tape = forward()
    own = tape._scored[3].selected
    source = tape._scored[2].selected
    assert not torch.equal(own, source), "the bounded scorer chooses otherwise"
    confined, tape = forward(confined=torch.tensor([True]))
    assert torch.equal(tape._scored[3].selected, tape._scored[2].selected)
    assert not torch.equal(free, confined)
    loose, _ = forward(confined=torch.tensor([False]))
    assert torch.equal(free, loose)
