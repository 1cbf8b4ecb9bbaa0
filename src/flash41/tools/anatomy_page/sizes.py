"""Parameters and bytes: the leaves of the treemap, what a token uses, and how weights are stored.

All numbers are the ledger's; the leaves add up to its total exactly.  spec: checkpoint.md section 5.
"""

from dataclasses import fields

from flash41.checkpoint.stored import Scope, Subsystem
from flash41.tools.anatomy import STORAGE_FORMATS, Anatomy
from flash41.tools.ledger import Activation, Amount, Ledger
from flash41.tools.ledger_rows import Row, Storage, owner

WORDS = {
    Subsystem.ROUTED: "routed experts",
    Subsystem.SHARED: "shared experts",
    Subsystem.GATE: "router",
    Subsystem.ATTENTION: "attention",
    Subsystem.COMPRESSOR: "compressor",
    Subsystem.INDEXER: "indexer",
    Subsystem.ENGRAM_TABLE: "Engram tables",
    Subsystem.ENGRAM_PROJECTION: "Engram projections",
    Subsystem.ENGRAM_NORM: "Engram gains",
    Subsystem.ATTENTION_NORM: "norms before attention",
    Subsystem.MOE_NORM: "norms before experts",
    Subsystem.ATTENTION_MHC: "mHC of attention",
    Subsystem.MOE_MHC: "mHC of experts",
    Subsystem.EMBED: "embedding",
    Subsystem.HEAD: "head",
    Subsystem.FINAL_NORM: "final norm",
    Subsystem.MAIN_PROJECTION: "main projection",
    Subsystem.MARKOV: "Markov head",
    Subsystem.CONFIDENCE: "confidence head",
    Subsystem.VISION: "tower and aligner",
    Subsystem.IMAGE_VECTOR: "delimiter vectors",
}
OWNERS = {
    "backbone": "backbone",
    "engram_tables": "Engram tables",
    "dspark": "drafter",
    "vision": "vision",
}
USERS = {
    Storage.FP4_EXPERTS: "routed experts, backbone and drafter",
    Storage.FP8_DENSE: "projections of attention, index queries, shared experts, Engram and main projections",
    Storage.FP8_ROWS: "Engram tables",
    Storage.BF16: "embedding, head, compressor, index keys, router, norms, Markov head, vision",
    Storage.FP32: "mHC, sinks, router biases",
}
ACTIVE_WORDS = {
    "routed": "routed experts",
    "attention": "attention with mHC and norm",
    "compressor": "compressor",
    "indexer": "indexer",
    "shared": "shared experts",
    "embed_head_norm": "embedding, head, norm",
    "engram_projection": "Engram projections",
    "gate_and_mhc": "router, mHC and norm of experts",
}


def sizes(anatomy: Anatomy) -> dict[str, object]:
    """Leaves, owners, active parameters and storage classes."""
    ledger = anatomy.ledger
    return {
        "total": _amount(ledger.total),
        "leaves": [_leaf(row, amount) for row, amount in ledger.amounts.items()],
        "owners": [{"owner": name, "label": OWNERS[name], **_amount(amount)} for name, amount in ledger.owners.items()],
        "active": _active(ledger.activation),
        "active_total": ledger.activation.total,
        "active_without_embedding": ledger.activation_without_embedding,
        "active_encoder": ledger.encoder_activation.total if anatomy.topology.kv_owners else None,
        "storage": _storage(ledger),
    }


def _leaf(row: Row, amount: Amount) -> dict[str, object]:
    scope, subsystem = row
    where = {Scope.BACKBONE: "", Scope.DRAFT: "drafter: ", Scope.VISION: "vision: "}[scope]
    return {"label": where + WORDS[subsystem], "owner": owner(row), **_amount(amount)}


def _amount(amount: Amount) -> dict[str, object]:
    return {"tensors": amount.num_tensors, "parameters": amount.num_parameters, "bytes": amount.num_bytes}


def _active(activation: Activation) -> list[dict[str, object]]:
    return [
        {"label": ACTIVE_WORDS[part.name], "parameters": getattr(activation, part.name)} for part in fields(activation)
    ]


def _storage(ledger: Ledger) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    for kind, (element, scale, group) in STORAGE_FORMATS.items():
        if kind in ledger.storage:
            names = {"kind": kind.value, "element": element, "scale": scale, "group": group, "users": USERS[kind]}
            records.append({**names, **_amount(ledger.storage[kind])})
    return records
