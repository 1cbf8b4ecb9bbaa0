"""Every golden text case: logits, traces, integers, greedy texts, a ragged batch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from flash41.config.run import Profile
from flash41.engram.hashing import engram_hashes
from helpers.feeding import greedy
from helpers.golden_judge import (
    CHECKPOINT,
    Array,
    Case,
    close_share,
    distance,
    greedy_faults,
    load_case,
    manifest,
    relative_rows,
    t1_faults,
    t2_faults,
    t3_faults,
    trace_faults,
)
from helpers.models import Models

TEXT_CASES = (
    "bos_only",
    "window_cross",
    "odd_25",
    "even_26",
    "topk_cross",
    "candidate_drop",
    "long_wrap",
    "text_prompt",
)
FULLY_TRACED = ("bos_only", "window_cross", "odd_25")
TRACE_DTYPES = {"bf16": np.float32, "float32": np.float32, "int32": np.int32}

Traces = Callable[[str, Profile], dict[str, Array]]


@pytest.fixture(params=TEXT_CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return load_case(request.param)


def logits_of(case: Case, traces: Traces, profile: Profile) -> Array:
    return traces(case.name, profile)["logits"][case.arrays["logit_rows"]]


def points(case: Case, prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in case.arrays if name.startswith(f"{prefix}trace/")}


def test_the_text_cases_are_the_cases_with_a_prompt_logits_and_no_picture() -> None:
    found = [entry["case"] for entry in manifest()["cases"] if "logits_ref_bf16_scores" in entry["arrays"]]
    assert tuple(found) == TEXT_CASES


def test_fp32_logits_are_inside_t1(case: Case, golden_traces: Traces) -> None:
    found = distance(logits_of(case, golden_traces, Profile.FP32), case.arrays["logits_fp32"])
    assert not t1_faults(found), found


def test_fp32_logits_are_far_sharper_than_t1_asks(case: Case, golden_traces: Traces) -> None:
    # Both sides round to FP32 at about the same places: 2^-24 relative, over a few hundred stores, half of them
    # cancelling.  2^-19 leaves room for thirty such steps in one direction.
    errors = relative_rows(logits_of(case, golden_traces, Profile.FP32), case.arrays["logits_fp32"])
    assert errors.max() < 2.0**-19


def test_fp32_selections_candidates_and_routes_are_the_golden_ones(case: Case, golden_traces: Traces) -> None:
    traced = golden_traces(case.name, Profile.FP32)
    integers = [name for name in points(case, "fp32/") if case.declared[f"fp32/{name}"][0] == "int32"]
    assert len(integers) >= 10 + 4 + 1 + 2
    differing = [name for name in integers if not np.array_equal(traced[name], case.arrays[f"fp32/{name}"])]
    assert differing == []


def test_vendor_logits_are_inside_t2_with_at_most_one_case_outside(golden_traces: Traces) -> None:
    outside = {}
    for name in TEXT_CASES:
        case = load_case(name)
        assert case.noise is not None
        found = distance(logits_of(case, golden_traces, Profile.VENDOR), case.arrays["logits"])
        faults = t2_faults(found, case.noise, len(case.ids))
        if faults:
            outside[name] = (faults, found)
    assert len(outside) <= 1, outside


def test_vendor_traces_are_inside_their_rules_with_at_most_one_case_outside(golden_traces: Traces) -> None:
    checks = {name: trace_faults(golden_traces(name, Profile.VENDOR), load_case(name)) for name in TEXT_CASES}
    outside = {name: faults for name, faults in checks.items() if faults}
    assert len(outside) <= 1, outside


@pytest.mark.parametrize(
    ("profile", "golden"),
    [(Profile.ATOM, "logits"), (Profile.DEMO, "logits"), (Profile.DEMO, "logits_ref_bf16_scores")],
)
def test_other_roundings_are_inside_t3_with_at_most_one_case_outside(
    profile: Profile, golden: str, golden_traces: Traces
) -> None:
    outside = {}
    for name in TEXT_CASES:
        case = load_case(name)
        found = distance(logits_of(case, golden_traces, profile), case.arrays[golden])
        if t3_faults(found):
            outside[name] = found
    assert len(outside) <= 1, outside


def test_the_demo_is_nearer_to_the_goldens_of_its_own_score_chain(golden_traces: Traces) -> None:
    # Only where BF16 scores tie at the cut do the two chains differ at all; this prompt has such rows.
    case = load_case("candidate_drop")
    got = logits_of(case, golden_traces, Profile.DEMO)
    own, canonical = (relative_rows(got, case.arrays[name]).mean() for name in ("logits_ref_bf16_scores", "logits"))
    assert own < canonical


@pytest.mark.parametrize("profile", [Profile.FP32, Profile.VENDOR])
def test_traces_have_the_names_dtypes_and_shapes_of_the_manifest(
    case: Case, profile: Profile, golden_traces: Traces
) -> None:
    prefix = "fp32/" if profile is Profile.FP32 else ""
    traced = golden_traces(case.name, profile)
    for name in points(case, prefix):
        dtype, shape = case.declared[f"{prefix}{name}"]
        assert (traced[name].dtype, traced[name].shape) == (TRACE_DTYPES[dtype], shape), name
    assert (traced["logits"].dtype, traced["logits"].shape) == (np.float32, (len(case.ids), 512))


@pytest.mark.parametrize("name", FULLY_TRACED)
def test_a_trace_has_exactly_the_points_of_a_fully_traced_case(name: str, golden_traces: Traces) -> None:
    assert set(golden_traces(name, Profile.VENDOR)) == {"ids", "logits", *points(load_case(name), "")}


def test_embedding_rows_are_exact(golden_traces: Traces) -> None:
    for name in FULLY_TRACED:
        expected = load_case(name).arrays["trace/embed"]
        assert np.array_equal(golden_traces(name, Profile.VENDOR)["trace/embed"], expected)


@pytest.mark.parametrize("profile", [Profile.FP32, Profile.VENDOR])
def test_engram_rows_are_equal(case: Case, profile: Profile, golden_traces: Traces) -> None:
    traced = golden_traces(case.name, profile)
    for layer_id in (1, 4):
        name = f"trace/L{layer_id}.engram.rows"
        assert np.array_equal(traced[name], case.arrays[name])


@pytest.mark.parametrize("name", FULLY_TRACED)
def test_every_value_of_the_first_two_layers_agrees(name: str, golden_traces: Traces) -> None:
    case, traced = load_case(name), golden_traces(name, Profile.VENDOR)
    checked = [point for point in points(case, "") if point.startswith(("trace/L0.", "trace/L1."))]
    floats = [point for point in checked if case.arrays[point].dtype == np.float32]
    assert len(floats) == 2 * 16 + 2
    shares = {point: close_share(traced[point], case.arrays[point]) for point in floats}
    assert min(shares.values()) >= 0.99, shares


def test_text_becomes_the_golden_ids_classes_primes_and_multipliers(models: Models) -> None:
    case, model = load_case("text_prompt"), models(CHECKPOINT, Profile.VENDOR)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    text = case.arrays["text_utf8"].tobytes().decode()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert [model.config.tokens.bos, *ids] == case.ids
    assert np.array_equal(model.token_map.classes, case.arrays["token_map"])
    hashes = engram_hashes(model.config.engram)
    assert [table.moduli for table in hashes] == [
        tuple(map(tuple, orders)) for orders in case.arrays["primes"].tolist()
    ]
    assert [list(table.multipliers) for table in hashes] == case.arrays["multipliers"].tolist()


@pytest.mark.parametrize("name", ["greedy_24", "greedy_24_long"])
def test_greedy_texts_follow_the_golden_ones(name: str, models: Models) -> None:
    case = load_case(name)
    assert case.stable_tokens is not None
    ((exact,), _) = greedy(models(CHECKPOINT, Profile.FP32), [case.ids], 24)
    assert exact == case.arrays["fp32/tokens"].tolist()
    ((rounded,), _) = greedy(models(CHECKPOINT, Profile.VENDOR), [case.ids], 24)
    faults = greedy_faults(rounded, case.arrays["tokens"].tolist(), case.arrays["step_logits"], case.stable_tokens)
    assert faults == []


def test_a_ragged_batch_gives_the_golden_texts_and_the_bits_of_each_request_alone(models: Models) -> None:
    case, model = load_case("ragged_batch"), models(CHECKPOINT, Profile.VENDOR)
    lengths = case.arrays["lengths"].tolist()
    prompts = [part.tolist() for part in np.split(case.arrays["flat_ids"], np.cumsum(lengths)[:-1])]
    assert lengths == [1, 2, 3, 7, 8, 9, 19, 33]
    texts, steps = greedy(model, prompts, 4)
    faults = [
        fault
        for text, tokens, logits in zip(
            texts, case.arrays["greedy"].tolist(), case.arrays["greedy_logits"], strict=True
        )
        for fault in greedy_faults(text, tokens, logits, 4)
    ]
    assert faults == []
    first = distance(steps[:, 0].numpy(), case.arrays["greedy_logits"][:, 0])
    assert first.median < 0.01, first
    for prompt, text, logits in zip(prompts, texts, steps, strict=True):
        (alone,), alone_logits = greedy(model, [prompt], 4)
        assert alone == text
        assert torch.equal(alone_logits[0], logits)
