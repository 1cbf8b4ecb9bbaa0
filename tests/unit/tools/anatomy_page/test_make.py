"""From a directory and a trace to a file, and every refusal before it."""

import json
import shutil
from pathlib import Path

import pytest

from flash41.errors import ConfigError, RequestError
from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page.make import make_page, spelling, title
from helpers.config_documents import tiny_text
from helpers.golden_judge import CHECKPOINT
from helpers.traced_files import save, scripted_trace


def document(path: Path) -> dict[str, object]:
    text = path.read_text(encoding="utf-8")
    start = text.index('id="anatomy-document">') + len('id="anatomy-document">')
    found: dict[str, object] = json.loads(text[start : text.index("</script>", start)])
    return found


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert make_page(CHECKPOINT, out) == out.stat().st_size
    assert document(out)["title"] == "tiny-a"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_trace_is_spelled_with_the_directorys_tokenizer(tmp_path: Path, tiny: Anatomy) -> None:
    trace = save(tmp_path / "t.npz", scripted_trace(tiny.config, 5))
    make_page(CHECKPOINT, tmp_path / "page.html", trace, token=2)
    shown = document(tmp_path / "page.html")["trace"]
    assert isinstance(shown, dict)
    assert shown["chosen"] == 2
    assert len(shown["texts"]) > 4


def test_without_a_tokenizer_ids_have_no_text(tmp_path: Path) -> None:
    assert spelling(tmp_path)(5) is None
    (tmp_path / "tokenizer.json").write_text("{broken")
    assert spelling(tmp_path)(5) is None
    spell = spelling(CHECKPOINT / "config.json")
    assert spell(5) is not None
    assert spell(10**9) is None


def test_a_model_is_called_by_its_release_or_its_place(tmp_path: Path, tiny: Anatomy, release: Anatomy) -> None:
    assert title(tmp_path, release) == "DeepSeek-V4.1-Flash"
    folder = tmp_path / "<!--<script>"
    folder.mkdir()
    assert title(folder, tiny) == title(folder / "config.json", tiny) == "<!--<script>"
    assert title(tmp_path / "other.json", tiny) == "other"
    assert title(Path("bad\udcff.json"), tiny) == "bad?"


def test_a_configuration_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(tiny_text())
    make_page(tmp_path / "config.json", tmp_path / "page.html")
    assert document(tmp_path / "page.html")["trace"] is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("page.txt", r"ends in \.html"),
        ("there.html", "or use --force"),
        ("no/page.html", "existing folder"),
        ("d.html", "a file"),
    ],
)
def test_targets_that_cannot_be_are_refused(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "there.html").write_text("kept")
    (tmp_path / "d.html").mkdir()
    with pytest.raises(RequestError, match=words):
        make_page(CHECKPOINT, tmp_path / name)
    assert (tmp_path / "there.html").read_text() == "kept"


def test_force_replaces_and_a_token_wants_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    with pytest.raises(RequestError, match="name one with --trace"):
        make_page(CHECKPOINT, out, token=3, force=True)
    assert out.read_text() == "old"
    make_page(CHECKPOINT, out, force=True)
    assert out.read_text() != "old"


def test_a_refused_configuration_leaves_nothing(tmp_path: Path) -> None:
    broken = json.loads(tiny_text())
    broken["text_config"]["hidden_size"] = "wide"
    (tmp_path / "config.json").write_text(json.dumps(broken))
    with pytest.raises(ConfigError, match="hidden_size"):
        make_page(tmp_path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_copied_directory_has_its_own_name(tmp_path: Path) -> None:
    folder = tmp_path / "mine & yours"
    folder.mkdir()
    shutil.copy(CHECKPOINT / "config.json", folder)
    make_page(folder, tmp_path / "page.html")
    assert document(tmp_path / "page.html")["title"] == "mine & yours"
    assert "<title>Anatomy of mine &amp; yours</title>" in (tmp_path / "page.html").read_text(encoding="utf-8")
