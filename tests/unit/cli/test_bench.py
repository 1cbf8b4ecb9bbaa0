import json

from flash41.errors import RequestError
from helpers.command_line import invoke

SMALL = ("--prompt-tokens", "4", "--output-tokens", "3", "--requests", "2")


def test_throughput_prints_a_row_per_concurrency_and_their_ratio() -> None:
    result = invoke("bench", "throughput", *SMALL, "--concurrency", "2")
    assert result.exit_code == 0, (result.output, result.exception)
    head, names, one, two, ratio = result.stdout.splitlines()
    assert "on this machine" in head
    assert names.split() == ["at", "once", "prefill", "decode", "answers"]
    assert [row.split()[0] for row in (one, two)] == ["1", "2"]
    assert "at 2 at once over 1: " in ratio
    assert result.stderr == ""


def test_throughput_as_json_holds_the_ratio_of_its_speeds() -> None:
    result = invoke("bench", "throughput", *SMALL, "--concurrency", "2", "--json")
    found = json.loads(result.stdout)
    one, two = (speed["output_tokens_per_second"] for speed in found["speeds"])
    assert found["ratio"] == two / one
    assert (found["kind"], found["prompt_tokens"], found["num_requests"]) == ("throughput", 4, 2)


def test_latency_prints_waiting_times_in_order() -> None:
    result = invoke("bench", "latency", *SMALL)
    assert result.exit_code == 0, (result.output, result.exception)
    head, names, first, per_token = result.stdout.splitlines()
    assert "2 requests, 1 at once" in head
    assert names.split() == ["milliseconds", "min", "median", "max"]
    for row, name in ((first, "first token"), (per_token, "per token")):
        assert row.split()[:2] == name.split()
        numbers = [float(cell) for cell in row.split()[2:]]
        assert numbers == sorted(numbers)


def test_numbers_that_measure_nothing_are_refused() -> None:
    refused = invoke("bench", "latency", "--output-tokens", "1", "--requests", "0")
    assert isinstance(refused.exception, RequestError)
    assert "output_tokens" in str(refused.exception)
    assert "num_requests" in str(refused.exception)


def test_an_unknown_kind_is_wrong_usage() -> None:
    assert invoke("bench", "nonsense").exit_code == 2


def test_speeds_of_approximate_answers_are_labelled() -> None:
    result = invoke("bench", "latency", *SMALL, "--decoder-replay", "--json")
    assert json.loads(result.stdout)["approximate"] == ["decoder-replay"]
    plain = invoke("bench", "latency", *SMALL, "--prefix-replay")
    assert plain.stdout.splitlines()[0] == "approximate: prefix-replay"
    assert "approximate" not in invoke("bench", "latency", *SMALL).stdout


def test_experts_that_stay_in_the_files_are_told_by_layer() -> None:
    result = invoke("bench", "latency", *SMALL, "--weights", "mapped", "--json")
    layers = json.loads(result.stdout)["experts"]
    assert [layer["layer"] for layer in layers] == [f"layers.{number}" for number in range(5)]
    assert all(layer["num_hits"] + layer["num_misses"] > 0 for layer in layers)
    told = invoke("bench", "latency", *SMALL, "--weights", "mapped").stdout.splitlines()[0]
    assert told.startswith("experts: ")
    assert "0 are kept there" in told
    assert "experts" not in invoke("bench", "latency", *SMALL, "--weights", "resident").stdout
