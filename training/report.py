"""What a run says while it runs: a line on the terminal, the same as JSON, and as a row of a table."""

import csv
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from training.curriculum import Phase
from training.state import Progress
from training.steps import Outcome

COLUMNS = ("stage", "phase", "step", "tokens", "loss", "aside", "shunned", "unevenness", "tokens_per_second")


class Report:
    """Means since the last line; appends to `log.jsonl` and `curve.csv` of a folder."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._log, self._curve = folder / "log.jsonl", folder / "curve.csv"
        self._progress = progress
        self._clear()

    def take(self, outcomes: Sequence[Outcome], num_tokens: int) -> None:
        """One step, as every process of the team saw it."""
        self._outcomes += outcomes
        self._tokens += num_tokens

    def write(self, phase: Phase) -> None:
        """The line of the steps taken since the last one."""
        count = len(self._outcomes)
        row = {
            "stage": self._progress.stage,
            "phase": phase.name,
            "step": self._progress.steps,
            "tokens": self._progress.tokens,
            "loss": round(sum(one.loss for one in self._outcomes) / count, 4),
            "aside": round(sum(one.aside for one in self._outcomes) / count, 4),
            "shunned": round(sum(one.shunned for one in self._outcomes) / count, 4),
            "unevenness": round(max(one.unevenness for one in self._outcomes), 2),
            "tokens_per_second": round(self._tokens / (time.monotonic() - self._since), 1),
        }
        families = sorted({family for one in self._outcomes for family in one.families})
        self._append({**row, "families": {family: self._family(family) for family in families}})
        is_new = not self._curve.exists()
        with self._curve.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        self._clear()

    def evaluated(self, scores: Mapping[str, float]) -> None:
        """Held-out scores."""
        rounded = {family: round(score, 3) for family, score in scores.items()}
        self._append({"step": self._progress.steps, "tokens": self._progress.tokens, "scores": rounded})
        self._clear()

    def _family(self, family: str) -> float:
        found = [one.families[family] for one in self._outcomes if family in one.families]
        return round(sum(found) / len(found), 3)

    def _append(self, row: Mapping[str, object]) -> None:
        line = json.dumps(row)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def _clear(self) -> None:
        self._outcomes: list[Outcome] = []
        self._tokens, self._since = 0, time.monotonic()
