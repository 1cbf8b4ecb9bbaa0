"""Bodies of requests as records, strictly bounded.

What a conversation may hold is the official codec's business, so messages and tools are only as typed here as the
interface description needs; every number is bounded here, before anything reaches the engine.  Unknown fields are
ignored, as the hosted service does.

spec: chat.md section 9.
"""

from collections.abc import Sized
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

LARGEST_MAX_TOKENS = 393_216
LARGEST_NUM_STOPS = 16
LARGEST_NUM_CHOICES = 8
LARGEST_NUM_LOGPROBS = 20
LARGEST_NUM_BIASES = 4096
LARGEST_SEED = 2**63 - 1
LARGEST_TOKEN_ID = 2**31 - 1
LARGEST_NUM_MESSAGES = 65_536
LARGEST_NUM_TOOLS = 4096

TokenId = Annotated[int, Field(ge=0, le=LARGEST_TOKEN_ID)]
MaxTokens = Annotated[int, Field(ge=1, le=LARGEST_MAX_TOKENS)]
StopString = Annotated[str, Field(min_length=1, max_length=4096)]
Stops = Annotated[list[StopString], Field(max_length=LARGEST_NUM_STOPS, fail_fast=True)]
Object = dict[str, Any]
# A list of millions is not read to its end when it is wrong at its beginning, nor are all its faults collected.
Objects = Annotated[list[Object], Field(fail_fast=True)]
Messages = Annotated[list[Object], Field(max_length=LARGEST_NUM_MESSAGES, fail_fast=True)]
Tools = Annotated[list[Object], Field(max_length=LARGEST_NUM_TOOLS, fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]


def _few_biases(value: object) -> object:
    """A dictionary is otherwise read to its end before it is counted."""
    if isinstance(value, Sized) and len(value) > LARGEST_NUM_BIASES:
        raise ValueError(f"at most {LARGEST_NUM_BIASES} tokens may have a bias")
    return value


class Body(BaseModel):
    """What every body has in common."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


class SamplingBody(Body):
    """How tokens are chosen; the same names in every protocol, also where the protocol itself lacks them."""

    model: str | None = Field(default=None, max_length=256, description="A name that /v1/models lists.")
    stream: bool | None = Field(default=None, description="Whether tokens are sent as they come.")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 takes the likeliest token.")
    top_p: float | None = Field(default=None, gt=0, le=1, description="Keeps the likeliest tokens up to this mass.")
    top_k: int | None = Field(default=None, ge=1, le=LARGEST_TOKEN_ID, description="Keeps this many tokens.")
    min_p: float | None = Field(default=None, ge=0, le=1, description="Keeps tokens this likely, of the likeliest.")
    repetition_penalty: float | None = Field(default=None, gt=0, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]] | None, BeforeValidator(_few_biases)] = (
        Field(default=None, max_length=LARGEST_NUM_BIASES, description="Added to the logits of token ids.")
    )
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED, description="Same seed, same text.")


class ChatBody(SamplingBody):
    """POST /v1/chat/completions."""

    messages: Messages = Field(min_length=1, description="The conversation.")
    context: Messages | None = Field(default=None, description="Earlier messages, which the prompt leaves out.")
    n: int | None = Field(default=None, ge=1, le=LARGEST_NUM_CHOICES, description="Answers to compute.")
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    stop: StopString | Stops | None = None
    stream_options: Object | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=LARGEST_NUM_LOGPROBS)
    tools: Tools | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    response_format: Object | None = None
    thinking: Object | None = Field(default=None, description='{"type": "enabled" | "disabled"}')
    reasoning_effort: str | int | None = Field(default=None, description="low, high, max, or 1 to 100.")


class ResponsesBody(SamplingBody):
    """POST /v1/responses."""

    input: str | Messages | None = None
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=LARGEST_NUM_LOGPROBS)
    tools: Tools | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Object | None = None
    text: Object | None = None
    previous_response_id: Any = Field(default=None, description="Refused: nothing is kept between requests.")
    conversation: Any = Field(default=None, description="Refused: nothing is kept between requests.")
    background: Any = Field(default=None, description="Refused unless false.")


class CountBody(Body):
    """POST /v1/messages/count_tokens."""

    model: str | None = Field(default=None, max_length=256)
    messages: Messages = Field(min_length=1)
    system: str | Objects | None = None
    tools: Tools | None = None
    tool_choice: Object | None = None
    thinking: Object | None = None


class MessagesBody(SamplingBody):
    """POST /v1/messages."""

    messages: Messages = Field(min_length=1)
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    system: str | Objects | None = None
    stop_sequences: Stops | None = None
    tools: Tools | None = None
    tool_choice: Object | None = None
    thinking: Object | None = None


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    prompt: str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)] = Field(
        description="A text, its ids, or several of either; sent as it is behind the begin-of-sentence token."
    )
    n: int | None = Field(default=None, ge=1, le=LARGEST_NUM_CHOICES)
    max_tokens: MaxTokens | None = None
    stop: StopString | Stops | None = None
    stream_options: Object | None = None
    logprobs: int | None = Field(default=None, ge=0, le=LARGEST_NUM_LOGPROBS)
    echo: bool | None = Field(default=None, description="Refused unless false.")
    suffix: str | None = Field(default=None, description="Refused unless empty.")
    best_of: int | None = Field(default=None, description="Refused unless it equals n.")


class TokenizeBody(Body):
    """POST /v1/tokenize: a text, or a conversation as one of the protocols carries it."""

    text: str | None = Field(default=None, description="Encoded as it stands, with nothing in front.")
    control: bool = Field(default=False, description="Whether the spelling of a control token becomes its id.")
    messages: Messages | None = Field(default=None, description="Rendered as Chat Completions does.")
    context: Messages | None = Field(default=None, description="Earlier messages, which the ids leave out.")
    tools: Tools | None = None
    tool_choice: str | Object | None = None
    response_format: Object | None = None
    thinking: Object | None = None
    reasoning_effort: str | int | None = None


class DetokenizeBody(Body):
    """POST /v1/detokenize."""

    tokens: TokenIds = Field(max_length=2**20)
    skip_special: bool = Field(default=False, description="Whether special tokens are left out.")
