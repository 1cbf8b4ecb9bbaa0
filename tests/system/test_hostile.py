"""What nobody well-meant sends: the requests of `benchmarks/hostile.py`, against a server without a model."""

import importlib.util
from types import ModuleType

from helpers.command_line import ROOT
from helpers.scripted_server import listening_at
from helpers.serving import Scripted, small_codec

SLOWEST_SECONDS = 5.0
"""Five times what a refusal may take."""

MILLION = 150_000
"""So many of each thing are sent here; more are sent by the program itself."""


def hostile() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hostile", ROOT / "benchmarks" / "hostile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_whatever_is_sent_is_refused_at_once_and_nothing_is_computed() -> None:
    scripted, bench = Scripted(small_codec()), hostile()
    with listening_at(scripted) as url:
        host, _, port = url.removeprefix("http://").rpartition(":")
        found = list(bench.measured((host, int(port)), bench.attacks(MILLION)))
        assert scripted.get("/health").status == 200
    assert len(found) > 25
    statuses = {case["case"]: case["status"] for case in found}
    # A connection that is flooded may be closed before its client has read the answer.
    flooded = {"100,000 headers", "a header of 10 MB", "a path of 10 MB"}
    assert [name for name, status in statuses.items() if status is None and name not in flooded] == []
    assert [name for name, status in statuses.items() if status is not None and not 400 <= status < 500] == []
    assert [case["case"] for case in found if case["seconds"] > SLOWEST_SECONDS] == []
    assert scripted.service.jobs == []
    assert scripted.app.context.gate.num_open == 0
