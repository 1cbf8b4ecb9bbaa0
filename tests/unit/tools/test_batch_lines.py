import json
from pathlib import Path
from typing import Any

import pytest

from flash41.errors import RequestError
from flash41.tools.batch_lines import BatchLine, fingerprint, read_lines

CALL = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def written(folder: Path, *lines: dict[str, Any] | bytes) -> Path:
    path = folder / "in.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


def read(folder: Path, *lines: dict[str, Any] | bytes, model: str = "m") -> list[BatchLine]:
    return read_lines(written(folder, *lines), model)


def test_a_line_is_read_and_blank_ones_are_skipped(tmp_path: Path) -> None:
    (line,) = read(tmp_path, b"", CALL, b"  ", b"")
    assert (line.number, line.custom_id, line.url, line.body, line.fault) == (
        2,
        "a",
        "/v1/completions",
        {"prompt": "x"},
        None,
    )
    assert line.result_id == f"batch_req_{line.digest}"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"nonsense", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'["list"]', "invalid_json"),
        (b'{"custom_id": "a", "custom_id": "b"}', "invalid_json"),
        (b'{"a": ' + b"[" * 100_000, "invalid_json"),
        ({**CALL, "custom_id": ""}, "invalid_custom_id"),
        ({**CALL, "custom_id": 7}, "invalid_custom_id"),
        ({**CALL, "method": "GET"}, "invalid_method"),
        ({**CALL, "url": "/v1/embeddings"}, "invalid_url"),
        ({**CALL, "body": "x"}, "invalid_body"),
        ({"custom_id": "a", "method": "POST", "url": "/v1/completions"}, "invalid_body"),
    ],
)
def test_a_line_that_is_no_call_says_why(tmp_path: Path, line: dict[str, Any] | bytes, code: str) -> None:
    good, bad = read(tmp_path, {**CALL, "custom_id": "good"}, line)
    assert good.fault is None
    assert bad.fault is not None
    assert bad.fault.code == code
    assert bad.fault.message


def test_the_digest_knows_the_line_and_the_model_but_not_the_place(tmp_path: Path) -> None:
    other = {**CALL, "custom_id": "b"}
    first, second = read(tmp_path, CALL, other)
    moved = read(tmp_path, other, CALL)
    assert [line.digest for line in moved] == [second.digest, first.digest]
    assert read(tmp_path, CALL, model="n")[0].digest != first.digest
    assert read(tmp_path, {**CALL, "body": {"prompt": "y"}})[0].digest != first.digest


def test_lines_without_a_name_are_known_by_their_place(tmp_path: Path) -> None:
    first, second = read(tmp_path, b"same", b"same")
    assert first.digest != second.digest


def test_all_repeated_names_are_refused_at_once(tmp_path: Path) -> None:
    lines = [{**CALL, "custom_id": name} for name in "abcab"]
    with pytest.raises(RequestError) as caught:
        read(tmp_path, *lines)
    assert "custom_id 'a': got 'lines 1, 4'" in str(caught.value)
    assert "custom_id 'b': got 'lines 2, 5'" in str(caught.value)
    assert "'c'" not in str(caught.value)


def test_an_input_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RequestError, match="batch input"):
            read_lines(path, "m")


def test_the_fingerprint_knows_options_and_configuration(tmp_path: Path) -> None:
    found = {fingerprint(None, ["vendor", None]), fingerprint(None, ["fp32", None]), fingerprint(tmp_path, ["vendor"])}
    (tmp_path / "config.json").write_text("{}")
    found.add(fingerprint(tmp_path, ["vendor"]))
    assert len(found) == 4
    assert fingerprint(tmp_path / "." / "x" / "..", ["vendor"]) in found
