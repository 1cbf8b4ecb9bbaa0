from flash41.checkpoint.residence import is_dense, weight_sizes
from flash41.checkpoint.schema import schema
from flash41.checkpoint.stored import Scope
from helpers.config_documents import release_config, tiny_config


def test_the_release_reads_nine_gigabytes_in_every_step_and_keeps_most_in_experts() -> None:
    sizes = weight_sizes(release_config(), [Scope.BACKBONE])
    assert sizes.one_expert_bytes == 18_800_640
    assert sizes.num_expert_layers == 40
    assert sizes.expert_bytes == 40 * 384 * 18_800_640
    assert 8e9 < sizes.dense_bytes < 10e9


def test_dense_weights_experts_and_rows_are_everything() -> None:
    specs = schema(tiny_config())
    scopes = [Scope.BACKBONE, Scope.DRAFT]
    sizes = weight_sizes(tiny_config(), scopes)
    loaded = [spec for spec in specs.values() if spec.scope in scopes]
    rows = sum(spec.num_bytes for spec in loaded if spec.expert_id is None and not is_dense(spec))
    assert sizes.total_bytes == sum(spec.num_bytes for spec in loaded)
    assert sizes.dense_bytes + sizes.expert_bytes + rows == sizes.total_bytes
    assert {spec.name for spec in loaded if spec.expert_id is None and not is_dense(spec)} == {
        "embed.weight",
        *(name for name in specs if ".engram.embed." in name),
    }


def test_draft_stages_count_only_where_they_are_loaded() -> None:
    alone = weight_sizes(tiny_config(), [Scope.BACKBONE])
    both = weight_sizes(tiny_config(), [Scope.BACKBONE, Scope.DRAFT])
    assert both.num_expert_layers == alone.num_expert_layers + tiny_config().dspark.num_stages
    assert both.total_bytes > alone.total_bytes
