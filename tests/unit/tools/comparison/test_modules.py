"""What stands between two points: files and tensors that exist."""

from pathlib import Path

import flash41
from flash41.checkpoint.embedded import tiny_config
from flash41.checkpoint.schema import schema
from flash41.tools.comparison.modules import module_of
from flash41.tools.points import point_names

PACKAGE = Path(flash41.__file__).parent
POINTS = sorted(point_names(tiny_config(), draft=True, images=True) | {"logits"})


def test_every_point_has_a_module_whose_files_exist() -> None:
    for point in POINTS:
        module = module_of(point)
        assert module.what, point
        assert (PACKAGE / module.source).is_file(), (point, module)


def test_every_page_exists() -> None:
    pages = PACKAGE.parents[1] / "docs" / "math"
    assert {module_of(point).page for point in POINTS} <= {page.name for page in pages.iterdir()}


def test_every_tensor_it_names_is_one_of_a_checkpoint() -> None:
    names = list(schema(tiny_config()))
    for point in POINTS:
        for tensor in module_of(point).tensors.replace("{side}_", "").split(", "):
            word = tensor.strip("_").rpartition(".")[2]
            assert not word or any(word in name for name in names), (point, tensor)


def test_a_point_nobody_knows_has_a_module_that_says_so() -> None:
    assert module_of("something.else").what == "unknown to flash41"
