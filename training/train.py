"""Trains the small model: one command, as long as it is given, and on from where it stopped.

    python -m training.train --out DIR --minutes 90                       the target, from nothing
    python -m training.train --out DIR --minutes 60 --resume DIR/state.safetensors
    python -m training.train --out DIR --minutes 30 --resume DIR/state.safetensors --stage drafter

DIR holds state.safetensors, log.jsonl (a line for every report and every evaluation), curve.csv (the same reports as a
table) and checkpoint/, the model in the released format, written at every evaluation and at the end.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from flash41.chat.conversation import ChatCodec
from flash41.chat.tokenizer import Tokenizer
from flash41.config.architecture import ModelConfig
from flash41.engram.vocabulary import TokenMap
from flash41.errors import CheckpointError, ConfigError, Flash41Error, combined, complaint
from training.batches import Batches, Position
from training.corpus.mixture import FAMILIES, TRAINING
from training.corpus.render import Renderer
from training.curriculum import PHASES, TEXT, Phase, learning_rate, phase_at, widened
from training.evaluate import held_out, scores
from training.export import export
from training.model.masters import Masters
from training.optimizer import Optimizer
from training.report import Report
from training.state import Progress, load, save
from training.steps import STAGES, Outcome, learn, learn_drafts
from training.team import ALONE, Team, together
from training.tokenizer import FOLDER, shipped_config, shipped_files

STATE = "state.safetensors"
PEAK = {"target": 3e-3, "drafter": 2e-3}
EVALUATED = 12
"""Held-out conversations of each family at an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the command line asks for."""

    out: Path
    minutes: float
    resume: Path | None
    stage: str
    seed: int
    tokens: float
    """Planned tokens of the stage; the learning rate falls over their last fifth."""
    report_steps: int
    evaluate_minutes: float
    processes: int = 1
    """Processes that share a step."""
    max_steps: int | None = None
    """Updates after which to stop, for tests and measurements."""


class Run:
    """A run in memory: masters, optimizer, corpus, and where it stands."""

    def __init__(self, wish: Wish, config: ModelConfig, phases: tuple[Phase, ...] = PHASES, team: Team = ALONE) -> None:
        self.wish = wish
        self.team = team
        self.config = config
        self.phases = phases
        self.masters = Masters(config, wish.seed)
        self.progress, moments = Progress(seed=wish.seed, stage=wish.stage), {}
        if wish.resume is not None:
            found, kept = load(wish.resume, self.masters.parameters)
            if found.seed != wish.seed:
                raise CheckpointError(complaint(f"seed of {wish.resume}", found.seed, f"--seed {wish.seed}"))
            if found.stage == wish.stage:  # another stage begins with the weights alone
                self.progress, moments = found, kept
        self.trained = trained = self.masters.of(*STAGES[wish.stage])
        for name, value in self.masters.parameters.items():
            value.requires_grad_(name in trained)
        self.optimizer = Optimizer(trained, moments, team)
        self.token_map = TokenMap.from_tokenizer(FOLDER / "tokenizer.json", config)
        codec = ChatCodec(Tokenizer.from_file(FOLDER / "tokenizer.json"), config.tokens.image)
        self.renderer = Renderer(codec, config)
        position = Position(self.progress.pool, self.progress.batch, self.progress.phase)
        split = f"{TRAINING} {wish.stage}"
        self.batches = Batches(self.renderer, config.tokens.pad, wish.seed, split, position)

    def step(self) -> tuple[Phase, list[Outcome], int]:
        """One update; returns its phase, its outcome in each process and its tokens."""
        progress, stage = self.progress, self.wish.stage
        # Drafts follow a target that knows long contexts, and are for text alone.
        phase = phase_at(progress.tokens, self.phases) if stage == "target" else replace(self.phases[-1], pictures=0.0)
        # Everybody makes the batches of all, which takes a hundredth of the time, and learns its own.
        share = replace(phase, batch_tokens=max(phase.longest, phase.batch_tokens // self.team.size))
        batches = [self.batches.next(share, TEXT) for _ in range(self.team.size)]
        batch, num_tokens = batches[self.team.rank], sum(one.num_tokens for one in batches)
        batch = batch if phase.hides else replace(batch, hidden=None)
        self.masters.config = widened(self.config, phase)
        if stage == "drafter":
            picked = Random(f"{progress.seed}/{progress.steps}/{self.team.rank}")
            outcome = learn_drafts(self.masters, self.token_map, batch, picked)
        else:
            outcome = learn(
                self.masters,
                self.token_map,
                batch,
                dense=phase.dense,
                scoring=phase.scoring,
                topk=self.config.indexer.topk,
                team=self.team,
            )
        self.masters.config = self.config
        self.team.mean_gradients(self.trained.values())
        peak = PEAK[stage] * phase.rate
        self.optimizer.step(learning_rate(peak, progress.steps, progress.tokens, self.wish.tokens))
        progress.steps += 1
        progress.tokens += num_tokens
        position = self.batches.position
        progress.pool, progress.batch, progress.phase = position.pool, position.batch, position.phase
        return phase, self.team.gather(outcome), num_tokens

    def save(self) -> None:
        """The state, so that a later run can go on."""
        save(self.wish.out / STATE, self.progress, self.masters.parameters, self.optimizer.moments())

    def evaluate(self, phase: Phase) -> dict[str, float]:
        """Writes the checkpoint and asks the engine for held-out scores by family."""
        folder = self.wish.out / "checkpoint"
        export(folder, self.masters, shipped_files())
        families = [family for family in FAMILIES if family != "pictures" or phase.pictures]
        longest = int(phase.longest * 0.8)
        return scores(folder, held_out(self.renderer, families, EVALUATED, 16, longest, phase.longest))


def train(run: Run) -> None:
    """Steps until the time or the number of steps is up; saves, evaluates and reports on the way."""
    wish, team, began = run.wish, run.team, time.monotonic()
    report, evaluated, phase = Report(wish.out, run.progress), began, run.phases[0]
    limit = None if wish.max_steps is None else run.progress.steps + wish.max_steps
    while team.decides(time.monotonic() - began < 60 * wish.minutes) and run.progress.steps != limit:
        phase, outcomes, num_tokens = run.step()
        if team.leads:
            report.take(outcomes, num_tokens)
            if run.progress.steps % wish.report_steps == 0:
                report.write(phase)
                run.save()
        if team.decides(time.monotonic() - evaluated >= 60 * wish.evaluate_minutes):
            if team.leads:
                report.evaluated(run.evaluate(phase))
            evaluated = time.monotonic()
    if team.leads:
        run.save()
        report.evaluated(run.evaluate(phase))


def parse(arguments: list[str]) -> Wish:
    """The wish of a command line; ConfigError for one that would lose work or could learn nothing."""
    parser = argparse.ArgumentParser(
        prog="python -m training.train",
        description="Trains the small model, asks the engine how good it is, and leaves a checkpoint.",
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder of state, curves and checkpoint")
    add("--minutes", type=float, required=True, metavar="N", help="how long to train; evaluations count")
    add("--resume", type=Path, metavar="STATE", help="state file to go on from, most often DIR/state.safetensors")
    add("--stage", choices=list(STAGES), default="target", help="what is trained; all but target need --resume")
    add("--seed", type=int, default=1, metavar="N", help="of weights and corpus (1)")
    add("--tokens", type=float, default=15e6, metavar="N", help="planned tokens; the last fifth cools down (15e6)")
    add("--report-steps", type=int, default=20, metavar="N", help="steps between reports and saved states (20)")
    add("--evaluate-minutes", type=float, default=20.0, metavar="N", help="minutes between evaluations (20)")
    add("--processes", type=int, default=1, metavar="N", help="processes of one core each that share every step (1)")
    add("--max-steps", type=int, metavar="N", help="stop after this many steps")
    wish = Wish(**vars(parser.parse_args(arguments)))
    faults = list(_faults(wish))
    if faults:
        raise ConfigError(combined(faults))
    return wish


def _faults(wish: Wish) -> Iterator[str]:
    positive = {
        "--minutes": wish.minutes,
        "--tokens": wish.tokens,
        "--report-steps": wish.report_steps,
        "--evaluate-minutes": wish.evaluate_minutes,
    }
    if wish.processes < 1:
        yield complaint("--processes", wish.processes, ">= 1")
    for name, value in positive.items():
        if not value > 0:
            yield complaint(name, value, "> 0")
    if wish.stage != "target" and wish.resume is None:
        yield complaint("--resume", None, f"a state with a trained target for --stage {wish.stage}")
    if wish.resume is None and (wish.out / STATE).exists():
        yield complaint(
            "--out", str(wish.out), f"a folder without {STATE}", "go on with --resume, or take another folder"
        )


def _work(wish: Wish, team: Team) -> None:
    train(Run(wish, shipped_config(), team=team))


def main() -> None:
    """The command."""
    try:
        wish = parse(sys.argv[1:])
        wish.out.mkdir(parents=True, exist_ok=True)
        together(_work, wish, wish.processes, wish.out / ".meeting")
    except (Flash41Error, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
