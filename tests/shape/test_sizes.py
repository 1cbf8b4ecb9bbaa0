"""Rules of the house that a program can check; each test lists every offender."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from helpers.command_line import ROOT

SOURCE = ROOT / "src" / "flash41"
LARGEST_FILE = 500
LARGEST_FUNCTION = 80
CONSTANT = re.compile(r"_{0,2}[A-Z][A-Z0-9_]*")
TYPE_NAME = re.compile(r"_?[A-Z][A-Za-z0-9]*")
OTHER_NAMES = {"logger", "__all__", "__version__"}
PICKLERS = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Every module of the package, parsed; paths counted from the package."""
    found = {
        path.relative_to(SOURCE): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))
    }
    assert len(found) > 50
    return found


def outside_cli(trees: Trees) -> Trees:
    return {path: tree for path, tree in trees.items() if path.parts[0] != "cli"}


def nodes(trees: Trees, *kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield path, node


def calls(trees: Trees, names: Collection[str]) -> list[tuple[Path, str, ast.Call]]:
    """Calls of functions of these names, which may be dotted, as in ``np.load``."""
    ends = {name.rpartition(".")[2] for name in names}
    found = []
    for path, node in nodes(trees, ast.Call):
        assert isinstance(node, ast.Call)
        end = getattr(node.func, "id", getattr(node.func, "attr", None))
        if end in ends and (name := ast.unparse(node.func)) in names:
            found.append((path, name, node))
    return found


def test_files_are_of_readable_size() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert {path: size for path, size in sizes.items() if size > LARGEST_FILE} == {}


def test_functions_are_of_readable_size(trees: Trees) -> None:
    sizes = {}
    for path, node in nodes(trees, ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, Function)
        sizes[path, node.name] = (node.end_lineno or node.lineno) - node.lineno + 1
    assert {place: size for place, size in sizes.items() if size > LARGEST_FUNCTION} == {}


def test_modules_hold_constants_types_and_functions_but_no_state(trees: Trees) -> None:
    assigned: list[tuple[Path, str]] = []
    for path, tree in trees.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, (ast.AnnAssign, ast.AugAssign)):
                targets = [node.target]
            assigned += [(path, ast.unparse(target)) for target in targets]
    assert len(assigned) > 50
    allowed = (CONSTANT, TYPE_NAME)
    strange = [(path, name) for path, name in assigned if not any(form.fullmatch(name) for form in allowed)]
    assert [(path, name) for path, name in strange if name not in OTHER_NAMES] == []
    assert [path for path, _ in nodes(trees, ast.Global)] == []


def test_only_the_command_line_prints(trees: Trees) -> None:
    printing = {"print", "sys.stdout.write", "sys.stderr.write"}
    assert [(path, name) for path, name, _ in calls(outside_cli(trees), printing)] == []


def test_no_import_is_hidden_from_the_import_contract(trees: Trees) -> None:
    assert [path for path in trees if "TYPE_CHECKING" in (SOURCE / path).read_text(encoding="utf-8")] == []
    hidden = []
    for path, function in nodes(outside_cli(trees), ast.FunctionDef, ast.AsyncFunctionDef):
        inner = (node for node in ast.walk(function) if isinstance(node, (ast.Import, ast.ImportFrom)))
        hidden += [(path, ast.unparse(node)) for node in inner]
    assert hidden == []


def test_nothing_is_unpickled(trees: Trees) -> None:
    imports = [(path, ast.unparse(node)) for path, node in nodes(trees, ast.Import, ast.ImportFrom)]
    assert [(path, text) for path, text in imports if PICKLERS & set(re.findall(r"\w+", text))] == []
    loads = calls(trees, ("np.load", "numpy.load"))
    assert loads
    for path, _, call in loads:
        assert "allow_pickle=False" in ast.unparse(call), path
    assert [(path, name) for path, name, _ in calls(trees, ("torch.load", "torch.save"))] == []


def test_every_module_begins_with_what_it_is_for(trees: Trees) -> None:
    assert [path for path, tree in trees.items() if path.name != "__init__.py" and not ast.get_docstring(tree)] == []
