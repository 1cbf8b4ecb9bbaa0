from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flash41.server import run
from flash41.server.settings import ServerSettings
from helpers.command_line import invoke

pytestmark = pytest.mark.usefixtures("user_cache")


class Served(list[Any]):
    """What a server would have been started with."""

    def __call__(self, llm: Any, names: Sequence[str], settings: ServerSettings, announce: Any) -> int:
        self += [llm, list(names), settings]
        announce("http://127.0.0.1:1")
        return 0


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    found = Served()
    monkeypatch.setattr(run, "serve", found)
    return found


def test_without_options_the_default_is_served_to_this_machine(served: Served) -> None:
    result = invoke("serve", "--max-num-seqs", "1")
    assert result.exit_code == 0, (result.output, result.exception)
    _, names, settings = served
    assert names == ["DeepSeek-V4.1-Flash"]
    assert settings == ServerSettings()
    *plan, last = result.stdout.splitlines()
    assert any(line.startswith("slots 1") for line in plan)
    assert last == "listening at http://127.0.0.1:1"


def test_every_option_reaches_the_server(served: Served, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-the-tests-0123\n")
    result = invoke(
        "serve", "--host", "::1", "--port", "0", "--api-key-file", keys, "--allowed-host", "a", "--allowed-host", "b",
        "--allowed-origin", "https://c", "--served-model-name", "d", "--default-mode", "chat", "--hosted-sampling",
        "--max-waiting", "5", "--request-timeout", "6", "--max-body", "7K", "--grace", "8", "--max-num-seqs", "2",
        "--max-model-len", "300", "--no-prefix-cache", "--draft", "adaptive", "--draft-accept", "rejection",
        "--image-root", tmp_path, "--image-http",
    )  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    llm, names, settings = served
    assert (llm.plan.max_num_seqs, llm.plan.max_model_len, names) == (2, 300, ["d"])
    assert (llm.plan.draft.value, llm.plan.draft_accept.value) == ("adaptive", "rejection")
    assert settings == ServerSettings(
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


def test_the_status_of_the_server_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "serve", lambda *_: 1)
    assert invoke("serve", "--max-num-seqs", "1").exit_code == 1
