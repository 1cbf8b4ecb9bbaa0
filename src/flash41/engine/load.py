"""Opens a checkpoint for computing: backbone, Engram tables, token map, draft stages, all from one directory.

Everything that can be refused is refused before a weight is read: configuration, schema against headers, the token map
against the configured number of classes.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from flash41.cache.contiguous import ContiguousStore
from flash41.cache.image_store import ImageStore
from flash41.cache.layout import layout_id
from flash41.cache.paged import PagedStore
from flash41.cache.rows import row_formats
from flash41.cache.store import Store
from flash41.cache.store_shape import store_shape
from flash41.checkpoint.identity import model_hash
from flash41.checkpoint.loader import Checkpoint, open_checkpoint
from flash41.checkpoint.residence import Residence
from flash41.checkpoint.resident import Progress
from flash41.checkpoint.stored import Scope
from flash41.config.architecture import ModelConfig
from flash41.config.run import Draft, PoolFormat, Profile
from flash41.engine.drafting import Drafting
from flash41.engine.engine import Engine
from flash41.engine.image_shelf import ShelfLimits
from flash41.engine.limits import SchedulerLimits
from flash41.engine.pictures import EncodedPictures
from flash41.engine.replay import Replay
from flash41.engine.reuse import ReuseLimits
from flash41.engine.runner import Runner
from flash41.engine.schedule import DraftSchedule
from flash41.engram.hashing import EngramHash, engram_hashes
from flash41.engram.tables import EngramTable
from flash41.engram.vocabulary import TokenMap
from flash41.kernels.interface import Kernels
from flash41.kernels.threads import threads_of
from flash41.model.backbone import Backbone
from flash41.model.build import build_backbone
from flash41.model.build_drafter import build_drafter
from flash41.model.build_vision import build_image_encoder
from flash41.model.drafter import Drafter
from flash41.model.image_encoder import ImageEncoder
from flash41.planning.resolve import RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checkpoint ready to compute under one profile."""

    directory: Path
    config: ModelConfig
    checkpoint: Checkpoint
    profile: Profile
    pool: PoolFormat
    backbone: Backbone
    token_map: TokenMap
    tables: dict[int, tuple[EngramHash, EngramTable]]
    kernels: Kernels
    drafter: Drafter | None
    """The draft stages, where they were asked for and the model has any."""
    encoder: ImageEncoder | None = None
    """Vision tower and aligner, where images were asked for."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of activations."""
        return torch.bfloat16 if self.profile.bf16_stores else torch.float32

    def runner(self, num_slots: int, max_positions: int, drafts: bool = False) -> Runner:
        """A runner with contiguous caches for `num_slots` requests of `max_positions`; with `drafts` it can draft."""
        draft_tokens = self.config.dspark.block_size if drafts else 0
        shape = store_shape(self.config, num_slots, max_positions, draft_tokens)
        return self._runner(ContiguousStore(shape, row_formats(self.pool)), drafts)

    def planned_runner(self, plan: RunPlan) -> Runner:
        """A runner with the pool of a plan; it can draft where the plan has rings for it."""
        if plan.placement is None:
            return self.runner(plan.max_num_seqs, plan.max_model_len, plan.draft_tokens > 0)
        store = PagedStore(
            store_shape(self.config, plan.max_num_seqs, plan.max_model_len, plan.draft_tokens), plan.placement
        )
        images = ImageStore(store, plan.num_images) if plan.num_images else None
        return self._runner(store, drafts=plan.draft_tokens > 0, images=images)

    def limits(self, plan: RunPlan) -> SchedulerLimits:
        """What a scheduler of a plan may do."""
        reuse = None
        if plan.prefix_cache and plan.placement is not None:
            name = layout_id(
                plan.placement.geometry,
                model_hash=model_hash(self.checkpoint.files),
                profile=self.profile,
                decoder_replay=plan.decoder_replay,
                prefix_replay=plan.prefix_replay,
                draft=plan.draft,
            )
            reuse = ReuseLimits(layout_id=name, num_images=plan.num_images, image_interval=plan.image_interval)
        return SchedulerLimits(
            max_num_seqs=plan.max_num_seqs,
            max_num_batched_tokens=plan.max_num_batched_tokens,
            max_model_len=plan.max_model_len,
            look_back=self.config.engram.max_ngram - 1,
            block_size=plan.block_size,
            num_pages=plan.num_pages,
            reuse=reuse,
            replay=Replay(window=self.config.attention.window, decoder=plan.decoder_replay, prefix=plan.prefix_replay),
            images=self._shelf_limits(plan),
        )

    def engine(self, plan: RunPlan) -> Engine:
        """An engine with caches, limits and drafting of a plan."""
        runner, drafting = self.planned_runner(plan), None
        if plan.draft_tokens:
            schedule = DraftSchedule(plan.draft_tokens) if plan.draft is Draft.ADAPTIVE else None
            drafting = Drafting(runner, plan.draft_tokens, plan.draft_accept, schedule)
        limits = self.limits(plan)
        pictures = None if limits.images is None or self.encoder is None else EncodedPictures(self.encoder)
        threads = partial(threads_of, self.kernels)
        return Engine(runner, limits, drafting, pictures, self.checkpoint.expert_counts, threads)

    def _shelf_limits(self, plan: RunPlan) -> ShelfLimits | None:
        if not plan.pictures.num_rows:
            return None
        assert self.encoder is not None, "the image encoder was not loaded"
        return ShelfLimits(num_rows=plan.pictures.num_rows, num_patches=plan.pictures.num_patches)

    def _runner(self, store: Store, drafts: bool, images: ImageStore | None = None) -> Runner:
        assert not drafts or self.drafter is not None, "the draft stages were not loaded"
        guard, drafter = self.checkpoint.check_unchanged, self.drafter if drafts else None
        found = {layer_id: self.checkpoint.engram_ahead(layer_id) for layer_id in self.tables}
        ahead = {layer_id: rows for layer_id, rows in found.items() if rows is not None}
        return Runner(self.backbone, store, self.tables, self.token_map, self.dtype, guard, images, drafter, ahead)


