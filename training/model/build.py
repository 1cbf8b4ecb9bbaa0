"""The engine's modules over rounded masters, built anew for every forward: a module holds what it multiplies with.

A build takes a few milliseconds and leaves no state behind: masters stay, modules and tape go with the forward.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flash41.config.run import PoolDtype, PoolFormat, Profile
from flash41.config.topology import LayerSpec
from flash41.engram.hashing import EngramHash, engram_hashes, row_ids, windows
from flash41.engram.vocabulary import TokenMap
from flash41.model.attention import Attention
from flash41.model.backbone import Backbone, BackboneOutput
from flash41.model.batch import EngramRows, ForwardBatch
from flash41.model.build import Builder
from flash41.model.build_drafter import bind_drafter
from flash41.model.build_vision import bind_image_encoder
from flash41.model.drafter import Drafter
from flash41.model.image_encoder import ImageEncoder
from flash41.model.linear import Linear
from training.model.attention import WholeAttention
from training.model.kernels import TrainingKernels
from training.model.masters import Masters, RoundedWeights
from training.model.tape import Layout, Tape
from training.model.view import WholeView

VALUES = PoolFormat(main=PoolDtype.BF16, index=PoolDtype.BF16)
"""Pools that keep values, so that rows pass through the kernels' roundings and keep their gradients."""


class StoredLinear(Linear):
    """A linear map whose result is stored as the profile stores results."""

    def __init__(self, weight: Tensor, kernels: TrainingKernels) -> None:
        super().__init__(weight, kernels)
        self._stored = kernels.stored

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        return self._stored(super().__call__(x))


class TrainingBuilder(Builder):
    """Binds rounded masters; activations are FP32 in every profile."""

    def __init__(self, weights: RoundedWeights, profile: Profile, tape: Tape) -> None:
        self._training = TrainingKernels(tape, profile.bf16_stores)
        super().__init__(weights, profile, VALUES, self._training)
        self.dtype = torch.float32
        self._tape = tape
        self.stored = self._training.stored

    def plain(self, name: str, wide: bool = False) -> Linear:
        """A linear map whose result is stored, or stays wide."""
        return (
            Linear(self.tensor(name), self._training, wide) if wide else StoredLinear(self.tensor(name), self._training)
        )

    def attention(self, spec: LayerSpec, prefix: str, name: str) -> Attention:
        """`attn`, reading whole sequences."""
        return WholeAttention(
            super().attention(spec, prefix, name),
            spec,
            name,
            self.config.attention,
            source=self.config.indexer.candidate_source_layer_id,
            tape=self._tape,
            rope=self.rope,
            roundings=self.roundings,
            kernels=self.kernels,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """R sequences of one length L, padded at the end; what a forward is given."""

    ids: Tensor
    """int64 [R, L]."""
    image_mask: Tensor | None = None
    """bool [R, L]: positions of image spans."""
    image_rows: Tensor | None = None
    """FP32 [masked positions, D], with gradient."""
    hidden: Tensor | None = None
    """bool [R, L]: tokens whose compressed rows layers up to the candidate source do not read."""
    confined: Tensor | None = None
    """bool [R]: sequences whose bounded scorers are given the source's selection."""
    tableless: Tensor | None = None
    """bool [R]: sequences to which no n-gram row is added."""
    misrouted: Tensor | None = None
    """bool [R]: sequences whose pictures choose experts with the bias of text."""

    def whole(self) -> "Sequences":
        """The same with every mechanism, as the engine computes them."""
        return replace(self, hidden=None, confined=None, tableless=None, misrouted=None)


class TrainableModel:
    """One forward's modules.  `profile` decides the roundings: VENDOR as shipped, FP32 for none of activations."""

    def __init__(
        self,
        masters: Masters,
        token_map: TokenMap,
        profile: Profile = Profile.VENDOR,
        *,
        dense: bool = False,
        scoring: bool = True,
        topk: int | None = None,
        is_rounding: bool = True,
    ) -> None:
        """`dense` selects every visible row; then `scoring` may be left out as well.

        `topk` is the width of a selection that the candidate source keeps hidden rows out of, the configuration's if
        None: a dense forward has a wider one.

        Without `is_rounding` weights are the masters themselves; activations and rows are rounded as ever.
        """
        block_size = masters.config.indexer.candidate_block_size
        self.tape = Tape(
            block_size=block_size,
            topk=topk or masters.config.indexer.topk,
            source=masters.config.indexer.candidate_source_layer_id,
            scoring=scoring or not dense,
        )
        self._dense = dense
        self._weights = RoundedWeights(masters, is_rounding=is_rounding)
        self._builder = TrainingBuilder(self._weights, profile, self.tape)
        self._config = masters.config
        self._token_map = token_map
        self._hashes: Sequence[EngramHash] = engram_hashes(masters.config.engram)
        self.backbone: Backbone = self._builder.backbone()

    def drafter(self) -> Drafter:
        """The draft stages over this model's embedding and head."""
        return bind_drafter(self._builder, self.backbone)

    def image_encoder(self) -> ImageEncoder:
        """Tower and aligner."""
        return bind_image_encoder(self._weights, self._builder.kernels, torch.float32)

    def view(self, sequences: Sequences) -> WholeView:
        """What the layers may read of the sequences."""
        num_sequences, length = sequences.ids.shape
        window = self._config.attention.window
        self.tape.hidden = sequences.hidden
        if sequences.hidden is not None:
            self.tape.unbounded = sequences.hidden.any(1).repeat_interleave(length)
        if sequences.confined is not None:
            self.tape.confined = sequences.confined.repeat_interleave(length)
        if sequences.tableless is not None:
            self.tape.tableless = sequences.tableless.repeat_interleave(length)
        if sequences.misrouted is not None:
            self.tape.misrouted = sequences.misrouted.repeat_interleave(length)
        if self._dense:
            self.tape.layout = Layout(num_sequences=num_sequences, length=length, window=window)
        return WholeView(num_sequences, length, window)

    def forward(self, sequences: Sequences, view: WholeView, logit_rows: Tensor) -> BackboneOutput:
        """Logits FP32 [n, vocab] of the rows int64 [n] of the flattened sequences, and the taps of all rows."""
        mask = sequences.image_mask
        batch = ForwardBatch(
            ids=sequences.ids.flatten(),
            positions=view.positions,
            logit_rows=logit_rows,
            engram=self._engram(sequences),
            image_mask=None if mask is None else mask.flatten(),
            image_rows=sequences.image_rows,
        )
        output: BackboneOutput = with_gradients(Backbone.forward)(self.backbone, batch, view)
        return replace(output, taps=self._builder.stored(output.taps))

    def _engram(self, sequences: Sequences) -> Mapping[int, EngramRows]:
        if not self._hashes:
            return {}
        masks = None if sequences.image_mask is None else sequences.image_mask.numpy()
        seen = []
        for number, ids in enumerate(sequences.ids.numpy()):
            compressed = self._token_map.compress(ids, None if masks is None else masks[number])
            seen.append(windows(compressed, (), self._token_map.pad, self._hashes[0].max_ngram))
        looks = np.concatenate(seen)
        gathered = {}
        for one in self._hashes:
            found = torch.from_numpy(row_ids(one, looks))
            values = self._weights.table_rows(one.layer_id, found).flatten(1)
            gathered[one.layer_id] = EngramRows(row_ids=found, values=values)
        return gathered


def with_gradients(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward of the engine's modules without the inference mode around it."""
    bare: Callable[..., Any] = inspect.unwrap(forward)
    return bare
