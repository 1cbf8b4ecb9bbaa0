"""Attention to everything visible, as lists of rows and as one product: the same numbers and gradients."""

import pytest
import torch
from torch import Tensor

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from flash41.config.run import Profile
from helpers.small_training import restless, small_config, small_map
from training.batches import collate
from training.corpus.mixture import TRAINING, Mixture, sample
from training.corpus.render import Renderer
from training.curriculum import Phase, widened
from training.losses import token_losses
from training.model.build import Sequences, TrainableModel
from training.model.dense import dense_attention, visible_bias
from training.model.sparse import sparse_attention
from training.tokenizer import FOLDER

PHASE = Phase(name="all", until_tokens=1.0, longest=96, batch_tokens=1, dense=True, prompt_weight=0.1)


def test_what_a_query_sees_is_its_window_and_the_closed_groups() -> None:
    seen = visible_bias(6, 2, 2) == 0
    assert seen.shape == (6, 9)
    assert seen[0].nonzero().flatten().tolist() == [0]
    assert seen[3].nonzero().flatten().tolist() == [2, 3, 6, 7]
    assert visible_bias(4, 9, 0).isfinite().sum() == 10


@pytest.mark.parametrize("coarse", [False, True])
def test_dense_attention_is_sparse_attention_to_every_visible_row(coarse: bool) -> None:
    length, window, num_heads, width = 7, 3, 2, 8
    bias = visible_bias(length, window, 1)
    counts = (bias == 0).sum(1)
    index = torch.argsort((bias != 0).int(), dim=1, stable=True)
    results = []
    for kind in ("dense", "sparse"):
        draw = torch.Generator().manual_seed(0)
        q = torch.randn(length, num_heads, width, generator=draw, requires_grad=True)
        keys = torch.randn(2 * length, width, generator=draw, requires_grad=True)
        sink = torch.randn(num_heads, generator=draw, requires_grad=True)
        if kind == "dense":
            outputs, _ = dense_attention(q.unsqueeze(0), keys.unsqueeze(0), bias.unsqueeze(0), sink, 0.3, coarse)
            outputs = outputs.squeeze(0)
        else:
            outputs, _ = sparse_attention(q, keys, index, counts, sink, 0.3, coarse)
        (outputs * torch.randn(outputs.shape, generator=draw)).sum().backward()
        results.append((outputs.detach(), q.grad, keys.grad, sink.grad))
    # Sums of at most 14 terms of order one; a weight that lies on a midpoint of BF16 may round to the other side.
    apart = 2e-6 if not coarse else 2.0**-8
    for ours, theirs in zip(*results, strict=True):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours, theirs, atol=apart, rtol=apart)


def batch_ids() -> Tensor:
    config = small_config()
    renderer = Renderer(ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image), config)
    mixture = Mixture(weights={"facts": 1.0, "stories": 1.0}, shortest=20, longest=40)
    examples = [renderer.example(sample(5, TRAINING, number, mixture)) for number in range(3)]
    return collate([one for one in examples if len(one.ids) <= PHASE.longest], 2, 0.1).ids


def test_a_dense_forward_gives_the_logits_gradients_and_imitation_of_a_wide_selection() -> None:
    masters, ids = restless(), batch_ids()
    config, masters.config = masters.config, widened(masters.config, PHASE)
    found = []
    for dense in (False, True):
        model = TrainableModel(masters, small_map(), Profile.FP32, dense=dense)
        sequences = Sequences(ids=ids)
        rows = torch.arange(ids.numel())
        logits = model.forward(sequences, model.view(sequences), rows).logits
        imitation = torch.stack(model.tape.imitation).mean()
        (token_losses(logits, ids.flatten()).mean() + imitation).backward()
        gradients = {name: one.grad for name, one in masters.parameters.items() if one.grad is not None}
        for one in masters.parameters.values():
            one.grad = None
        found.append((logits.detach(), imitation.detach(), gradients))
    masters.config = config
    (logits, imitation, gradients), (dense_logits, dense_imitation, dense_gradients) = found
    torch.testing.assert_close(dense_logits, logits, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(dense_imitation, imitation, atol=2e-5, rtol=2e-5)
    assert set(dense_gradients) == set(gradients)
    for name, theirs in gradients.items():
        assert (dense_gradients[name] - theirs).norm() < 1e-3 * theirs.norm() + 1e-7, name


def test_without_scoring_nothing_is_imitated_and_scorers_get_no_gradient() -> None:
    masters, ids = restless(), batch_ids()
    model = TrainableModel(masters, small_map(), Profile.FP32, dense=True, scoring=False)
    sequences = Sequences(ids=ids)
    logits = model.forward(sequences, model.view(sequences), torch.arange(ids.numel())).logits
    token_losses(logits, ids.flatten()).mean().backward()
    assert model.tape.imitation == []
    scorers = {name: one.grad for name, one in masters.parameters.items() if ".indexer." in name}
    assert scorers
    assert all(grad is None or not grad.any() for grad in scorers.values())
    assert masters.parameters["layers.1.attn.compressor.wkv.weight"].grad is not None


def test_choosing_rows_without_scoring_is_not_possible() -> None:
    assert TrainableModel(restless(), small_map(), scoring=False).tape.scoring
