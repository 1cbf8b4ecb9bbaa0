"""From an opened checkpoint to modules: which tensor goes where.

The names here are the checkpoint's own; what the checkpoint holds is `checkpoint.schema`'s business, and that nothing
is missing or left over was checked when it was opened.  Weights stay in their stored format and are only looked at when
a forward needs them.
"""

from itertools import pairwise

import torch
from torch import Tensor

from flash41.checkpoint.loader import Checkpoint
from flash41.checkpoint.stored import Scope
from flash41.config.architecture import ModelConfig
from flash41.config.run import PoolFormat, Profile
from flash41.config.topology import LayerSpec, Topology, topology
from flash41.kernels.interface import Kernels
from flash41.model.attention import Attention
from flash41.model.backbone import Backbone
from flash41.model.block import Block
from flash41.model.compressor import Compressor
from flash41.model.engram_gate import EngramGate
from flash41.model.experts import RoutedExperts, expert_weights
from flash41.model.indexer import Indexer, IndexKey
from flash41.model.linear import GroupedOutput, Linear, RMSNorm, ScaledLinear
from flash41.model.mhc import HyperConnection
from flash41.model.moe import MoE
from flash41.model.rope import Rope
from flash41.model.rounding import roundings


def build_backbone(checkpoint: Checkpoint, profile: Profile, pool: PoolFormat, kernels: Kernels) -> Backbone:
    """The text model of a checkpoint under a numerical profile; `pool` says how its rows will be stored.

    The Engram tables must have been taken before: afterwards every backbone tensor has an owner, or this raises.
    """
    backbone = Builder(checkpoint, profile, pool, kernels).backbone()
    checkpoint.assert_all_bound(Scope.BACKBONE)
    return backbone


def published_last(layers: Topology, layer_id: int) -> int:
    """The owner whose index keys a ratio-2 scorer of profile `demo` finds where no group of two closes.

    Owners of ratio 1 publish for every token, so the last one in front of the scorer has just done so; without one the
    last owner of the model has, for the token before.  spec: attention.md section 11.7.
    """
    always = [spec.layer_id for spec in layers.layers[:layer_id] if spec.writes_plane and spec.ratio == 1]
    return always[-1] if always else layers.kv_owners[-1]


