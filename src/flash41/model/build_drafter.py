"""From the draft tensors of an opened checkpoint to modules: the second pass, made only where drafting is on.

Embedding and head are not stored a second time; the stages share the target's.
"""

from flash41.checkpoint.loader import Checkpoint
from flash41.checkpoint.stored import Scope
from flash41.config.run import PoolFormat, Profile
from flash41.kernels.interface import Kernels
from flash41.model.backbone import Backbone
from flash41.model.build import Builder
from flash41.model.draft_heads import DraftHeads
from flash41.model.drafter import Drafter, TapProjection


def build_drafter(
    checkpoint: Checkpoint, backbone: Backbone, profile: Profile, pool: PoolFormat, kernels: Kernels
) -> Drafter:
    """The drafter of a checkpoint that was opened with its draft tensors and has draft stages.

    Afterwards every draft tensor has an owner, or this raises CheckpointError.
    """
    drafter = bind_drafter(Builder(checkpoint, profile, pool, kernels), backbone)
    checkpoint.assert_all_bound(Scope.DRAFT)
    return drafter


def bind_drafter(builder: Builder, backbone: Backbone) -> Drafter:
    """The drafter over a builder's tensors, with the embedding and the head of `backbone`."""
    config, specs = builder.config, builder.topology.drafts
    last = f"mtp.{len(specs) - 1}"
    return Drafter(
        entrance=TapProjection(builder.scaled("mtp.0.main_proj"), builder.norm("mtp.0.main_norm.weight")),
        stages=[
            builder.block(spec, f"mtp.{number}", f"mtp{number}", config.dspark.num_experts_per_token)
            for number, spec in enumerate(specs)
        ],
        layer_ids=[spec.layer_id for spec in specs],
        embed=backbone.embed,
        norm=builder.norm(f"{last}.norm.weight"),
        head=backbone.head,
        heads=DraftHeads(
            builder.tensor(f"{last}.markov_head.embed.weight"),
            builder.plain(f"{last}.markov_head.head.weight", wide=True),
            builder.plain(f"{last}.confidence_head.proj.weight", wide=True),
        ),
        rope=builder.rope,
        config=config.dspark,
        streams=config.mhc.streams,
        dtype=builder.dtype,
        kernels=builder.kernels,
    )
