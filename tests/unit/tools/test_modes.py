import dataclasses

from flash41.config.topology import LayerMode, topology
from flash41.tools.ledger import ledger
from flash41.tools.modes import mode_rows
from helpers.config_documents import release_config, tiny_config


def test_every_layer_has_one_mode() -> None:
    for config in (tiny_config(), release_config()):
        rows = mode_rows(topology(config), config, ledger(config).units.extra_by_layer)
        assert [row.mode for row in rows] == list(LayerMode)
        assert sorted(layer for row in rows for layer in row.layer_ids) == list(range(config.num_layers))


def test_a_scorer_without_candidates_scores_the_whole_context() -> None:
    config = release_config()
    free = dataclasses.replace(
        config, indexer=dataclasses.replace(config.indexer, candidate_source_layer_id=None, candidate_blocks=0)
    )
    rows = {row.mode: row for row in mode_rows(topology(free), free, {})}
    assert rows[LayerMode.REINDEX].most_scored_rows is None
    assert rows[LayerMode.REINDEX].score_width == "the whole context"
    assert (rows[LayerMode.WINDOW].score_width, rows[LayerMode.REUSE].score_width) == ("-", "the group's selection")


def test_what_a_mode_adds_is_each_count_once() -> None:
    config = release_config()
    rows = {row.mode: row for row in mode_rows(topology(config), config, ledger(config).units.extra_by_layer)}
    assert rows[LayerMode.FULL].extra_parameters == (10_715_776, 8_094_336)
    assert rows[LayerMode.REINDEX].extra_parameters == (5_406_720,)
    assert rows[LayerMode.REINDEX].score_width == "16,384 rows"
