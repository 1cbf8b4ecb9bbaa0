"""One update of each stage: forward, loss, gradients.  The optimizer moves the masters afterwards.

stage     trains                           learns from
target    backbone, tower, aligner         text, later pictures too
drafter   draft stages                     what the frozen target says, token by token
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

import torch
from torch import Tensor

from flash41.checkpoint.stored import Scope
from flash41.engine.pictures import patch_values
from flash41.engram.vocabulary import TokenMap
from flash41.model.image_encoder import ImageEncoder
from flash41.model.vision import Grid
from training.batches import Batch
from training.losses import by_family, draft_losses, token_losses, weighted_mean
from training.model.build import Sequences, TrainableModel, with_gradients
from training.model.drafting import drafted
from training.model.initial import first_of_pictures
from training.model.masters import Masters
from training.optimizer import balance
from training.team import ALONE, Team

STAGES: Mapping[str, tuple[Scope, ...]] = MappingProxyType({
    "target": (Scope.BACKBONE, Scope.VISION),
    "drafter": (Scope.DRAFT,),
})  # fmt: skip
"""Scopes that each stage trains."""
IMITATION_PART = 0.1
"""Weight of the scorers' loss, whose mean over scorers and layers it takes."""
IN_PASSING = 0.1
"""Weight of a query in the scorers' loss where no answer is to be said, over one where it is."""
SHUN_PART = 0.1
"""Weight of the candidate source's loss for hidden rows that it would select."""
ANCHORS = 48
"""Draft blocks of a sequence, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one step had to say; gradients are in the masters."""

    loss: float
    """Of the answers, or of the drafts."""
    aside: float
    """Imitation loss of the scorers, or the share of first drafts that would be accepted."""
    unevenness: float
    """Largest share of visits one expert had, over the even share."""
    families: Mapping[str, float]
    """Loss of an answer's token, by family; empty for drafts."""
    shunned: float = 0.0
    """Loss of the candidate source for hidden rows that it would select."""


def learn(
    masters: Masters,
    token_map: TokenMap,
    batch: Batch,
    *,
    dense: bool = False,
    scoring: bool = True,
    topk: int | None = None,
    team: Team = ALONE,
) -> Outcome:
    """A step of the target; moves the router biases.  `dense`, `scoring` and `topk` as in `TrainableModel`."""
    model = TrainableModel(masters, token_map, dense=dense, scoring=scoring, topk=topk)
    sequences = pictured(model, masters, batch)
    weights = batch.weights.flatten()
    predicted = weights[1:].nonzero().squeeze(1)
    view = model.view(sequences)
    model.tape.importance = torch.where(weights.roll(-1) >= 1.0, 1.0, IN_PASSING)
    output = model.forward(sequences, view, predicted)
    losses, wanted = token_losses(output.logits, batch.ids.flatten()[predicted + 1]), weights[predicted + 1]
    loss = weighted_mean(losses, wanted)
    answers = wanted >= 1.0
    rows = (predicted[answers] // batch.ids.shape[1]).tolist()
    imitation = torch.stack(model.tape.imitation).mean() if model.tape.imitation else loss.new_zeros(())
    shunned = torch.stack(model.tape.shunned).mean() if model.tape.shunned else loss.new_zeros(())
    (loss + IMITATION_PART * imitation + SHUN_PART * shunned).backward()
    return Outcome(
        loss=float(loss.detach()),
        aside=float(imitation.detach()),
        shunned=float(shunned.detach()),
        unevenness=_balance(masters, model.tape.routes, batch, sequences, team),
        families=by_family(losses.detach()[answers], [batch.families[row] for row in rows]),
    )


def learn_drafts(masters: Masters, token_map: TokenMap, batch: Batch, rng: Random) -> Outcome:
    """A step of the drafter; `rng` picks the anchors.  Batches without room for a block teach nothing."""
    config, block = masters.config, masters.config.dspark.block_size
    anchors = _anchors(batch, block, rng)
    if len(anchors) == 0:
        return Outcome(loss=0.0, aside=0.0, unevenness=1.0, families={})
    model = TrainableModel(masters, token_map)
    sequences = Sequences(ids=batch.ids)
    view, ids = model.view(sequences), batch.ids.flatten()
    rows = anchors.unsqueeze(1) + torch.arange(block)
    with torch.no_grad():
        output = model.forward(sequences, view, rows.flatten())
    drafts = drafted(model.drafter(), view, output.taps, ids, anchors, config.attention.window)
    marked = batch.weights.flatten()[rows + 1] >= 1.0
    losses = draft_losses(drafts, ids[rows + 1], output.logits.view(*rows.shape, -1), marked.cumprod(1).bool())
    losses.total.backward()
    return Outcome(loss=float(losses.total.detach()), aside=float(losses.accepted), unevenness=1.0, families={})


def pictured(model: TrainableModel, masters: Masters, batch: Batch) -> Sequences:
    """The sequences of a batch with the rows of their pictures."""
    if not batch.pictures:
        return Sequences(ids=batch.ids, hidden=batch.hidden, confined=batch.confined, tableless=batch.tableless)
    encoder, rows = model.image_encoder(), []
    for picture in batch.pictures:
        grid = Grid(height=picture.plan.grid_height, width=picture.plan.grid_width)
        rows.append(with_gradients(ImageEncoder.forward)(encoder, patch_values(picture), grid))
    mask = batch.ids == masters.config.tokens.image
    return Sequences(
        ids=batch.ids,
        image_mask=mask,
        image_rows=torch.cat(rows),
        hidden=batch.hidden,
        confined=batch.confined,
        tableless=batch.tableless,
        misrouted=batch.misrouted,
    )


def _anchors(batch: Batch, block: int, rng: Random) -> Tensor:
    """Flat rows whose own token and the next one are answers and behind which a block has room."""
    length = batch.ids.shape[1]
    found = []
    for number, weights in enumerate(batch.weights):
        marked = weights >= 1.0
        free = [a for a in (marked[:-1] & marked[1:]).nonzero().squeeze(1).tolist() if 0 < a < length - block]
        found += [number * length + a for a in sorted(rng.sample(free, min(ANCHORS, len(free))))]
    return torch.tensor(found, dtype=torch.int64)


def _balance(masters: Masters, routes: list[Tensor], batch: Batch, sequences: Sequences, team: Team) -> float:
    real = (batch.ids != masters.config.tokens.pad).flatten()
    pictures = torch.zeros_like(real) if sequences.image_mask is None else sequences.image_mask.flatten()
    gates = [f"layers.{layer}.ffn.gate" for layer in range(masters.config.num_layers)]
    visited = pictures
    if batch.misrouted is not None:
        visited = pictures & ~batch.misrouted.repeat_interleave(batch.ids.shape[1])
    # Both kinds every time: members of a team sum the same things in the same order, pictures or not.
    first = first_of_pictures(masters.config.moe.num_experts)
    balance([masters.parameters[f"{gate}.bias_vl"] for gate in gates], routes, visited, team, first=first)
    return balance([masters.parameters[f"{gate}.bias"] for gate in gates], routes, real & ~pictures, team)
