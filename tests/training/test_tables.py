"""Engram tables: rows that were read move by their gradient, at the scale of the table; the others rest."""

import torch
from torch import nn

from training.optimizer import TABLE_FACTOR, Optimizer, Tables
from training.state import Moments

NAME = "layers.0.engram.embed.weight"


def table(gradient: torch.Tensor | None) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(4, 2))
    parameter.grad = gradient
    return parameter


def test_rows_move_by_gradient_over_the_root_mean_square_of_rows_that_were_read() -> None:
    gradient = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    one = table(gradient.clone())
    Tables({NAME: one}, {}).step(0.1)
    scale = ((9.0 + 1.0) / 4) ** 0.5
    torch.testing.assert_close(one.detach(), -0.1 * gradient / scale)
    assert one.grad is None


def test_the_scale_is_a_running_mean_that_a_resumed_run_goes_on_with() -> None:
    one = table(torch.ones(4, 2))
    tables = Tables({NAME: one}, {NAME: Moments(torch.zeros(0), torch.tensor([4.0]), torch.zeros(0))})
    tables.step(1.0)
    mean = 4.0 + (1.0 - 0.98) * (1.0 - 4.0)
    torch.testing.assert_close(tables.squares[NAME], torch.tensor([mean]))
    torch.testing.assert_close(one.detach(), torch.full((4, 2), -(mean**-0.5)))


def test_a_table_that_nobody_read_rests_and_keeps_its_scale() -> None:
    for gradient in (None, torch.zeros(4, 2)):
        one = table(gradient)
        tables = Tables({NAME: one}, {})
        tables.step(1.0)
        assert one.detach().count_nonzero() == 0
        assert tables.squares == {}


def test_an_optimizer_moves_tables_faster_than_others_and_remembers_their_scale() -> None:
    one, sink = table(torch.full((4, 2), 0.01)), nn.Parameter(torch.zeros(1))
    optimizer = Optimizer({NAME: one, "layers.0.attn.attn_sink": sink}, {})
    optimizer.step(0.5)
    torch.testing.assert_close(one.detach(), torch.full((4, 2), -0.5 * TABLE_FACTOR))
    assert set(optimizer.moments()) == {NAME}
    torch.testing.assert_close(optimizer.moments()[NAME].second, torch.tensor([1e-4]))
