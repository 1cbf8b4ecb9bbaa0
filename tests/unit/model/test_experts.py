import pytest
import torch

from flash41.checkpoint.loader import Checkpoint, open_checkpoint
from flash41.checkpoint.residence import Residence, weight_sizes
from flash41.checkpoint.stored import Scope
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.experts import MOST_GUESSED_ROWS, Guess, RoutedExperts
from helpers.checkpoints import TINY
from helpers.tensors import normal

PREFIX = "layers.0.ffn.experts"


def checkpoint(residence: Residence | None = None) -> Checkpoint:
    found = open_checkpoint(TINY, [Scope.BACKBONE])
    if residence is not None:
        found.hold(residence)
    return found


def hot(num_experts: int) -> Residence:
    found = checkpoint()
    sizes = weight_sizes(found.config, [Scope.BACKBONE])
    return Residence(dense=True, hot_bytes=num_experts * sizes.num_expert_layers * sizes.one_expert_bytes)


def ids(*chosen: int) -> torch.Tensor:
    return torch.tensor([chosen])


def test_an_expert_is_one_record_while_it_stays_where_it_is_and_a_new_one_afterwards() -> None:
    experts = RoutedExperts(checkpoint(hot(1)), PREFIX)
    x = torch.zeros(1, 1)
    mapped = experts(3)
    assert experts(3) is mapped
    experts.want(ids(3), x)
    held = experts(3)
    assert held is not mapped
    assert held.w2.codes.data_ptr() != mapped.w2.codes.data_ptr()
    assert torch.equal(held.w2.codes, mapped.w2.codes)
    assert experts(3) is held
    for _ in range(6):
        experts.want(ids(1), x)
    assert experts(3) is mapped
    assert torch.equal(experts(1).w1.codes, RoutedExperts(checkpoint(), PREFIX)(1).w1.codes)
    # Back in the same place, but not the record of the first stay, from which a backend may keep decoded weights.
    for _ in range(12):
        experts.want(ids(3), x)
    assert experts(3) is not held
    assert torch.equal(experts(3).w3.scales, mapped.w3.scales)


@pytest.mark.parametrize("residence", [None, Residence(whole=True)])
def test_nobody_counts_where_there_is_nothing_to_keep(residence: Residence | None) -> None:
    found = checkpoint(residence)
    experts = RoutedExperts(found, PREFIX)
    experts.want(ids(3), torch.zeros(1, 1))
    assert experts.managed is None
    assert found.expert_counts == []


class Following:
    """The next layer's experts: notes what is expected."""

    def __init__(self) -> None:
        self.expects = True
        self.expected: list[list[int]] = []

    def expect(self, probable: list[int]) -> None:
        self.expected.append(probable)


@pytest.fixture
def guessing() -> tuple[RoutedExperts, Following]:
    experts, following = RoutedExperts(checkpoint(Residence()), PREFIX), Following()
    gate = torch.zeros(8, 32)
    gate[2, 0] = gate[5, 1] = 10.0
    experts.guess = Guess(
        gate=gate,
        bias=torch.zeros(8),
        topk=1,
        experts=following,  # type: ignore[arg-type]
        kernels=ReferenceKernels(),
    )
    return experts, following


def test_the_next_layers_router_names_what_it_will_probably_choose(guessing: tuple[RoutedExperts, Following]) -> None:
    experts, following = guessing
    x = torch.zeros(3, 32)
    x[0, 0] = x[1, 1] = x[2, 0] = 1.0
    experts.want(ids(0), x)
    assert following.expected == [[2, 5]]


def test_nothing_is_guessed_of_wide_forwards_or_where_it_would_not_be_used(
    guessing: tuple[RoutedExperts, Following],
) -> None:
    experts, following = guessing
    experts.want(ids(0), normal(MOST_GUESSED_ROWS + 1, 32))
    following.expects = False
    experts.want(ids(0), normal(1, 32))
    assert following.expected == []
