"""Machine plans for tests: the release, the small checkpoint, and machines that are stated in one line."""

from dataclasses import replace
from typing import Any

from flash41.config.architecture import ModelConfig
from flash41.config.run import RunWish
from flash41.planning.capacity import MachinePlan, plan_machine
from flash41.planning.demand import Demand
from flash41.planning.machine import Machine, MachineKind, machine

GIB = 2**30


def gpus(count: int, gibs: int = 141, **more: Any) -> Machine:
    return machine(MachineKind.GPU, gibs * GIB, num_devices=count, **more)


def ram(gibs: int, **more: Any) -> Machine:
    return machine(MachineKind.RAM, gibs * GIB, **more)


def demand(requests: int = 1, context: int = 8192, *, images: bool = False, **switches: Any) -> Demand:
    sizes = RunWish(max_num_seqs=requests, max_model_len=context, max_num_batched_tokens=512)
    return Demand(wish=replace(sizes, **switches), images=images)


def planned(config: ModelConfig, found: Machine, wanted: Demand) -> MachinePlan:
    return plan_machine(config, found, wanted)
