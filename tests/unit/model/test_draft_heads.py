"""The sequential part of a draft against its equations, in exact numbers."""

import pytest
import torch
from torch import Tensor

from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.draft_heads import DraftHeads, Drafts, most_likely
from flash41.model.linear import Linear
from helpers.tensors import normal

VOCAB, RANK, WIDTH, BLOCK = 11, 3, 7, 5
EMBED, HEAD = normal(VOCAB, RANK, seed=1), normal(VOCAB, RANK, seed=2)
CONFIDENCE = normal(1, WIDTH + RANK, seed=3)
HIDDEN = normal(4, BLOCK, WIDTH, seed=4)
BASE = normal(4, BLOCK, VOCAB, seed=5, dtype=torch.float32)
ANCHORS = torch.tensor([0, 3, 10, 3])


def heads() -> DraftHeads:
    kernels = ReferenceKernels()
    return DraftHeads(EMBED, Linear(HEAD, kernels, wide=True), Linear(CONFIDENCE, kernels, wide=True))


def expected(anchor: int, hidden: Tensor, base: Tensor) -> tuple[list[int], list[list[float]], list[float]]:
    """Tokens, logits and confidences of one request, in FP64."""
    token, ids, logits, confidence = anchor, [], [], []
    for k in range(BLOCK):
        last = EMBED[token].double()
        row = base[k].double() + HEAD.double() @ last
        confidence.append(float(CONFIDENCE[0].double() @ torch.cat((hidden[k].double(), last))))
        token = int(row.argmax())
        ids.append(token)
        logits.append(row.tolist())
    return ids, logits, confidence


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tokens_follow_each_other_through_the_markov_head(dtype: torch.dtype) -> None:
    drafts = heads()(ANCHORS, HIDDEN.to(dtype), BASE, most_likely)
    assert (drafts.ids.dtype, drafts.logits.dtype, drafts.confidence.dtype) == (
        torch.int64,
        torch.float32,
        torch.float32,
    )
    assert torch.equal(drafts.base_logits, BASE)
    for row, anchor in enumerate(ANCHORS.tolist()):
        ids, logits, confidence = expected(anchor, HIDDEN[row], BASE[row])
        assert drafts.ids[row].tolist() == ids
        # One FP32 rounding of the product and one of the sum, of numbers below 16.
        assert torch.allclose(drafts.logits[row].double(), torch.tensor(logits).double(), rtol=0, atol=2.0**-19)
        assert drafts.confidence[row].tolist() == pytest.approx(confidence, abs=2.0**-19)


def test_the_anchor_decides_the_first_draft_and_through_it_the_others() -> None:
    drafts = heads()(ANCHORS, HIDDEN[:1].expand(4, -1, -1), torch.zeros(4, BLOCK, VOCAB), most_likely)
    chain = (EMBED.double() @ HEAD.double().T).argmax(1).tolist()
    for anchor, ids in zip(ANCHORS.tolist(), drafts.ids.tolist(), strict=True):
        for token in ids:
            assert token == chain[anchor]
            anchor = token


def test_a_choice_sees_the_logits_of_its_step_and_steers_the_next_one() -> None:
    asked: list[tuple[int, Tensor]] = []

    def least_likely(k: int, logits: Tensor) -> Tensor:
        asked.append((k, logits))
        return logits.argmin(-1)

    drafts: Drafts = heads()(ANCHORS, HIDDEN, BASE, least_likely)
    assert [k for k, _ in asked] == list(range(BLOCK))
    for k, logits in asked:
        assert torch.equal(logits, drafts.logits[:, k])
        assert torch.equal(drafts.ids[:, k], logits.argmin(-1))
        before = ANCHORS if k == 0 else drafts.ids[:, k - 1]
        term = (EMBED[before].double() @ HEAD.double().T).float()
        assert torch.equal(logits, BASE[:, k] + term)


def test_requests_do_not_know_each_other() -> None:
    together = heads()(ANCHORS, HIDDEN, BASE, most_likely)
    for row in range(len(ANCHORS)):
        alone = heads()(ANCHORS[row : row + 1], HIDDEN[row : row + 1], BASE[row : row + 1], most_likely)
        for name in ("ids", "logits", "confidence"):
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[row]), name


def test_ties_go_to_the_lowest_id() -> None:
    assert most_likely(0, torch.tensor([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]])).tolist() == [1, 0]
