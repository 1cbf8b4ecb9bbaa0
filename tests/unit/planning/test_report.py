import json

from flash41.planning.capacity import plan_machine
from flash41.planning.remedies import remedies
from flash41.planning.report import plan_document
from helpers.config_documents import release_config
from helpers.planned import demand, gpus, ram


def test_a_document_is_json_whose_parts_add_up() -> None:
    plan = plan_machine(release_config(), ram(64), demand(4, 100_000))
    document = json.loads(json.dumps(plan_document(plan, ())))
    parts = document["device_bytes"]
    assert parts.pop("total") == sum(parts.values())
    assert document["run"]["pages"]["value"] == document["request"]["num_pages"] == 4 * 391
    assert document["request"]["statement"] == "5,276,672 + 2,730 * tokens bytes"
    assert document["decode"]["alone"]["ceiling_tokens_per_second"] == plan.alone.millitokens / 1000  # type: ignore[union-attr]
    assert document["machine"]["kind"] == "ram"
    assert len(document["machine"]["assumptions"]) == 3


def test_what_does_not_fit_has_no_run_and_says_what_to_change() -> None:
    plan = plan_machine(release_config(), gpus(1, 80), demand())
    document = plan_document(plan, remedies(release_config(), plan))
    assert (document["fits"], document["run"], document["decode"]) == (False, None, {"alone": None, "together": None})
    assert "--gpus 8" in document["remedies"]  # type: ignore[operator]
