"""The order of a forward, and what each point is computed from, known from names alone."""

from flash41.checkpoint.embedded import tiny_config
from flash41.config.topology import topology
from flash41.tools.comparison.dataflow import OF_LAYER, OVER_CONTEXT, ordered, place, sources
from flash41.tools.points import draft_point_names, point_names

POINTS = point_names(tiny_config(), draft=True, images=True) | {"logits"}


def test_every_point_of_a_trace_has_a_place_of_its_own() -> None:
    places = [place(point) for point in POINTS]
    assert len({where.order for where in places}) == len(places)
    assert {where.kind for where in places if where.layer is not None} <= set(OF_LAYER)
    assert set(OVER_CONTEXT) <= set(OF_LAYER)


def test_points_stand_in_the_order_of_the_forward() -> None:
    order = ordered(POINTS)
    assert order.index("vision.aligner") < order.index("embed") < order.index("L0.resid.in")
    assert order.index("L1.index.scores") < order.index("L1.index.selected") < order.index("L1.attn.out")
    assert order.index("L9.ffn.out" if "L9.ffn.out" in POINTS else "L4.ffn.out") < order.index("final.resid")
    assert order.index("logits") < order.index("mtp0.attn.in") < order.index("draft.hidden") < order.index("draft.ids")


def test_a_point_is_never_computed_from_a_later_one() -> None:
    order = ordered(POINTS)
    for point in order:
        for source in sources(point, POINTS):
            assert order.index(source) < order.index(point), (source, point)


def test_all_but_the_first_points_are_computed_from_something() -> None:
    rootless = {point for point in POINTS if not sources(point, POINTS)}
    roots = {"embed", "vision.block0", "mtp0.attn.in", *(point for point in POINTS if point.endswith("engram.rows"))}
    assert rootless == roots


def test_a_reuse_layer_reads_the_plane_and_the_selection_of_its_owners() -> None:
    for spec in topology(tiny_config()).layers:
        if spec.is_draft or spec.kv_owner is None:
            continue
        found = sources(f"L{spec.layer_id}.attn.out", POINTS)
        assert f"L{spec.kv_owner}.attn.main_row" in found, spec
        assert f"L{spec.topk_owner}.index.selected" in found, spec


def test_a_missing_point_hands_on_what_it_was_computed_from() -> None:
    present = {"embed", "L0.attn.in", "L0.attn.out", "L0.ffn.out", "logits"}
    assert sources("L0.attn.out", present) == ("L0.attn.in",)
    assert sources("L0.ffn.out", present) == ("embed", "L0.attn.out")
    assert set(sources("logits", present)) == {"L0.ffn.out", "embed", "L0.attn.out"}


def test_draft_points_follow_their_stages() -> None:
    names = draft_point_names(tiny_config())
    assert sources("mtp1.attn.in", names) == ("mtp0.resid.out",)
    assert sources("draft.ids", names) == ("draft.logits",)
