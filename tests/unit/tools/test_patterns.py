from flash41.checkpoint.schema import kinds, schema
from flash41.tools.patterns import patterns
from helpers.checkpoints import published
from helpers.config_documents import release_config, tiny_config


def test_the_rows_of_the_release_are_the_published_schema() -> None:
    rows = {(row.pattern, row.shape): row for row in patterns(kinds(release_config()))}
    for expected in published()["schema"]:
        # The published list names the two tables by their layers, because their shapes differ.
        pattern = expected["pattern"].replace("layers.1.", "layers.{L}.").replace("layers.14.", "layers.{L}.")
        row = rows.pop((pattern, tuple(expected["shape"])))
        assert (row.dtype, row.cut, row.num_tensors) == (expected["dtype"], expected["cut"], expected["count"]), pattern
    assert not rows


def test_rows_add_up_to_the_schema_of_any_model() -> None:
    rows, specs = patterns(kinds(tiny_config())), schema(tiny_config()).values()
    assert sum(row.num_tensors for row in rows) == len(specs)
    assert sum(row.num_bytes for row in rows) == sum(spec.num_bytes for spec in specs)
    assert sum(row.num_parameters for row in rows) == sum(spec.layout.num_parameters for spec in specs)


def test_a_row_is_json() -> None:
    (first, *_) = patterns(kinds(tiny_config()))
    assert first.to_dict()["shape"] == list(first.shape)
