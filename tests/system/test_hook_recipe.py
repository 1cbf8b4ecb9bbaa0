"""The recipe of docs/comparing.md, in torch modules that stand where an engine's stand and say what ours said."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flash41.config.huggingface import read_config
from flash41.config.run import Profile
from flash41.engine.load import load_model
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.adapters.all import ADAPTERS
from flash41.tools.adapters.record import to_ours, to_theirs
from flash41.tools.adapters.table import hook_table
from flash41.tools.points import point_names
from flash41.tools.traces import trace
from helpers.command_line import ROOT
from helpers.golden_judge import CHECKPOINT, Array

IDS = (0, 5, 300, 7, 5, 300, 7, 42, 9, 11)
CONFIG = read_config(CHECKPOINT)
TORCH_ENGINES = ("vllm", "sglang", "transformers")

Keep = Callable[[nn.Module, list[dict[str, Any]]], dict[str, Array]]


class Speaker(nn.Module):
    """Takes anything and returns what it was told to, call after call."""

    compress_ratio = 2

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Any] = []

    def forward(self, *_: object, **__: object) -> Any:
        return self.answers.pop(0)


@pytest.fixture(scope="module")
def keep() -> Keep:
    text = (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(recipe, names)
    found: Keep = names["keep"]
    return found


@pytest.fixture(scope="module")
def points() -> dict[str, Array]:
    profile = Profile.VENDOR
    model = load_model(CHECKPOINT, profile, profile.default_pool, ReferenceKernels(), drafts=True)
    arrays = trace(model, IDS, draft=True)
    return {name.removeprefix("trace/"): array for name, array in arrays.items() if name.startswith("trace/")}


def module_at(root: nn.Module, path: str) -> Speaker:
    for name in path.split("."):
        if name not in dict(root.named_children()):
            root.add_module(name, Speaker())
        root = root.get_submodule(name)
    assert isinstance(root, Speaker)
    return root


def spoken(
    rows: list[dict[str, Any]], side: str, call: int, arrays: Mapping[str, Array]
) -> dict[int | str | None, Tensor]:
    """What stands at every key of one side of one call."""
    values: dict[int | str | None, Tensor] = {}
    for row in rows:
        if (row["side"], row["call"]) == (side, call):
            array = arrays[row["name"]]
            if row["each"]:  # a row for every token, of which only the last of a group is written
                filled = np.full((len(array) * Speaker.compress_ratio, *array.shape[1:]), np.nan, array.dtype)
                filled[Speaker.compress_ratio - 1 :: Speaker.compress_ratio] = array
                array = filled
            values[row["key"]] = torch.from_numpy(array)
    return values


def listed(values: Mapping[int | str | None, Tensor]) -> tuple[Tensor | None, ...]:
    """A tuple with the values at their positions."""
    positions = [key for key in values if isinstance(key, int)]
    return tuple(values.get(position) for position in range(max(positions, default=-1) + 1))


def run(root: nn.Module, table: list[dict[str, Any]], arrays: Mapping[str, Array]) -> None:
    """Calls every module of the table as often as the table knows, with what it takes and returns."""
    by_module = defaultdict(list)
    for row in table:
        by_module[row["target"]].append(row)
    for path, rows in by_module.items():
        module = module_at(root, path)
        for call in range(max(row["call"] for row in rows) + 1):
            taken, returned = spoken(rows, "input", call, arrays), spoken(rows, "output", call, arrays)
            module.answers.append(returned.get(None, listed(returned)))
            module(*listed(taken), **{key: value for key, value in taken.items() if isinstance(key, str)})


@pytest.mark.parametrize("root_name", ["model", "draft"])
@pytest.mark.parametrize("engine", TORCH_ENGINES)
def test_hooks_of_the_recipe_bring_home_what_the_modules_say(
    engine: str, root_name: str, keep: Keep, points: dict[str, Array]
) -> None:
    adapter = ADAPTERS[engine]
    table = [
        row
        for row in hook_table(adapter, points, CONFIG.num_layers)
        if row["root"] == root_name and row["side"] in ("input", "output")
    ]
    assert bool(table) == (root_name == "model" or engine != "transformers")
    theirs = to_theirs(adapter, points)
    root = nn.Module()
    for row in table:
        module_at(root, str(row["target"]))
    kept = keep(root, table)
    run(root, table, theirs)
    assert set(kept) == {row["name"] for row in table}
    later = {name: np.full_like(array, 7) for name, array in theirs.items()}
    run(root, table, later)  # the decode steps behind the prompt
    for row in table:
        assert np.array_equal(kept[str(row["name"])], theirs[str(row["name"])]), row
    ours, unknown = to_ours(adapter, kept)
    assert unknown == ()
    for point, array in ours.items():
        assert np.array_equal(array, points[point]), point


def test_hooks_leave_what_is_no_place_in_a_module_alone(keep: Keep) -> None:
    table = hook_table(ADAPTERS["llama.cpp"], point_names(CONFIG), CONFIG.num_layers)
    assert keep(nn.Module(), table) == {}


def test_values_of_other_types_become_numbers_numpy_knows(keep: Keep) -> None:
    root = nn.Module()
    row = {"name": "n", "side": "output", "target": "a", "key": None, "call": 0, "each": None}
    module_at(root, "a").answers.append(torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16))
    kept = keep(root, [row])
    root.get_submodule("a")()
    assert kept["n"].dtype == np.float32
    assert kept["n"].tolist() == [[1.5, -2.0]]
