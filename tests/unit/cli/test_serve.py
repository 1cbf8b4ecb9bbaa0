import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flash41.checkpoint.embedded import default_config
from flash41.config.huggingface import read_config
from flash41.engine.llm import LLM
from flash41.errors import CheckpointError
from flash41.server import engine_process, run
from flash41.server.settings import ServerSettings
from helpers.command_line import invoke
from helpers.golden_judge import CHECKPOINT


class Served:
    """What a server would have been started with: no process is started, and nothing is opened."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.names: list[str] = []
        self.settings: ServerSettings | None = None
        self.logs_json = False
        self.has_ended = False
        self.refusal: Exception | None = None
        self.status = 0

    def process(self, options: Mapping[str, Any], names: Sequence[str], *, logs_json: bool) -> "Served":
        self.options, self.names, self.logs_json = dict(options), list(names), logs_json
        return self

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.has_ended = True

    def client(self) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return SimpleNamespace(facts=SimpleNamespace(choices=("slots 1: a reason",)))

    def serve(self, engine: Any, settings: ServerSettings, announce: Any) -> int:
        assert engine.facts.choices
        self.settings = settings
        announce("http://127.0.0.1:1")
        return self.status


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    found = Served()
    monkeypatch.setattr(run, "serve", found.serve)
    monkeypatch.setattr(engine_process, "EngineProcess", found.process)
    return found


def test_without_options_the_default_is_served_to_this_machine(served: Served) -> None:
    result = invoke("serve", "--max-num-seqs", "1")
    assert result.exit_code == 0, (result.output, result.exception)
    assert (served.names, served.settings) == (["DeepSeek-V4.1-Flash"], ServerSettings(model_config=default_config()))
    assert (served.options["model"], served.options["max_num_seqs"], served.logs_json) == (None, 1, False)
    assert result.stdout.splitlines() == ["slots 1: a reason", "listening at http://127.0.0.1:1"]
    assert served.has_ended


def test_every_option_of_the_engine_is_one_of_the_model_object(served: Served) -> None:
    invoke("serve")
    wanted = inspect.signature(LLM.__init__).parameters
    assert set(served.options) <= set(wanted)
    assert {name: wanted[name].default for name in served.options} == served.options, "the defaults are the same"


def test_every_option_reaches_the_server(served: Served, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-the-tests-0123\n")
    result = invoke(
        "serve", "--host", "::1", "--port", "0", "--api-key-file", keys, "--allowed-host", "a", "--allowed-host", "b",
        "--allowed-origin", "https://c", "--served-model-name", "d", "--default-mode", "chat", "--hosted-sampling",
        "--max-waiting", "5", "--request-timeout", "6", "--max-body", "7K", "--grace", "8", "--max-num-seqs", "2",
        "--max-model-len", "300", "--no-prefix-cache", "--log-json", "--model", CHECKPOINT, "--memory", "3M",
        "--draft", "adaptive", "--draft-accept", "rejection", "--image-root", tmp_path, "--image-http",
    )  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    options = served.options
    assert (options["max_num_seqs"], options["max_model_len"], options["prefix_cache"]) == (2, 300, False)
    assert (options["draft"], options["draft_accept"]) == ("adaptive", "rejection")
    assert (options["model"], options["memory_bytes"], served.names, served.logs_json) == (
        str(CHECKPOINT), 3 * 2**20, ["d"], True,
    )  # fmt: skip
    assert served.settings == ServerSettings(
        host="::1",
        port=0,
        api_keys=("a-key-of-the-tests-0123",),
        allowed_hosts=("a", "b"),
        allowed_origins=("https://c",),
        thinks_by_default=False,
        hosted_sampling=True,
        max_waiting=5,
        request_timeout_seconds=6.0,
        max_body_bytes=7 * 1024,
        image_root=tmp_path,
        image_http=True,
        grace_seconds=8.0,
        model_config=read_config(CHECKPOINT),
    )


def test_a_server_open_to_all_says_so(served: Served) -> None:
    assert "--api-key-file" in invoke("serve", "--host", "0.0.0.0", "--max-num-seqs", "1").stdout
    assert "--api-key-file" not in invoke("serve", "--host", "localhost", "--max-num-seqs", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--default-mode", "loud"), "thinking or chat"),
        (("--max-body", "much"), "--max-body"),
        (("--port", "65536"), "--port"),
        (("--grace", "-1"), "--grace"),
        (("--image-root", "nowhere"), "--image-root"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: tuple[str, ...], words: str) -> None:
    result = invoke("serve", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_status_of_the_server_is_that_of_the_command(served: Served) -> None:
    served.status = 1
    assert invoke("serve").exit_code == 1


def test_what_the_engine_refuses_is_refused(served: Served) -> None:
    served.refusal = CheckpointError("model: got nothing, expected something")
    assert invoke("serve").exception is served.refusal
    assert served.has_ended
