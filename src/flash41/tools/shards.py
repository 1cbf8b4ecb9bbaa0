"""How the tensors of a checkpoint are spread over its files, from the index alone: no shard is opened.

Bytes are those the schema says of each name; that the files agree is what `tools.doctor` examines.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from flash41.checkpoint.directory import INDEX_FILE, SINGLE_FILE, read_index
from flash41.checkpoint.schema import kind_name
from flash41.checkpoint.stored import Layout, TensorSpec
from flash41.tools.ledger import Amount


def shard_amounts(directory: Path, counted: Sequence[tuple[TensorSpec, int]]) -> dict[str, Amount]:
    """What each file holds of the kinds of a schema, by file name in ascending order.

    Empty where there is neither an index nor a single file.  A name outside the schema counts as a tensor without
    parameters or bytes.  FaultyCheckpointError for an index that cannot be read.
    """
    amounts: dict[str, Amount] = {}
    if (directory / INDEX_FILE).exists():
        layouts = {spec.name: spec.layout for spec, _ in counted}
        shard_of = read_index(directory).shard_of
        amounts = dict.fromkeys(sorted(set(shard_of.values())), Amount())
        counts = Counter((shard, kind_name(name)) for name, shard in shard_of.items())
        for (shard, name), count in counts.items():
            amounts[shard] += _amount(layouts.get(name), count)
    elif (directory / SINGLE_FILE).exists():
        amounts = {SINGLE_FILE: sum((_amount(spec.layout, count) for spec, count in counted), start=Amount())}
    return amounts


def _amount(layout: Layout | None, count: int) -> Amount:
    if layout is None:
        return Amount(num_tensors=count)
    return Amount(num_tensors=count, num_parameters=count * layout.num_parameters, num_bytes=count * layout.num_bytes)
