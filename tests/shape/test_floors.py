import subprocess
import sys

import pytest

import flash41
from flash41.config.architecture import ModelConfig
from flash41.version import __version__
from helpers.command_line import ROOT, environment

SOURCE = ROOT / "src" / "flash41"
PUBLIC = ("LLM", "ModelConfig", "SamplingParams", "__version__")


def python(code: str) -> str:
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_import_contracts_are_kept() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    found = subprocess.run(
        [*command, "--no-cache"], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 broken" in found.stdout


def test_the_init_of_every_room_is_empty() -> None:
    rooms = [path for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE]
    assert len(rooms) > 10
    assert [path for path in rooms if path.read_text(encoding="utf-8")] == []


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_importing_the_package_loads_no_tensors_and_no_room() -> None:
    code = (
        "import sys, flash41; print(*(name for name in sys.modules if name.startswith(('flash41', 'torch', 'numpy'))))"
    )
    assert python(code).split() == ["flash41.version", "flash41"]


def test_a_public_name_loads_what_it_needs_and_no_more() -> None:
    assert python("import sys; from flash41 import ModelConfig; print('torch' in sys.modules)").strip() == "False"


def test_the_public_names_resolve() -> None:
    assert flash41.ModelConfig is ModelConfig
    assert flash41.__version__ == __version__
    assert flash41.LLM.__module__ == "flash41.engine.llm"
    assert flash41.SamplingParams.__module__ == "flash41.engine.request"
    assert tuple(flash41.__all__) == PUBLIC
    assert tuple(dir(flash41)) == PUBLIC


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = flash41.nonsense  # type: ignore[attr-defined]


def test_the_typed_names_are_the_public_ones() -> None:
    stub = (SOURCE / "__init__.pyi").read_text()
    assert sorted(line.split(" as ")[1] for line in stub.splitlines()) == sorted(PUBLIC)
    assert (SOURCE / "py.typed").is_file()
