from random import Random

import torch

from flash41.model.draft_heads import Drafts
from helpers.small_training import restless, small_map
from training.batches import Batch
from training.losses import by_family, draft_losses, token_losses, weighted_mean
from training.model.build import Sequences, TrainableModel
from training.model.drafting import AnchorView
from training.steps import learn_drafts


def test_a_block_sees_its_context_and_itself_and_nothing_else() -> None:
    masters = restless()
    model = TrainableModel(masters, small_map())
    fed = model.view(Sequences(ids=torch.zeros(2, 12, dtype=torch.int64)))
    fed.append_context(5, torch.arange(24.0).unsqueeze(1))
    view = AnchorView(fed, torch.tensor([2, 12 + 7]), 3, 4)
    block = torch.tensor([[100.0], [101], [102], [200], [201], [202]])
    seen = view.window(5, block)
    lists = [seen.rows[seen.index[t, :n], 0].tolist() for t, n in enumerate(seen.counts.tolist())]
    assert lists[:3] == [[0.0, 1.0, 100.0, 101.0, 102.0]] * 3, "at the beginning there are two rows of context"
    assert lists[3:] == [[15.0, 16.0, 17.0, 18.0, 200.0, 201.0, 202.0]] * 3
    assert [(span.start, span.end) for span in view.spans] == [(2, 5), (7, 10)]


def drafts(logits: torch.Tensor) -> Drafts:
    ids = logits.argmax(-1)
    return Drafts(ids=ids, base_logits=logits, logits=logits, confidence=torch.zeros(ids.shape))


def test_drafts_that_say_what_the_target_says_have_no_distance() -> None:
    target = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))
    labels, valid = target.argmax(-1), torch.ones(2, 3, dtype=torch.bool)
    losses = draft_losses(drafts(target), labels, target, valid)
    assert losses.distance == 0
    assert losses.accepted == 1
    torch.testing.assert_close(losses.confidence, torch.tensor(2.0).log())
    other = draft_losses(drafts(-target), labels, target, valid)
    assert other.distance > 0.1
    assert other.label > losses.label
    assert other.total > losses.total


def test_rows_behind_the_valid_prefix_do_not_count() -> None:
    target = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(1))
    wrong = target.clone()
    wrong[:, 2] *= -3
    labels, valid = target.argmax(-1), torch.tensor([[True, True, False]])
    assert draft_losses(drafts(wrong), labels, target, valid).distance == 0


def test_an_answer_weighs_more_than_its_prompt() -> None:
    losses = token_losses(torch.tensor([[4.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 1]))
    small, large = (weighted_mean(losses, torch.tensor(weights)) for weights in ([1.0, 0.1], [0.1, 1.0]))
    assert small < large
    torch.testing.assert_close(weighted_mean(losses, torch.tensor([0.0, 2.0])), losses[1])


def test_a_batch_without_room_for_a_block_teaches_nothing() -> None:
    masters, ids = restless(), torch.tensor([[0, 5, 6, 1, 2, 2, 2]])
    weights = torch.tensor([[0.0, 0.1, 1.0, 1.0, 0.0, 0.0, 0.0]])
    batch = Batch(ids=ids, weights=weights, num_tokens=4, pictures=(), families=("stories",))
    assert learn_drafts(masters, small_map(), batch, Random(1)).loss == 0
    assert all(value.grad is None for value in masters.parameters.values())
    longer = Batch(ids=ids.repeat(1, 2), weights=torch.ones(1, 14), num_tokens=14, pictures=(), families=("stories",))
    assert learn_drafts(masters, small_map(), longer, Random(1)).loss > 0
    assert masters.parameters["mtp.0.main_proj.weight"].grad is not None


def test_losses_are_told_apart_by_family() -> None:
    assert by_family(torch.tensor([1.0, 3.0, 5.0]), ["a", "b", "a"]) == {"a": 3.0, "b": 3.0}
