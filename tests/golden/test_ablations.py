"""A model of which nothing was left out is the model, bit by bit, on every backend."""

import numpy as np

from flash41.config.run import Profile
from flash41.engine.load import load_model
from flash41.tools.ablations import Ablations
from flash41.tools.broken_kernels import Wrapped
from flash41.tools.traces import trace
from helpers.golden_judge import CHECKPOINT, load_case
from helpers.model_fixtures import GoldenTraces
from helpers.models import Models


class Nothing(Ablations):
    """A change that changes nothing, on the way every ablation goes."""

    def on(self, kernels: object) -> Wrapped:  # type: ignore[override]
        return Wrapped(kernels)  # type: ignore[arg-type]


def test_a_change_of_nothing_leaves_every_logit(models: Models, golden_traces: GoldenTraces) -> None:
    profile = Profile.VENDOR
    model = load_model(CHECKPOINT, profile, profile.default_pool, models.kernels, drafts=True, change=Nothing([]))
    ids = load_case("candidate_drop").ids
    found = trace(model, ids, None, ("final.norm",))["logits"]
    np.testing.assert_array_equal(found, golden_traces("candidate_drop", profile)["logits"])
