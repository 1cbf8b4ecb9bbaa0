import json
from pathlib import Path

from helpers.checkpoints import TINY, edit_header, edit_json, set_byte, tiny_copy
from helpers.command_line import invoke

FIRST = "model-00001-of-00005.safetensors"


def test_a_good_checkpoint_has_no_faults_and_status_0() -> None:
    result = invoke("doctor", TINY)
    assert result.exit_code == 0
    assert "No faults" in result.output
    assert "1,568, 6,717,760 bytes (6.41 MiB)" in result.output
    assert result.output.splitlines()[0] == str(TINY)


def test_every_fault_is_numbered_and_the_status_is_1(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    edit_header(directory / FIRST, lambda header: header["embed.weight"].update(dtype="F32"))
    edit_json(directory / "config.json", lambda config: config.update(surprise=1))
    result = invoke("doctor", directory)
    assert result.exit_code == 1
    _, _, faults = result.output.partition(" faults\n")
    numbers = [line.split(".")[0].strip() for line in faults.splitlines() if ". [" in line]
    assert len(numbers) >= 2
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert "surprise" in faults
    assert "unknown (no valid config.json)" in result.output


def test_json_is_the_whole_report(tmp_path: Path) -> None:
    healthy = json.loads(invoke("doctor", TINY, "--json").output)
    assert healthy["healthy"] is True
    assert healthy["token_map"] == "checked"
    assert healthy["num_tensors"] == 1568
    directory = tiny_copy(tmp_path)
    (directory / FIRST).unlink()
    result = invoke("doctor", directory, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["faults"]


def test_a_directory_that_is_not_there_is_one_fault(tmp_path: Path) -> None:
    result = invoke("doctor", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert "1 fault\n  1. [directory]" in result.output


def test_weights_are_read_only_when_that_is_asked_for(tmp_path: Path) -> None:
    directory = tiny_copy(tmp_path)
    set_byte(directory, "layers.0.attn.wq_a.scale", 0, 255)
    quick, deep = invoke("doctor", directory), invoke("doctor", directory, "--deep")
    assert quick.exit_code == 0
    assert "not read (--deep reads every byte)" in quick.output
    assert deep.exit_code == 1
    assert "1. [scale] layers.0.attn.wq_a.scale: scale byte 255 (NaN) at [0, 0]" in deep.output
    assert "SHA-256 of model-00005-of-00005.safetensors  " in deep.output


def test_a_report_is_written_beside_the_state_of_the_scan_and_not_into_the_checkpoint(tmp_path: Path) -> None:
    directory, report = tiny_copy(tmp_path), tmp_path / "report.json"
    names = sorted(path.name for path in directory.iterdir())
    assert invoke("doctor", directory, "--deep", "--report", report).exit_code == 0
    document = json.loads(report.read_text())
    assert document["healthy"] is True
    assert len(document["deep"]["sha256"]) == 5
    assert sorted(path.name for path in directory.iterdir()) == names
    assert (tmp_path / "report.json.state").exists()
    refused = invoke("doctor", directory, "--deep", "--report", report)
    assert "--force replaces a file" in str(refused.exception)
    again = invoke("doctor", directory, "--deep", "--report", report, "--force", "--json")
    assert json.loads(again.output)["deep"]["num_resumed"] == 5


def test_options_of_a_deep_scan_need_one() -> None:
    for option in ("--state", "--sums"):
        result = invoke("doctor", TINY, option, "file")
        assert result.exit_code == 2
        assert "got no --deep" in result.output
