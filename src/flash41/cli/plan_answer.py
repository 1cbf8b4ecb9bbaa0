"""The answer to `flash41 plan`: from what was typed to what is printed."""

from dataclasses import dataclass
from pathlib import Path

import typer

from flash41.checkpoint.release import RELEASE_NAME, release_config
from flash41.cli.common import print_json
from flash41.cli.machine_options import MachineOptions
from flash41.cli.plan_text import plan_sections, plan_title
from flash41.cli.sections import print_sections
from flash41.config.architecture import ModelConfig
from flash41.config.huggingface import read_config
from flash41.config.names import named_wish
from flash41.config.run import RunWish
from flash41.planning.capacity import plan_machine
from flash41.planning.demand import Demand
from flash41.planning.remedies import remedies
from flash41.planning.report import plan_document
from flash41.planning.resolve import DEFAULT_MODEL_LEN, default_block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to run, as typed; None is the default of the model."""

    context: int | None
    requests: int
    profile: str
    kv_cache_dtype: str | None
    index_cache_dtype: str | None
    draft: str
    images: bool
    rows: int
    block_size: int | None
    prefix_cache: bool

    def demand(self, config: ModelConfig) -> Demand:
        """The demand for a model; ConfigError for a name that is none."""
        sizes = RunWish(
            max_model_len=min(DEFAULT_MODEL_LEN, config.max_positions) if self.context is None else self.context,
            max_num_seqs=self.requests,
            max_num_batched_tokens=self.rows,
            block_size=default_block_size(config) if self.block_size is None else self.block_size,
            prefix_cache=self.prefix_cache,
        )
        wish = named_wish(
            sizes,
            profile=self.profile,
            kv_cache_dtype=self.kv_cache_dtype,
            index_cache_dtype=self.index_cache_dtype,
            draft=self.draft,
        )
        return Demand(wish=wish, images=self.images)


def show_plan(path: Path | None, typed: MachineOptions, asked: Asked, *, as_json: bool) -> bool:
    """Prints the plan of a model, the released one where no path is given; whether it fits."""
    found = typed.machine()
    config = release_config() if path is None else read_config(path)
    answer = plan_machine(config, found, asked.demand(config))
    changes = remedies(config, answer)
    if as_json:
        print_json(plan_document(answer, changes))
    else:
        typer.echo(plan_title(answer, RELEASE_NAME if path is None else str(path), is_here=typed.is_here))
        print_sections(plan_sections(answer, changes))
    return answer.fits
