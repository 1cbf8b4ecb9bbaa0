import json
import shutil
from pathlib import Path

import pytest

from flash41.cli.canary_text import print_canary
from flash41.cli.main import run
from flash41.tools.ablations import ABLATIONS
from flash41.tools.canary.conversations import read_set
from helpers.command_line import invoke

FEW = ("--family", "copying", "--family", "pictures", "--samples", "1", "--threads", "1")

pytestmark = pytest.mark.usefixtures("tiny_as_default")


def test_a_table_has_a_row_for_every_family() -> None:
    result = invoke("canary", *FEW)
    assert result.exit_code == 0, (result.output, result.exception)
    head, names, *rows = result.stdout.splitlines()
    assert head.startswith("2 questions in ")
    assert head.endswith(", profile vendor")
    assert names.split()[:5] == ["family", "needs", "right", "score", "chance"]
    assert [row.split()[0] for row in rows] == ["copying", "pictures"]
    assert result.stderr == ""


def test_json_holds_scores_and_what_they_are_made_of() -> None:
    found = json.loads(invoke("canary", *FEW, "--json", "--without", "engram", "--perplexity").stdout)
    families = read_set().families
    assert found["scores"] == {name: found["right"][name] / found["asked"][name] for name in ("copying", "pictures")}
    assert found["asked"] == {"copying": 1, "pictures": 1}
    assert found["chance"]["pictures"] == families["pictures"].chance
    assert found["needs"]["copying"] == families["copying"].needs
    assert [count["asked"] for count in found["by_length"]["copying"]] == [1, 0, 0, 0]
    assert (found["model"], found["profile"], found["without"]) == ("default", "vendor", ["engram"])
    assert set(found["perplexities"]["vendor"]) == {"copying", "pictures", "all"}
    assert found["seconds"] > 0
    assert not {"ablations", "drafts", "approximate"} & set(found)


def test_mechanisms_are_listed_with_what_the_model_does_without_them() -> None:
    rows = invoke("canary", "--without", "list").stdout.splitlines()[1:]
    assert [row.split(maxsplit=1) for row in rows] == [[name, one.what] for name, one in ABLATIONS.items()]


def test_families_are_listed_with_what_they_need() -> None:
    rows = invoke("canary", "--family", "list").stdout.splitlines()[1:]
    assert [row.split(maxsplit=1) for row in rows] == [[name, one.needs] for name, one in read_set().families.items()]


def test_a_family_below_the_asked_fraction_is_a_status() -> None:
    assert invoke("canary", *FEW, "--at-least", "0").exit_code == 0
    failed = invoke("canary", *FEW, "--at-least", "1")  # random weights
    assert failed.exit_code == 1
    assert failed.stdout
    assert invoke("canary", *FEW, "--at-least", "90").exit_code == 2


def test_pictures_are_left_out_with_a_reason_where_no_encoder_is_open() -> None:
    output = invoke("canary", *FEW, "--no-images").stdout
    assert "pictures: 1 not asked: it shows pictures, and no image encoder is open" in output


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--family", "fact"), "family: got 'fact', expected one of stories, facts"),
        (("--without", "attention"), "mechanism: got 'attention', expected one of engram, window"),
        (("--samples", "0"), "samples: got 0, expected an integer of at least 1"),
        (("--without", "engram", "--all-ablations"), "--all-ablations with --without"),
        (("--without", "drafts"), "expected --draft on or --draft adaptive"),
        (
            ("--family", "pictures", "--drafts"),
            "--drafts with --family: got ['pictures'], expected one that shows no pictures",
        ),
    ],
)
def test_a_wrong_wish_is_one_line(wrong: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["canary", *wrong]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert said in captured.err


def test_a_directory_without_a_tokenizer_is_refused(
    tiny_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_directory, bare)
    (bare / "tokenizer.json").unlink()
    assert run(["canary", str(bare), *FEW]) == 1
    assert "tokenizer.json" in capsys.readouterr().err
    assert run(["canary", str(tmp_path), *FEW]) == 1
    assert "config.json" in capsys.readouterr().err


def test_everything_that_was_measured_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    counts = [{"right": 3, "asked": 4}, {"right": 0, "asked": 0}, {"right": 0, "asked": 1}, {"right": 0, "asked": 0}]
    print_canary({
        "scores": {"facts": 0.6}, "right": {"facts": 3, "tools": 0}, "asked": {"facts": 5, "tools": 0},
        "left_out": {"tools": {"too long": 2}}, "by_length": {"facts": counts, "tools": counts[3:] * 4},
        "chance": {"facts": 0.04, "tools": 0.0}, "needs": {"facts": "rows", "tools": "a format"},
        "seconds": 1.25, "profile": "fp32", "without": ["engram", "window"], "approximate": ["prefix-replay"],
        "ablations": {"sink": {"facts": 0.55}, "mhc": {"facts": 0.6}},
        "perplexities": {"fp32": {"all": 1.5, "facts": 1.25}, "atom": {"all": 2.5, "facts": 3.5}},
        "drafts": {
            "answers": 7, "equal": False, "accepted_share": 0.5, "by_position": [1.0, 0.25],
            "tokens_per_step": None, "speedup": 1.5,
        },
    })  # fmt: skip
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for expected in (
        "5 questions in 1.2 s, profile fp32, without engram, window, approximate: prefix-replay",
        "facts rows 3 of 5 60.0% 4.0% 3/4 0/1",
        "tools a format 0 of 0 - 0.0%",
        "tools: 2 not asked: too long",
        "sink 55% -5",
        "mhc 60% 0",
        "(chance) 4.0%",
        "all 1.5000 2.5000",
        "7 50.0% 100% 25% - 1.50 DIFFERENT",
    ):
        assert expected in shown, shown
