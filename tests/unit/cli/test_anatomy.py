"""`flash41 anatomy`: a page for a browser."""

from pathlib import Path

from flash41.errors import ConfigError, RequestError
from flash41.tools.anatomy import dissect
from helpers.command_line import invoke
from helpers.config_documents import tiny_config
from helpers.golden_judge import CHECKPOINT
from helpers.traced_files import save, scripted_trace


def test_the_command_names_its_file_and_size(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = invoke("anatomy", CHECKPOINT, "-o", out)
    assert result.exit_code == 0, result.exception
    assert result.output.startswith(f"{out}: ")
    assert result.output.endswith(" KiB\n")


def test_a_trace_and_a_token_are_taken(tmp_path: Path) -> None:
    trace = save(tmp_path / "t.npz", scripted_trace(dissect(tiny_config()).config, 4))
    out = tmp_path / "page.html"
    result = invoke("anatomy", CHECKPOINT / "config.json", "--out", out, "--trace", trace, "--token", "1")
    assert result.exit_code == 0, result.exception
    assert '"chosen":1' in out.read_text(encoding="utf-8")


def test_wrong_uses_say_what_is_wrong(tmp_path: Path) -> None:
    missing = invoke("anatomy", CHECKPOINT)
    assert missing.exit_code == 2
    assert "--out" in missing.output
    out = tmp_path / "page.html"
    assert isinstance(invoke("anatomy", tmp_path, "-o", out).exception, ConfigError)
    assert isinstance(invoke("anatomy", CHECKPOINT, "-o", out, "--trace", tmp_path / "no.npz").exception, RequestError)
    assert not out.exists()


def test_the_help_says_what_is_read() -> None:
    text = invoke("anatomy", "--help").output
    assert "Only config.json is read" in text
    assert "--trace" in text
