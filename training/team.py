"""Processes that train one model: each learns a batch of its own, and all move by the mean of their gradients.

Every process holds all masters and moments and does the same arithmetic on the same sums, so the copies stay equal bit
for bit and only the first one saves, reports and evaluates.  A run alone is a team of one and talks to nobody.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from flash41.errors import Flash41Error

Value = TypeVar("Value")
Wish = TypeVar("Wish")


class Team:
    """Place `rank` among `size` processes that were joined."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def leads(self) -> bool:
        """Whether this process speaks for all."""
        return self.rank == 0

    def decides(self, opinion: bool) -> bool:
        """What the leader thinks: clocks differ."""
        return self.gather(opinion)[0]

    def total(self, x: Tensor) -> Tensor:
        """Sum of everybody's x."""
        if self.size == 1:
            return x
        total = x.clone()
        dist.all_reduce(total)
        return total

    def mean_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Every gradient becomes the mean over the team; one that nobody has stays missing."""
        if self.size == 1:
            return
        trained = list(parameters)
        met = self.total(torch.tensor([float(one.grad is not None) for one in trained]))
        shared = [one for one, count in zip(trained, met.tolist(), strict=True) if count > 0]
        flat = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in shared])
        dist.all_reduce(flat)
        flat.div_(self.size)
        for one, part in zip(shared, flat.split([one.numel() for one in shared]), strict=True):
            one.grad = part.view_as(one)

    def spread(self, work: Callable[[Tensor], Tensor], items: Tensor) -> Tensor:
        """`work(items)` for work that does one item [n, ...] after another: each process does its part of them."""
        if self.size == 1 or len(items) < self.size:
            return work(items)
        share = -(-len(items) // self.size)
        mine = slice(self.rank * share, min(len(items), (self.rank + 1) * share))
        done = torch.zeros_like(items)
        done[mine] = work(items[mine])
        dist.all_reduce(done)
        return done

    def gather(self, value: Value) -> list[Value]:
        """Everybody's value, in the order of the ranks."""
        found: list[Value | None] = [value]
        if self.size > 1:
            found = [None] * self.size
            dist.all_gather_object(found, value)
        return [one for one in found if one is not None]


ALONE = Team()


def together(work: Callable[[Wish, Team], None], wish: Wish, size: int, meeting: Path) -> None:
    """Runs `work(wish, team)` here, as the leader, and in `size - 1` more processes; they meet at a file not there yet.

    Every process has one thread.  Raises what the leader raised; the others end when they can no longer reach it.
    """
    if size == 1:
        work(wish, ALONE)
        return
    meeting.unlink(missing_ok=True)
    arguments, context = (work, wish, size, str(meeting)), mp.get_context("spawn")
    others = [context.Process(target=_follow, args=(rank, *arguments), daemon=True) for rank in range(1, size)]
    for other in others:
        other.start()
    try:
        _take_part(0, *arguments)
    except BaseException:
        for other in others:
            other.terminate()
        raise
    finally:
        for other in others:
            other.join()
        meeting.unlink(missing_ok=True)


def _follow(rank: int, work: Callable[[Wish, Team], None], wish: Wish, size: int, meeting: str) -> None:
    with contextlib.suppress(Flash41Error):  # the leader met the same and says so
        _take_part(rank, work, wish, size, meeting)


def _take_part(rank: int, work: Callable[[Wish, Team], None], wish: Wish, size: int, meeting: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # they talk on this machine only
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{Path(meeting).absolute()}", rank=rank, world_size=size)
    try:
        work(wish, Team(rank, size))
    finally:
        dist.destroy_process_group()
