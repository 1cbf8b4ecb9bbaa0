"""The groupings under which the ledger's finest rows are published.

    owner      backbone, engram_tables, dspark, vision
    share      rows of the published share table; `outside` is what that table leaves out
    manifest   subsystems as loaders report them
    storage    how weights lie on disk, a scale counted with the codes it scales

spec: checkpoint.md section 5, number-formats.md section 7.
"""

import enum

from flash41.checkpoint.stored import Layout, Scope, StoredDtype, Subsystem

Row = tuple[Scope, Subsystem]
"""The finest row: what a tensor is for, and in which part of the model."""

ENGRAM = (Subsystem.ENGRAM_TABLE, Subsystem.ENGRAM_PROJECTION, Subsystem.ENGRAM_NORM)

SHARES = {
    Subsystem.ROUTED: "routed experts",
    Subsystem.ENGRAM_TABLE: "Engram tables",
    Subsystem.ATTENTION: "backbone attention",
    Subsystem.ATTENTION_MHC: "backbone attention",
    Subsystem.ATTENTION_NORM: "backbone attention",
    Subsystem.SHARED: "shared experts",
    Subsystem.EMBED: "embed and head",
    Subsystem.HEAD: "embed and head",
    Subsystem.ENGRAM_PROJECTION: "Engram projections",
    Subsystem.ENGRAM_NORM: "Engram projections",
}

BACKBONE_MANIFEST = {
    Subsystem.ATTENTION: "attention",
    Subsystem.EMBED: "embedding and image vectors",
    Subsystem.IMAGE_VECTOR: "embedding and image vectors",
    Subsystem.ENGRAM_TABLE: "engram",
    Subsystem.ENGRAM_PROJECTION: "engram",
    Subsystem.ENGRAM_NORM: "engram",
    Subsystem.COMPRESSOR: "compressor and indexer",
    Subsystem.INDEXER: "compressor and indexer",
    Subsystem.HEAD: "head",
    Subsystem.ROUTED: "routed experts",
    Subsystem.GATE: "router",
    Subsystem.SHARED: "shared experts",
    Subsystem.ATTENTION_NORM: "norms",
    Subsystem.MOE_NORM: "norms",
    Subsystem.FINAL_NORM: "norms",
    Subsystem.VISION: "vision",
}

DRAFT_MANIFEST = {Subsystem.ROUTED: "mtp experts", Subsystem.GATE: "mtp router", Subsystem.SHARED: "mtp shared"}


class Storage(enum.Enum):
    """How a weight lies on disk, scales included.  spec: number-formats.md section 7."""

    FP4_EXPERTS = "fp4_experts"
    """E2M1 codes, two to a byte, one E8M0 scale per 32 channels of a row."""
    FP8_DENSE = "fp8_dense"
    """E4M3 codes, one E8M0 scale per 32 x 32 tile."""
    FP8_ROWS = "fp8_rows"
    """E4M3 codes of Engram tables, one E8M0 scale per 32 channels of a row."""
    BF16 = "bf16"
    FP32 = "fp32"


def owner(row: Row) -> str:
    """Who needs the bytes."""
    scope, subsystem = row
    if subsystem is Subsystem.ENGRAM_TABLE:
        return "engram_tables"
    return {Scope.BACKBONE: "backbone", Scope.DRAFT: "dspark", Scope.VISION: "vision"}[scope]


def share(row: Row) -> str:
    """Row of the share table."""
    scope, subsystem = row
    if scope is Scope.DRAFT:
        return "DSpark routed experts" if subsystem is Subsystem.ROUTED else "DSpark rest"
    if scope is Scope.VISION:
        return "vision and aligner"
    return SHARES.get(subsystem, "outside")


def manifest(row: Row) -> str:
    """Subsystem of the loading manifest; residual mixing is one row over backbone and drafts."""
    scope, subsystem = row
    if subsystem in (Subsystem.ATTENTION_MHC, Subsystem.MOE_MHC):
        return "hc"
    if scope is Scope.DRAFT:
        return DRAFT_MANIFEST.get(subsystem, "mtp rest")
    return BACKBONE_MANIFEST[subsystem]


def storage(layout: Layout) -> Storage:
    """Storage of a tensor; a scale has that of its codes, which its subsystem tells."""
    if layout.dtype is StoredDtype.BF16:
        return Storage.BF16
    if layout.dtype is StoredDtype.F32:
        return Storage.FP32
    if layout.subsystem is Subsystem.ROUTED:
        return Storage.FP4_EXPERTS
    return Storage.FP8_ROWS if layout.subsystem is Subsystem.ENGRAM_TABLE else Storage.FP8_DENSE
