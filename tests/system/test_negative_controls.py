"""One mechanism is left out or replaced at a time, and the judge must reject.  A gate that accepts these sees nothing.

Each control replaces one operation of the kernels, so that everything else is the model as it is.  Profile fp32 against
the fp32 goldens (T1) sees all but one: where a routing weight enters is the same in exact arithmetic, so it is judged
by a module's golden output under the released roundings.
"""

import pytest
import torch

from flash41.cache.views import Span
from flash41.config.run import Profile
from flash41.engine.load import LoadedModel, load_model
from flash41.kernels.reference.backend import ReferenceKernels
from flash41.model.batch import ForwardBatch, Step
from flash41.tools.broken_kernels import WithWeightAfterDown
from flash41.tools.controls import CONTROLS, Control
from flash41.tools.traces import Recorder
from helpers.feeding import one_shot
from helpers.golden_judge import CHECKPOINT, Distance, distance, load_case, module_faults, t1_faults
from helpers.models import fresh_model

PROMPT = "candidate_drop"
"""Long enough for all mechanisms but YaRN: rows beyond top-k, dropped blocks, many windows."""


def against_t1(model: LoadedModel) -> Distance:
    case = load_case(PROMPT)
    return distance(one_shot(model, case.ids)[case.arrays["logit_rows"]].numpy(), case.arrays["logits_fp32"])


def test_the_judge_accepts_the_model_as_it_is() -> None:
    assert t1_faults(against_t1(fresh_model(Profile.FP32))) == []


def broken_model(profile: Profile, control: Control) -> LoadedModel:
    model = load_model(CHECKPOINT, profile, profile.default_pool, control.on(ReferenceKernels()))
    control.alter(model)
    return model


@pytest.mark.parametrize("control", [one for one in CONTROLS if not one.needs_rounding], ids=lambda one: one.name)
def test_a_broken_mechanism_is_rejected(control: Control) -> None:
    found = against_t1(broken_model(Profile.FP32, control))
    # By its median and its rows, not for being infinite.
    assert found.is_finite
    assert {"median", "rows within 1e-3"} <= set(t1_faults(found))


def with_weight_after_down(profile: Profile) -> LoadedModel:
    (control,) = (one for one in CONTROLS if one.kernels is WithWeightAfterDown)
    return broken_model(profile, control)


def ffn_faults(model: LoadedModel, layer_id: int) -> list[str]:
    """The module check of one feed-forward sub-layer with golden inputs."""
    case = load_case("odd_25")
    x = torch.from_numpy(case.arrays[f"trace/L{layer_id}.ffn.in"]).to(model.dtype)
    positions = torch.arange(len(x))
    batch = ForwardBatch(ids=torch.tensor(case.ids), positions=positions, logit_rows=positions, engram={})
    view = model.runner(1, len(x)).store.view([Span(slot=0, start=0, length=len(x), offset=0)])
    step = Step(batch=batch, view=view, angles={}, visible={}, most_visible={}, probe=Recorder())
    with torch.inference_mode():
        out = model.backbone.layers[layer_id].ffn(x, step, "")
    return module_faults(out.float().numpy(), case.arrays[f"trace/L{layer_id}.ffn.out"], exact=False)


def test_a_routing_weight_behind_the_down_projection_is_rejected_by_the_module_check() -> None:
    accepted, moved = fresh_model(Profile.VENDOR), with_weight_after_down(Profile.VENDOR)
    for layer_id in range(10):
        assert ffn_faults(accepted, layer_id) == []
        assert ffn_faults(moved, layer_id) != [], layer_id


def test_t1_cannot_see_where_a_routing_weight_enters() -> None:
    # The reason for the module check: in FP32 both places are the same number.
    assert t1_faults(against_t1(with_weight_after_down(Profile.FP32))) == []
