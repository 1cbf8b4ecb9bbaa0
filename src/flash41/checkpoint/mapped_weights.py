"""What is done for weights that stay in the files: memory for the hottest experts, and requests ahead."""

from collections.abc import Sequence

import torch

from flash41.checkpoint.dense_ahead import DenseAhead, Stored
from flash41.checkpoint.layer_experts import LayerExperts
from flash41.checkpoint.presence import Presence
from flash41.checkpoint.read_ahead import ReadAhead
from flash41.checkpoint.reader import MappedShards
from flash41.checkpoint.residence import WeightSizes
from flash41.checkpoint.row_ahead import Rows, RowsAhead


class MappedWeights:
    """Shares memory for experts among the layers that have any, and threads among all who ask ahead."""

    def __init__(self, shards: MappedShards, sizes: WeightSizes, hot_bytes: int) -> None:
        self.layers: list[LayerExperts] = []
        self._shards = shards
        self._sizes = sizes
        self._num_places = hot_bytes // sizes.one_expert_bytes if sizes.one_expert_bytes else 0
        self._presence, self._ahead = Presence(), ReadAhead()

    def layer(self, prefix: str) -> LayerExperts:
        """The experts below a prefix, with their part of the memory; what does not divide goes to the first layers."""
        each, rest = divmod(self._num_places, self._sizes.num_expert_layers)
        count = each + (len(self.layers) < rest)
        places = torch.empty(count, self._sizes.one_expert_bytes, dtype=torch.uint8)
        self.layers.append(LayerExperts(self._shards, prefix, places, self._presence, self._ahead))
        return self.layers[-1]

    def rows(self, names: Sequence[str]) -> RowsAhead:
        """Requests for rows of a table, whose tensors have these names."""
        parts = []
        for name in names:
            tensor = self._shards.tensor(name)
            address, row_bytes = tensor.data_ptr(), tensor.nbytes // len(tensor)
            parts.append(Rows(extent=self._shards.extent(name), address=address, row_bytes=row_bytes))
        return RowsAhead(parts, self._presence, self._ahead)

    def dense(self, names: Sequence[str]) -> DenseAhead:
        """Requests for whole tensors that every step reads."""
        tensors = [
            Stored(extent=self._shards.extent(name), address=self._shards.tensor(name).data_ptr()) for name in names
        ]
        return DenseAhead(tensors, self._presence, self._ahead)