class Builder:
    """Binds tensors by name; one method per module."""

    def __init__(self, checkpoint: Checkpoint, profile: Profile, pool: PoolFormat, kernels: Kernels) -> None:
        self.checkpoint = checkpoint
        self.config: ModelConfig = checkpoint.config
        self.topology: Topology = topology(checkpoint.config)
        self.profile = profile
        self.kernels = kernels
        self.rope = Rope(self.config.rope)
        self.roundings = roundings(profile, pool, kernels)
        self.dtype = torch.bfloat16 if profile.bf16_stores else torch.float32

    def tensor(self, name: str) -> Tensor:
        """An unquantised tensor."""
        return self.checkpoint.tensor(name)

    def scaled(self, prefix: str) -> ScaledLinear:
        """A linear map with scales."""
        return ScaledLinear(self.checkpoint.quantized(prefix), self.kernels, self.profile)

    def plain(self, name: str, wide: bool = False) -> Linear:
        """A linear map without scales; `wide` keeps its result in FP32."""
        return Linear(self.tensor(name), self.kernels, wide)

    def norm(self, name: str) -> RMSNorm:
        """A text RMSNorm."""
        # Small enough to widen once: the arithmetic of a norm is FP32 anyway.
        return RMSNorm(self.tensor(name).float(), self.config.rms_norm_eps, self.kernels)

    def backbone(self) -> Backbone:
        """All layers with embedding, final norm and head."""
        layers = [self.layer(spec) for spec in self.topology.layers]
        for block, following in pairwise(layers):
            block.ffn.expect_for(following.ffn)
        for layer_id, block in enumerate(layers, 1):
            behind = f"layers.{layer_id}." if layer_id < len(layers) else "head."
            block.ffn.experts.following = self.checkpoint.dense_ahead(behind)
        return Backbone(
            embed=self.tensor("embed.weight"),
            layers=layers,
            norm=self.norm("norm.weight"),
            head=self.plain("head.weight", wide=True),
            rope=self.rope,
            streams=self.config.mhc.streams,
            ratios=[spec.ratio for spec in self.topology.layers],
            tap_layer_ids=self.config.dspark.target_layer_ids,
            tail_layer=max(self.config.attention.kv_source_layer_ids, default=self.config.num_layers) + 1,
            dtype=self.dtype,
            kernels=self.kernels,
        )

    def layer(self, spec: LayerSpec) -> Block:
        """`layers.L`."""
        layer_id = spec.layer_id
        return self.block(spec, f"layers.{layer_id}", f"L{layer_id}", self.config.moe.num_experts_per_token)

    def block(self, spec: LayerSpec, prefix: str, name: str, num_experts_per_token: int) -> Block:
        """A block whose tensors lie below `prefix` and whose trace points lie below `name`."""
        return Block(
            spec.layer_id,
            name,
            engram=self.engram(f"{prefix}.engram") if spec.has_engram else None,
            hc_attn=self.hyper_connection(f"{prefix}.hc_attn"),
            attn_norm=self.norm(f"{prefix}.attn_norm.weight"),
            attn=self.attention(spec, f"{prefix}.attn", name),
            hc_ffn=self.hyper_connection(f"{prefix}.hc_ffn"),
            ffn_norm=self.norm(f"{prefix}.ffn_norm.weight"),
            ffn=self.moe(f"{prefix}.ffn", num_experts_per_token),
            kernels=self.kernels,
        )

    def attention(self, spec: LayerSpec, prefix: str, name: str) -> Attention:
        """`attn` with whatever its mode adds."""
        return Attention(
            spec,
            name,
            self.config.attention,
            wq_a=self.scaled(f"{prefix}.wq_a"),
            q_norm=self.norm(f"{prefix}.q_norm.weight"),
            wq_b=self.scaled(f"{prefix}.wq_b"),
            wkv=self.scaled(f"{prefix}.wkv"),
            kv_norm=self.norm(f"{prefix}.kv_norm.weight"),
            attn_sink=self.tensor(f"{prefix}.attn_sink"),
            wo_a=GroupedOutput(
                self.checkpoint.quantized(f"{prefix}.wo_a"), self.config.attention.o_groups, self.kernels, self.profile
            ),
            wo_b=self.scaled(f"{prefix}.wo_b"),
            compressor=self.compressor(spec, f"{prefix}.compressor") if spec.writes_plane else None,
            indexer=self.indexer(spec, f"{prefix}.indexer") if spec.scores else None,
            rope=self.rope,
            roundings=self.roundings,
            kernels=self.kernels,
        )

    def compressor(self, spec: LayerSpec, prefix: str) -> Compressor:
        """`attn.compressor` of an owner; pooled groups are projected in FP32."""
        pooled = spec.ratio > 1
        return Compressor(
            self.plain(f"{prefix}.wkv.weight", wide=pooled),
            self.plain(f"{prefix}.wgate.weight", wide=True) if pooled else None,
            self.norm(f"{prefix}.norm.weight"),
            spec.ratio,
            self.kernels,
        )

    def indexer(self, spec: LayerSpec, prefix: str) -> Indexer:
        """`attn.indexer` of a scorer; an owner also makes keys."""
        key = None
        if spec.writes_plane:
            key = IndexKey(
                self.plain(f"{prefix}.wk.weight"),
                self.norm(f"{prefix}.k_norm.weight"),
                self.roundings.key,
                self.kernels,
            )
        return Indexer(
            spec,
            self.config.indexer,
            self.scaled(f"{prefix}.wq_b"),
            self.plain(f"{prefix}.weights_proj.weight"),
            key,
            rounding=self.roundings.query,
            bf16_chain=self.profile.bf16_score_chain,
            stale_owner=published_last(self.topology, spec.layer_id) if self.profile.stale_index_slots else None,
            kernels=self.kernels,
        )

    def hyper_connection(self, prefix: str) -> HyperConnection:
        """`hc_attn_*` or `hc_ffn_*`."""
        fn, base, scale = (self.tensor(f"{prefix}_{part}") for part in ("fn", "base", "scale"))
        return HyperConnection(fn, base, scale, self.config, self.kernels)

    def moe(self, prefix: str, topk: int) -> MoE:
        """`ffn`."""
        return MoE(
            self.tensor(f"{prefix}.gate.weight"),
            self.tensor(f"{prefix}.gate.bias"),
            self.tensor(f"{prefix}.gate.bias_vl"),
            RoutedExperts(self.checkpoint, f"{prefix}.experts"),
            expert_weights(self.checkpoint, f"{prefix}.shared_experts"),
            topk=topk,
            route_scale=self.config.moe.route_scale,
            limit=self.config.moe.swiglu_limit,
            quantize_input=self.profile.quantizes_activations,
            kernels=self.kernels,
        )

    def engram(self, prefix: str) -> EngramGate:
        """`engram` without its table, which stays on the host."""
        return EngramGate(
            self.scaled(f"{prefix}.wkv"),
            self.tensor(f"{prefix}.q_weight"),
            self.tensor(f"{prefix}.k_weight"),
            self.config.rms_norm_eps,
            self.kernels,
        )