class ModelChange(Protocol):
    """A mechanism left out or replaced: other kernels, other modules, or both."""

    def on(self, kernels: Kernels) -> Kernels:
        """The kernels to compute with in the place of these."""
        ...

    def alter(self, model: LoadedModel, /) -> None:
        """Changes modules of a model that nothing was computed with yet."""
        ...


def load_model(
    directory: Path,
    profile: Profile,
    pool: PoolFormat,
    kernels: Kernels,
    drafts: bool = False,
    images: bool = False,
    residence: Residence | None = None,
    progress: Progress | None = None,
    change: ModelChange | None = None,
) -> LoadedModel:
    """Opens the text model of a directory; `drafts` also loads its draft stages, in a second pass, `images` the tower.

    `residence` says what of it is read into memory; without one everything is mapped and nobody counts.  `change` is
    made last.  Raises ConfigError or CheckpointError with every fault found.
    """
    kernels = kernels if change is None else change.on(kernels)
    scopes = {Scope.BACKBONE, Scope.DRAFT} if drafts else {Scope.BACKBONE}
    scopes |= {Scope.VISION} if images else set()
    checkpoint = open_checkpoint(directory, scopes)
    config = checkpoint.config
    token_map = TokenMap.from_tokenizer(directory / "tokenizer.json", config)
    if residence is not None:
        checkpoint.hold(residence, progress, kernels.reads_bands)
    tables = {}
    for table_hash in engram_hashes(config.engram):
        weight, scale = checkpoint.engram_table(table_hash.layer_id)
        tables[table_hash.layer_id] = (table_hash, EngramTable(weight, scale, kernels.engram_rows))
    backbone = build_backbone(checkpoint, profile, pool, kernels)
    has_stages = drafts and config.dspark.num_stages > 0
    model = LoadedModel(
        directory=directory,
        config=config,
        checkpoint=checkpoint,
        profile=profile,
        pool=pool,
        backbone=backbone,
        token_map=token_map,
        tables=tables,
        kernels=kernels,
        drafter=build_drafter(checkpoint, backbone, profile, pool, kernels) if has_stages else None,
        encoder=build_image_encoder(checkpoint, profile, kernels) if images else None,
    )
    if change is not None:
        change.alter(model)
    return model
