import json
from pathlib import Path

import pytest

from flash41.config.huggingface import read_config
from flash41.errors import Flash41Error, RequestError
from flash41.tools.adapters.all import ADAPTERS
from flash41.tools.adapters.table import hook_table
from flash41.tools.points import point_names
from helpers.command_line import invoke
from helpers.golden_judge import CHECKPOINT


@pytest.mark.parametrize("path", [CHECKPOINT, CHECKPOINT / "config.json"], ids=["directory", "file"])
@pytest.mark.parametrize("options", [(), ("--draft", "--images")], ids=["plain", "everything"])
def test_a_line_of_json_tells_a_place(path: Path, options: tuple[str, ...]) -> None:
    result = invoke("hooks", "sglang", path, *options)
    assert result.exit_code == 0, result.exception
    config = read_config(CHECKPOINT)
    points = point_names(config, draft=bool(options), images=bool(options))
    records = [json.loads(line) for line in result.output.splitlines()]
    assert records == hook_table(ADAPTERS["sglang"], points, config.num_layers)


@pytest.mark.parametrize("engine", ADAPTERS)
def test_without_a_model_the_release_and_the_differences_are_told(engine: str) -> None:
    result = invoke("hooks", engine)
    first, *notes = result.output.splitlines()
    assert first == f"{engine}, facts from {ADAPTERS[engine].version}"
    assert notes == [f"- {note}" for note in ADAPTERS[engine].notes]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("vlm",), "engine: got 'vlm', expected one of vllm, sglang, transformers, llama.cpp"),
        (("vllm", "--draft"), "option without a model: got '--draft'"),
        (("vllm", "--images"), "option without a model: got '--images'"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments: tuple[str, ...], fault: str) -> None:
    refusal = invoke("hooks", *arguments).exception
    assert isinstance(refusal, RequestError)
    assert str(refusal).startswith(fault)


def test_a_missing_config_is_refused(tmp_path: Path) -> None:
    assert isinstance(invoke("hooks", "vllm", tmp_path / "none").exception, Flash41Error)
