"""Four raw prompts of the small random model, and what an engine answers to them."""

from flash41.engine.llm import LLM
from flash41.engine.request import SamplingParams

PROMPTS = ("Once upon a time", (0, 17, 42), "", (0, 300, 40, 500, 9, 9, 9, 21, 1000))
PARAMS = SamplingParams(max_tokens=5, seed=7, ignore_eos=True)
LATER = SamplingParams(max_tokens=5, seed=8, ignore_eos=True)


def texts(llm: LLM, params: SamplingParams = PARAMS) -> list[tuple[int, ...]]:
    """Output ids of all prompts, asked together."""
    return [answer.output_ids for answer in llm.generate(PROMPTS, params)]
