from flash41.config.architecture import ModelConfig as ModelConfig
from flash41.engine.llm import LLM as LLM
from flash41.engine.request import SamplingParams as SamplingParams
from flash41.version import __version__ as __version__
