"""Every remedy is tried here as a user would: appended to the command."""

import shlex

import pytest

from helpers.command_line import invoke

TOO_LARGE = {
    "many requests": "--ram 24G --context 200000 --concurrency 64 --draft on --images",
    "weights": "--gpu 80G --context 8192",
    "long": "--unified 32G --context 1000000 --concurrency 9",
    "unequal": "--gpu 40G --gpus 4 --concurrency 3 --reserve 2G",
}


def remedies(arguments: str) -> list[str]:
    result = invoke("plan", *shlex.split(arguments))
    assert result.exit_code == 1
    _, _, rest = result.output.partition("Any one of these makes it fit\n")
    return [line.strip() for line in rest.partition("\n\n")[0].splitlines()]


@pytest.mark.parametrize("arguments", TOO_LARGE.values(), ids=list(TOO_LARGE))
def test_every_remedy_makes_it_fit(arguments: str) -> None:
    found = remedies(arguments)
    assert found
    for remedy in found:
        changed = arguments.replace(" --images", "") if remedy == "without --images" else f"{arguments} {remedy}"
        result = invoke("plan", *shlex.split(changed))
        assert result.exit_code == 0, (remedy, result.output)


def test_the_named_memory_is_the_smallest_in_whole_gibibytes() -> None:
    arguments = TOO_LARGE["weights"]
    (memory,) = [remedy for remedy in remedies(arguments) if remedy.startswith("--gpu ")]
    gibs = int(memory.removeprefix("--gpu ").removesuffix("G"))
    assert invoke("plan", "--gpu", f"{gibs - 1}G", "--context", "8192").exit_code == 1


def test_what_fits_needs_no_remedy() -> None:
    result = invoke("plan", "--ram", "64G")
    assert result.exit_code == 0
    assert "makes it fit" not in result.output
