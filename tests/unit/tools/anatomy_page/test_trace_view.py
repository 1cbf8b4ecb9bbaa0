"""What the page shows of a token is what the trace has, within bounds that it tells."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flash41.errors import RequestError
from flash41.tools.anatomy import Anatomy
from flash41.tools.anatomy_page import trace_view as module
from flash41.tools.anatomy_page.trace_file import read_trace_file
from flash41.tools.anatomy_page.trace_view import MOST_TOKENS, rounded, trace_view
from helpers.traced_files import Arrays, save, scripted_trace


def view(folder: Path, arrays: Arrays, anatomy: Anatomy, chosen: int | None = None) -> dict[str, Any]:
    file = read_trace_file(save(folder / "t.npz", arrays), anatomy.config, anatomy.topology)
    return trace_view(file, anatomy.config, anatomy.topology, lambda i: f"<{i}>" if i % 2 else None, chosen)


def test_a_token_shows_the_rows_scores_and_experts_of_the_trace(tmp_path: Path, tiny: Anatomy) -> None:
    arrays = scripted_trace(tiny.config, 40)
    found = view(tmp_path, arrays, tiny)
    token = found["tokens"][-1]
    assert (found["chosen"], token["position"], token["window"]) == (39, 39, [32, 39])
    for layer_id in (2, 4, 6, 8):
        own = token["layers"][layer_id]
        selected = arrays[f"trace/L{layer_id}.index.selected"][39]
        scores = arrays[f"trace/L{layer_id}.index.scores"][39]
        assert own["sel"] == selected.tolist()
        assert own["sco"] == [rounded(scores[row]) for row in selected]
        assert own["cut"] == rounded(np.delete(scores, selected).max())
        assert own["n"] == (20 if layer_id < 6 else 40)
    assert token["layers"][6]["runs"] == [[0, 2]]
    assert token["layers"][3]["e"] == arrays["trace/L3.router.ids"][39].tolist()
    assert token["layers"][3]["w"] == [rounded(weight) for weight in arrays["trace/L3.router.weights"][39]]
    assert token["layers"][1]["rows"] == arrays["trace/L1.engram.rows"][39].tolist()
    assert token["layers"][0]["ac"] == [rounded(value) for value in arrays["trace/L0.attn.comb"][39].reshape(-1)]
    assert "sel" not in token["layers"][3]


def test_the_best_tokens_are_those_of_the_logits(tmp_path: Path, tiny: Anatomy) -> None:
    arrays = scripted_trace(tiny.config, 6)
    token = view(tmp_path, arrays, tiny)["tokens"][2]
    logits = arrays["logits"][2].astype(float)
    chances = np.exp(logits) / np.exp(logits).sum()
    best = np.argsort(-logits)[:5]
    assert [entry[0] for entry in token["best"]] == best.tolist()
    assert [entry[2] for entry in token["best"]] == pytest.approx(chances[best], rel=1e-3)
    following = int(arrays["ids"][3])
    assert token["next"] == [following, int((logits > logits[following]).sum()) + 1]


def test_the_first_token_sees_no_row_of_two_tokens(tmp_path: Path, tiny: Anatomy) -> None:
    token = view(tmp_path, scripted_trace(tiny.config, 3), tiny)["tokens"][0]
    assert (token["window"], token["layers"][2]["sel"], token["layers"][2]["n"]) == ([0, 0], [], 0)
    assert token["layers"][6]["sel"] == [0]


def test_tokens_around_the_chosen_one_are_kept_and_the_page_says_so(tmp_path: Path, tiny: Anatomy) -> None:
    arrays = scripted_trace(tiny.config, 100)
    found = view(tmp_path, arrays, tiny, chosen=50)
    positions = [token["position"] for token in found["tokens"]]
    assert positions == list(range(positions[0], positions[0] + MOST_TOKENS))
    assert 50 in positions
    assert f"{MOST_TOKENS} of 100 tokens" in found["notes"][0]
    assert found["chosen"] == 50


def test_the_size_is_bounded(tmp_path: Path, tiny: Anatomy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 60_000)
    found = view(tmp_path, scripted_trace(tiny.config, 60), tiny)
    assert 1 <= len(found["tokens"]) < 60
    assert len(json.dumps(found["tokens"], separators=(",", ":"))) < 61_000
    monkeypatch.setattr(module, "MOST_BYTES", 1)
    assert [token["position"] for token in view(tmp_path, scripted_trace(tiny.config, 60), tiny)["tokens"]] == [59]


def test_of_long_selections_the_best_are_kept(tmp_path: Path, tiny: Anatomy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 3)
    arrays = scripted_trace(tiny.config, 30)
    found = view(tmp_path, arrays, tiny)
    own = found["tokens"][-1]["layers"][2]
    scores = arrays["trace/L2.index.scores"][29]
    assert own["sel"] == sorted(np.argsort(-scores)[:3].tolist())
    assert own["more"] == 5
    assert any("the best 3" in note for note in found["notes"])


def test_a_partial_trace_is_shown_as_far_as_it_goes(tmp_path: Path, tiny: Anatomy) -> None:
    arrays = {"trace/L2.index.selected": scripted_trace(tiny.config, 9)["trace/L2.index.selected"]}
    found = view(tmp_path, arrays, tiny)
    token = found["tokens"][-1]
    assert token["best"] is token["next"] is found["ids"] is None
    assert token["layers"][2]["sel"] == arrays["trace/L2.index.selected"][8, :4].tolist()
    assert "sco" not in token["layers"][2]
    assert any(missing.startswith("router.ids") for missing in found["missing"])


def test_texts_are_those_the_tokenizer_knows(tmp_path: Path, tiny: Anatomy) -> None:
    found = view(tmp_path, scripted_trace(tiny.config, 5), tiny)
    assert found["texts"]
    assert all(text == f"<{token}>" and int(token) % 2 for token, text in found["texts"].items())


def test_a_draft_block_is_shown_with_chances(tmp_path: Path, tiny: Anatomy) -> None:
    arrays = scripted_trace(tiny.config, 4)
    arrays["trace/draft.ids"] = np.arange(5, dtype=np.int32)
    arrays["trace/draft.confidence"] = np.array([0.0, 1e9, -1e9, 2.0, -2.0], np.float32)
    assert view(tmp_path, arrays, tiny)["draft"] == [
        [0, None, 0.5], [1, "<1>", 1.0], [2, None, 8.757e-27], [3, "<3>", 0.8808], [4, None, 0.1192],
    ]  # fmt: skip


@pytest.mark.parametrize("chosen", [-1, 4])
def test_a_token_outside_is_refused(chosen: int, tmp_path: Path, tiny: Anatomy) -> None:
    with pytest.raises(RequestError, match="from 0 to 3"):
        view(tmp_path, scripted_trace(tiny.config, 4), tiny, chosen)


def test_numbers_are_rounded_and_what_is_none_is_null() -> None:
    assert [rounded(value) for value in (1.23456, -0.000123456, float("nan"), float("-inf"))] == [
        1.235,
        -0.0001235,
        None,
        None,
    ]
