"""Gradients that were written by hand, against those of plain torch and against differences."""

import torch
from torch import Tensor

from flash41.kernels.reference.mhc import sinkhorn as reference_sinkhorn
from training.model.mixing import SLOPE_FLOOR, signed_root, sinkhorn
from training.model.sparse import sparse_attention
from training.model.streams import apply, collapse
from training.model.tape import imitation

INDEX = torch.tensor([[0, 1, 0], [1, 2, 4], [4, 0, 3]])
COUNTS = torch.tensor([2, 3, 1])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def written_out(q: Tensor, rows: Tensor, sink: Tensor, scale: float) -> Tensor:
    outputs = []
    for t, count in enumerate(COUNTS.tolist()):
        keys = rows[INDEX[t, :count]]
        logits = torch.cat((q[t] @ keys.T * scale, sink.unsqueeze(1)), 1)
        outputs.append(logits.softmax(1)[:, :-1] @ keys)
    return torch.stack(outputs)


def test_attention_has_the_value_and_the_gradients_of_the_formula() -> None:
    q, rows, sink, weights = drawn(3, 2, 4), drawn(5, 4, seed=1), drawn(2, seed=2), drawn(3, 2, 4, seed=3)
    outputs, masses = sparse_attention(q, rows, INDEX, COUNTS, sink, 0.5)
    expected = written_out(q, rows, sink, 0.5)
    torch.testing.assert_close(outputs, expected)
    ours = torch.autograd.grad((outputs * weights).sum(), (q, rows, sink))
    theirs = torch.autograd.grad((expected * weights).sum(), (q, rows, sink))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert not masses.requires_grad
    assert (masses[0, :, 2] == 0).all(), "an entry behind the count has no mass"


def test_a_row_that_is_on_no_list_gets_no_gradient() -> None:
    rows = drawn(6, 4)
    outputs, _ = sparse_attention(drawn(3, 2, 4, seed=1), rows, INDEX, COUNTS, drawn(2, seed=2), 0.5)
    (gradient,) = torch.autograd.grad(outputs.sum(), rows)
    assert (gradient[5] == 0).all()
    assert (gradient[3] == 0).all(), "row 3 stands behind the count of its only list"
    assert (gradient[4] != 0).any()


def test_streams_are_read_and_written_with_true_gradients() -> None:
    x, y, post, comb = drawn(3, 4, 5), drawn(3, 5, seed=1), drawn(3, 4, seed=2), drawn(3, 4, 4, seed=3)
    torch.testing.assert_close(collapse(x, post), torch.einsum("tsd,ts->td", x, post))
    torch.testing.assert_close(
        apply(x, y, post, comb), torch.einsum("tjk,tjd->tkd", comb, x) + post.unsqueeze(2) * y.unsqueeze(1)
    )
    assert torch.autograd.gradcheck(collapse, (x, post))
    assert torch.autograd.gradcheck(apply, (x, y, post, comb))


def test_sinkhorn_is_the_engines_and_differentiable_through_every_round() -> None:
    logits = drawn(3, 4, 4)
    torch.testing.assert_close(
        sinkhorn(logits, 8, 1e-6), reference_sinkhorn(logits.detach(), 8, 1e-6).double(), atol=1e-6, rtol=0
    )
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 3, 1e-6), (logits,))


def test_the_signed_root_is_exact_and_its_slope_is_bounded() -> None:
    dot = torch.tensor([4.0, -0.25, 1e-9, -1e-9, 0.04], dtype=torch.float64, requires_grad=True)
    root = signed_root(dot)
    torch.testing.assert_close(root, torch.tensor([2.0, -0.5, 1e-3, -1e-3, 0.2], dtype=torch.float64))
    (slope,) = torch.autograd.grad(root.sum(), dot)
    bound = 0.5 * SLOPE_FLOOR**-0.5
    torch.testing.assert_close(slope, torch.tensor([0.25, 1.0, bound, bound, 2.5], dtype=torch.float64))


def test_imitation_is_least_where_scores_tell_the_attended_rows_apart() -> None:
    rows, mass = torch.tensor([[0, 2, -1], [-1, -1, -1]]), torch.tensor([[0.6, 0.2, 0.0], [0.0, 0.0, 0.0]])
    wanted = (mass[0, :2] / mass[0, :2].sum()).log()
    scores = torch.zeros(2, 3)
    scores[0, 0], scores[0, 2] = wanted[0], wanted[1]
    scores.requires_grad_()
    loss = imitation(scores, rows, mass)
    (gradient,) = torch.autograd.grad(loss, scores)
    torch.testing.assert_close(gradient, torch.zeros(2, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(loss, -(wanted.exp() * wanted).sum())
    assert imitation(torch.zeros(2, 3), rows, mass) > loss
