"""One trace of the golden checkpoint that holds every kind of point."""

import pytest

from flash41.chat.images import picture
from flash41.config.run import Profile
from flash41.engine.load import load_model
from flash41.engine.prompt_images import image_sizes
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.tools.traces import trace
from helpers.golden_judge import CHECKPOINT, Array
from helpers.image_files import encoded, pattern

IDS = (0, 5, 300, 7, 511, 5, 300, 7, 42, 9, 11, 12, 13)


@pytest.fixture(scope="session")
def points() -> dict[str, Array]:
    """Arrays by point, with a draft block and a picture; and the logits."""
    profile = Profile.VENDOR
    model = load_model(CHECKPOINT, profile, profile.default_pool, ReferenceKernels(), drafts=True, images=True)
    shown = picture(encoded(pattern(60, 45)), image_sizes(model.config.vision))
    arrays = trace(model, IDS, draft=True, pictures=[shown])
    named = {name.removeprefix("trace/"): array for name, array in arrays.items() if name.startswith("trace/")}
    return {"logits": arrays["logits"], **named}
