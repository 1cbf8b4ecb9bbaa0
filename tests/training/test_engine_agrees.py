"""What training computes is what the engine computes on the exported checkpoint.

Both read the same rounded weights.  In profile fp32 nothing else is rounded, so the logits differ by FP32 sums alone.
In profile vendor every store, activation and row is rounded in both; a sum that lies within FP32 rounding of a midpoint
may then fall to the other side, after which two forwards are as far apart as one rounding of the model makes them.  So
the positions before the first such sum agree as closely as in fp32, a quarter at least, and the rest within what BF16
stores of the logits' size allow.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from flash41.config.run import Profile
from flash41.engine.llm import LLM
from flash41.engine.load import LoadedModel, load_model
from flash41.engine.pictures import encode
from flash41.engine.plan import PlannedSpan, StepPlan
from flash41.engine.request import SamplingParams
from flash41.engine.runner import Runner
from flash41.kernels.select import select_kernels
from flash41.tools.ablations import named_ablations
from flash41.tools.traces import trace
from helpers.small_training import restless, small_config, small_map
from training.batches import collate
from training.corpus import pictures
from training.corpus.mixture import TRAINING, Mixture, sample
from training.corpus.render import Example, Renderer
from training.evaluate import scores
from training.export import export
from training.model.build import Sequences, TrainableModel
from training.model.drafting import drafted
from training.model.masters import Masters
from training.optimizer import Optimizer
from training.steps import learn, pictured
from training.tokenizer import FOLDER, shipped_files

SHARP = 2e-5
"""FP32 sums of about a hundred terms of order one, through five layers; logits are of order one."""


def renderer() -> Renderer:
    config = small_config()
    return Renderer(ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image), config)


def examples(count: int) -> list[Example]:
    mixture = Mixture(weights={"stories": 1.0, "recall": 1.0, "facts": 1.0}, shortest=30, longest=60)
    return [renderer().example(sample(5, TRAINING, number, mixture)) for number in range(count)]


@pytest.fixture(scope="module")
def trained() -> Masters:
    """Masters after a few steps, so that they lie on no grid."""
    masters = restless()
    optimizer = Optimizer(masters.parameters, {})
    for first in range(3):
        learn(masters, small_map(), collate(examples(6)[2 * first : 2 * first + 2], 2, 0.1))
        optimizer.step(3e-4)
    return masters


@pytest.fixture(scope="module")
def directory(trained: Masters, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "checkpoint"
    export(folder, trained, shipped_files())
    return folder


@pytest.fixture(scope="module", params=[Profile.VENDOR, Profile.FP32], ids=lambda profile: profile.value)
def opened(directory: Path, request: pytest.FixtureRequest) -> LoadedModel:
    profile: Profile = request.param
    return load_model(directory, profile, profile.default_pool, select_kernels("reference"), drafts=True, images=True)


def forward(masters: Masters, profile: Profile, ids: Tensor) -> Tensor:
    with torch.no_grad():
        model = TrainableModel(masters, small_map(), profile)
        sequences = Sequences(ids=ids)
        logits = model.forward(sequences, model.view(sequences), torch.arange(ids.numel())).logits
    return logits.view(*ids.shape, -1)


def assert_agree(ours: Tensor, theirs: Tensor, profile: Profile) -> None:
    """[T, vocab] logits of one sequence."""
    apart = (ours - theirs).abs().amax(-1)
    if profile is Profile.FP32:
        assert apart.max() < SHARP
        return
    assert (apart < SHARP).float().mean() > 0.25, "not even the first positions agree"
    # A rounding that fell to the other side: the stream is off by 2^-8 of itself in a channel, from there on.
    assert apart.median() < 2.0**-4 * ours.std()


def test_logits_of_whole_sequences_are_the_engines(trained: Masters, opened: LoadedModel) -> None:
    ids = collate(examples(3), 2, 0.0).ids
    ours = forward(trained, opened.profile, ids)
    for row, sequence in zip(ours, ids.tolist(), strict=True):
        assert_agree(row, torch.from_numpy(trace(opened, sequence, None, ("final.norm",))["logits"]), opened.profile)


def test_greedy_tokens_are_the_engines(trained: Masters, directory: Path) -> None:
    prompts = [one.ids[: one.num_prompt] for one in examples(2)]
    llm = LLM(directory, profile="fp32", backend="reference")
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    for prompt, completion in zip(prompts, llm.generate(prompts, params), strict=True):
        ids = list(prompt)
        for _ in range(5):
            ids.append(int(forward(trained, Profile.FP32, torch.tensor([ids]))[0, -1].argmax()))
        assert completion.output_ids == tuple(ids[len(prompt) :])


def test_pictures_are_encoded_as_the_engine_encodes_them(trained: Masters, opened: LoadedModel) -> None:
    example = renderer().example(pictures.sample(Random(3), 0))
    assert opened.encoder is not None
    theirs = torch.cat([encode(opened.encoder, picture) for picture in example.pictures]).float()
    with torch.no_grad():
        model = TrainableModel(trained, small_map(), opened.profile)
        ours = pictured(model, trained, collate([example], 2, 0.0)).image_rows
    assert ours is not None
    # The tower stores BF16 a dozen times in profile vendor, each time off by 2^-9 of the value at most.
    within = SHARP if opened.profile is Profile.FP32 else 16 * 2.0**-9
    assert (ours - theirs).abs().max() < within * theirs.std()


def test_logits_behind_pictures_are_the_engines(trained: Masters, directory: Path) -> None:
    example = renderer().example(pictures.sample(Random(3), 0))
    profile = Profile.FP32
    opened = load_model(directory, profile, profile.default_pool, select_kernels("reference"), images=True)
    with torch.no_grad():
        model = TrainableModel(trained, small_map(), profile)
        sequences = pictured(model, trained, collate([example], 2, 0.0)).whole()
        length = sequences.ids.shape[1]
        ours = model.forward(sequences, model.view(sequences), torch.arange(length)).logits
    narrow = [*example.asked, *example.answer]
    traced = trace(opened, narrow, None, ("final.norm",), pictures=example.pictures)["logits"]
    assert_agree(ours[: len(example.ids)], torch.from_numpy(traced), profile)


@pytest.mark.parametrize("mechanism", ["engram", "candidates", "bias_vl"])
def test_what_is_left_out_of_a_sequence_is_what_the_ablation_leaves_out(
    mechanism: str, trained: Masters, directory: Path
) -> None:
    example, always = renderer().example(pictures.sample(Random(3), 0)), torch.tensor([True])
    batch = replace(
        collate([example], 2, 0.0),
        confined=always if mechanism == "candidates" else None,
        tableless=always if mechanism == "engram" else None,
        misrouted=always if mechanism == "bias_vl" else None,
    )
    profile = Profile.FP32
    change = named_ablations([mechanism], trained.config)
    kernels = change.on(select_kernels("reference"))
    opened = load_model(directory, profile, profile.default_pool, kernels, images=True)
    change.alter(opened)
    with torch.no_grad():
        model = TrainableModel(trained, small_map(), profile)
        sequences = pictured(model, trained, batch)
        ours = model.forward(sequences, model.view(sequences), torch.arange(sequences.ids.shape[1])).logits
    asked = [*example.asked, *example.answer]
    theirs = trace(opened, asked, None, ("final.norm",), pictures=example.pictures)["logits"]
    assert_agree(ours[: len(example.ids)], torch.from_numpy(theirs), profile)


def test_drafts_are_the_engines(trained: Masters, opened: LoadedModel) -> None:
    (example,) = examples(1)
    width = opened.config.dspark.block_size
    with torch.no_grad():
        model = TrainableModel(trained, small_map(), opened.profile)
        sequences = Sequences(ids=torch.tensor([example.ids]))
        view, ids = model.view(sequences), torch.tensor(example.ids)
        output = model.forward(sequences, view, torch.arange(len(ids)))
        anchor = len(ids) - width - 1
        drafts = drafted(
            model.drafter(), view, output.taps, ids, torch.tensor([anchor]), opened.config.attention.window
        )
    runner = opened.runner(1, len(ids) + width, drafts=True)
    trace_of(runner, example.ids[:anchor])

    def told(k: int, _: Tensor) -> Tensor:
        return ids[anchor + k + 1].unsqueeze(0)

    theirs = runner.draft({0: int(ids[anchor])}, told)
    assert_agree(drafts.logits[0], theirs.logits[0], opened.profile)
    if opened.profile is Profile.FP32:
        torch.testing.assert_close(drafts.confidence, theirs.confidence, atol=SHARP, rtol=0)


def trace_of(runner: Runner, ids: tuple[int, ...]) -> None:
    """Computes a prompt, so that the rings of the stages hold its context."""
    span = PlannedSpan(request_id=0, slot=0, start=0, ids=ids, history=(), samples=True)
    runner.run(runner.stage(StepPlan(spans=(span,))))


def test_scores_count_exact_answers_of_text_and_pictures(directory: Path) -> None:
    asked = [*examples(2), renderer().example(pictures.sample(Random(3), 0))]
    found = scores(directory, asked)
    assert set(found) == {one.family for one in asked}
    assert all(0.0 <= score <= 1.0 for score in found.values())
