"""`flash41 canary`: does the model still answer what it could answer, and what do its answers need?"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flash41.cli.canary_text import print_canary
from flash41.cli.common import AsJson, print_json, print_table
from flash41.cli.engine_options import EngineOptions, takes_engine

LIST = "list"
"""In the place of a family or a mechanism: names all of them."""


Directory = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", help="Checkpoint directory. [default: the small trained one of flash41]"),
]
Family = Annotated[
    list[str] | None,
    typer.Option(
        "--family",
        metavar="NAME",
        help="Ask this family of questions only; may be given again. 'list' names them with what each needs.",
    ),
]
Samples = Annotated[int | None, typer.Option("--samples", metavar="N", help="Questions of each family. [default: all]")]
Seed = Annotated[int, typer.Option("--seed", help="Which questions --samples takes.")]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="NAME",
        help="Leave a mechanism out of the model; may be given again. 'list' names them with what each does.",
    ),
]
AllAblations = Annotated[
    bool, typer.Option("--all-ablations", help="Leave out every mechanism, one after the other, and compare.")
]
Perplexity = Annotated[
    bool, typer.Option("--perplexity", help="Also measure how surprised the model is by the right answers.")
]
Profiles = Annotated[bool, typer.Option("--profiles", help="The same under the profiles vendor, atom and fp32.")]
Drafts = Annotated[
    bool, typer.Option("--drafts", help="Also measure what the model's own drafts bring, one request at a time.")
]
AtLeast = Annotated[
    float | None,
    typer.Option("--at-least", metavar="FRACTION", help="Exit with status 1 if a family scores below, 0 to 1."),
]


@takes_engine()
def canary(
    directory: Directory = None,
    family: Family = None,
    samples: Samples = None,
    seed: Seed = 0,
    without: Without = None,
    all_ablations: AllAblations = False,
    perplexity: Perplexity = False,
    profiles: Profiles = False,
    drafts: Drafts = False,
    at_least: AtLeast = None,
    as_json: AsJson = False,
    *,
    engine: EngineOptions,
) -> None:
    """Score a model on held-out conversations, family by family.

    An answer is right when it is the expected one token for token, its end included; answers are greedy. The
    conversations come with flash41 and are of the small world in which its embedded default was trained, held out from
    that training: a model that was not trained there will seldom find the very words.
    """
    if LIST in (*(family or ()), *(without or ())):
        _print_names(of_families=LIST in (family or ()))
        return
    from flash41.tools.canary.run import CanaryWish

    if at_least is not None and not 0 <= at_least <= 1:
        raise typer.BadParameter(f"got {at_least:g}, expected a fraction from 0 to 1", param_hint="--at-least")
    wish = CanaryWish(
        families=family or (),
        num_samples=samples,
        seed=seed,
        without=without or (),
        all_ablations=all_ablations,
        perplexity=perplexity,
        profiles=profiles,
        drafts=drafts,
    )
    found = _found(directory, wish, engine)
    (print_json if as_json else print_canary)(found)
    if at_least is not None and any(score < at_least for score in found["scores"].values()):
        raise typer.Exit(1)


def _print_names(of_families: bool) -> None:
    from flash41.tools.ablations import ABLATIONS
    from flash41.tools.canary.conversations import read_set

    if of_families:
        print_table(("family", "needs"), [(name, one.needs) for name, one in read_set().families.items()])
    else:
        print_table(("name", "without it"), [(name, one.what) for name, one in ABLATIONS.items()])


def _found(directory: Path | None, wish: Any, engine: EngineOptions) -> dict[str, Any]:
    """What is printed, as plain values; a bar on standard error shows how far it is."""
    from rich.console import Console
    from rich.progress import Progress

    from flash41.checkpoint.default import default_checkpoint
    from flash41.config.huggingface import read_config
    from flash41.tools.canary.conversations import read_set
    from flash41.tools.canary.run import canary as asked

    model, questions, console = directory or default_checkpoint(), read_set(), Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("opening", total=None)
        result = asked(
            wish,
            questions,
            read_config(model),
            lambda change, **changes: engine.open(model, change, **changes),
            engine.profile,
            engine.drafts,
            lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
        )
    found = _document(result, questions) | {
        "model": "default" if directory is None else str(directory),
        "profile": engine.profile,
        "without": list(wish.without),
    }
    return found | ({"approximate": engine.approximate} if engine.approximate else {})


def _document(result: Any, questions: Any) -> dict[str, Any]:
    """What was measured."""
    scores = result.scores
    families = scores.families
    found: dict[str, Any] = {
        "scores": scores.fractions,
        "right": {family: count.right for family, count in families.items()},
        "asked": {family: count.asked for family, count in families.items()},
        "left_out": scores.left_out,
        "by_length": {family: [asdict(count) for count in counts] for family, counts in scores.lengths.items()},
        "chance": {family: questions.families[family].chance for family in families},
        "needs": {family: questions.families[family].needs for family in families},
        "seconds": round(scores.seconds, 2),
    }
    if result.ablations:
        found["ablations"] = {name: one.fractions for name, one in result.ablations.items()}
    if result.perplexities:
        found["perplexities"] = result.perplexities
    if result.drafts is not None:
        found["drafts"] = asdict(result.drafts)
    return found
