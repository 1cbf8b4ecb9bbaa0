"""Faults that other ports of this model family had and that no other test here would notice."""

import pytest
import torch

from flash41.config.huggingface import config_from_dict
from flash41.config.run import Profile
from flash41.errors import ConfigError
from helpers.config_documents import patched
from helpers.feeding import Feeder, one_shot
from helpers.golden_judge import CHECKPOINT, load_case
from helpers.models import Models

IDS = load_case("candidate_drop").ids[:40]
LEFTOVERS = {"num_hash_layers": 3, "compress_rope_scaling": None, "n_group": 8, "index_rope_interleave": False}


@pytest.mark.parametrize("scores", [1, 7, 100])
def test_an_indexer_that_holds_few_scores_at_a_time_selects_the_same_rows(
    scores: int, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Score matrices grow with rows times context; long prompts ran others out of memory.
    model = models(CHECKPOINT, Profile.VENDOR)
    expected = one_shot(model, IDS)
    monkeypatch.setattr("flash41.model.indexer.SCORES_PER_BAND", scores)
    assert torch.equal(one_shot(model, IDS), expected)
    assert torch.equal(Feeder(model).feed_chunks(IDS, (9, 1, 17, 13)), expected)


@pytest.mark.parametrize("key", LEFTOVERS)
def test_a_key_left_over_from_a_predecessor_is_refused_by_name(key: str) -> None:
    # Inherited hash layers route the first layers by token id.
    with pytest.raises(ConfigError, match=rf"^text_config: unknown keys \['{key}'\]$"):
        config_from_dict(patched({f"text_config.{key}": LEFTOVERS[key]}))
