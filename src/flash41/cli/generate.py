"""`flash41 generate`: a prompt in, text out as it comes."""

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from flash41.cli import options
from flash41.cli.common import to_json
from flash41.cli.drafts import draft_facts, draft_line
from flash41.cli.effort import Effort, effort_of
from flash41.cli.engine_options import EngineOptions, takes_engine
from flash41.cli.images import image_facts


@takes_engine("max_num_seqs")
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The text; read from standard input when it is '-'.")] = None,
    model: options.Model = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send the text as it is behind BOS, without a chat turn.")] = False,
    token_ids: Annotated[
        str | None, typer.Option("--token-ids", metavar="1,2,3", help="Send these ids as they are, instead of a text.")
    ] = None,
    thinking: Annotated[bool, typer.Option("--thinking", help="Let the model reason before it answers.")] = False,
    effort: Effort = None,
    system: Annotated[str | None, typer.Option("--system", metavar="S", help="System text in front.")] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", metavar="F", help="Picture in front of the prompt (PNG, JPEG, WebP, GIF); repeatable."),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Longest answer in tokens.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens that reach this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Same seed, same text. [default: drawn]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end instead of text.")] = False,
    *,
    engine: EngineOptions,
) -> None:
    """Answer one prompt, streaming the text.

    The prompt is one user turn; pictures stand in front of its text. With --raw and --token-ids a picture stands in
    the place of its placeholder. Without --model the embedded default answers: a small trained model in which every
    mechanism of the real one is at work. It knows short stories, sums and plain pictures, and no more. Try "Anna keeps
    a red lamp in the barn. Where is the red lamp?" with --temperature 0, or "What is 27 + 15?" with --thinking.
    """
    chat_only = {"--thinking": thinking, "--effort": effort is not None, "--system": system is not None}
    _check_usage(prompt, token_ids, raw, thinking, [name for name, given in chat_only.items() if given])
    given_ids = None if token_ids is None else options.integers(token_ids, "--token-ids")
    level = effort_of(effort)
    text = _standard_input() if prompt == "-" else prompt or ""
    from flash41.engine.llm import UNDRAFTED
    from flash41.engine.prompt_images import widen
    from flash41.engine.request import SamplingParams
    from flash41.tools.picture_files import open_pictures

    drawn = secrets.randbits(63) if seed is None else seed
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=drawn)
    llm = engine.open(model, max_num_seqs=1)
    pictures = open_pictures(image or (), llm.config)
    if given_ids is not None or raw:
        ids = llm.encode(text if given_ids is None else given_ids)
        pieces: Pieces = _raw_pieces(llm)
    else:
        messages = _messages(system, text, len(pictures))
        conversation = llm.codec.conversation(messages, thinking=thinking, effort=level)
        ids = llm.codec.encode(conversation).ids
        pieces = _chat_pieces(llm.codec.parser(conversation), llm.config.tokens.eos)
    answer = _Answer(echo=not as_json, approximate=engine.approximate)
    answer.run(llm.stream(ids, params, pictures=pictures), pieces)
    facts: dict[str, Any] = {"images": image_facts(image or (), pictures)} if pictures else {}
    if engine.drafts:
        facts |= {"undrafted_because": UNDRAFTED} if pictures else {}
        facts["drafts"] = draft_facts(llm.engine.stats)
    widened, _ = widen(ids, pictures, llm.config.tokens.image)
    _report(answer, widened, params.seed, as_json, facts, llm.engine.stats if engine.drafts else None)


Pieces = Callable[[int | None, str | None], Iterator[tuple[str, str]]]
"""(token, None) -> new pieces as (kind, text); (None, finish reason) -> what was held back."""


class _Answer:
    """Collects a streamed answer, writing it out as it comes."""

    def __init__(self, echo: bool, approximate: list[str]) -> None:
        self.approximate = approximate
        self.output_ids: list[int] = []
        self.texts = {"text": "", "reasoning": ""}
        self.finish_reason = ""
        self._echo = echo
        self._started = time.perf_counter()
        self._first = 0.0
        self._total = 0.0
        self._open = ""

    def run(self, events: Iterator[Any], pieces: Pieces) -> None:
        for event in events:
            self._first = self._first or time.perf_counter() - self._started
            self.output_ids.append(event.token.token_id)
            self._take(pieces(event.token.token_id, None))
            if event.finish_reason is not None:
                self.finish_reason = event.finish_reason.value
        self._take(pieces(None, self.finish_reason))
        self._total = time.perf_counter() - self._started
        if self._echo:
            sys.stdout.write("\n")

    def _take(self, pieces: Iterator[tuple[str, str]]) -> None:
        for kind, text in pieces:
            self.texts[kind] += text
            if self._echo:
                self._write(kind, text)

    def _write(self, kind: str, text: str) -> None:
        # The reasoning stands in its own tags, so that a pipe can tell it from the answer.
        if kind != self._open:
            text = ("<think>" if kind == "reasoning" else "</think>\n" if self._open == "reasoning" else "") + text
            self._open = kind
        sys.stdout.write(text)
        sys.stdout.flush()

    def document(self, prompt_ids: tuple[int, ...], seed: int | None) -> dict[str, Any]:
        decoding = self._total - self._first
        rate = (len(self.output_ids) - 1) / decoding if len(self.output_ids) > 1 and decoding > 0 else None
        labels = {"approximate": self.approximate} if self.approximate else {}
        return {
            **labels,
            "prompt_ids": list(prompt_ids),
            "output_ids": self.output_ids,
            "text": self.texts["text"],
            "reasoning": self.texts["reasoning"] or None,
            "finish_reason": self.finish_reason,
            "seed": seed,
            "timings": {
                "first_token_seconds": self._first,
                "total_seconds": self._total,
                "tokens_per_second": rate,
            },
        }

    def summary(self, seed: int | None) -> str:
        rate = self.document((), seed)["timings"]["tokens_per_second"]
        speed = f", {rate:.1f} tokens/s" if rate else ""
        label = f", approximate: {', '.join(self.approximate)}" if self.approximate else ""
        return f"[{len(self.output_ids)} tokens, {self.finish_reason}{speed}, seed {seed}{label}]"


def _report(
    answer: _Answer, ids: tuple[int, ...], seed: int | None, as_json: bool, facts: dict[str, Any], drafting: Any
) -> None:
    """What follows the text; `drafting` are the statistics of an engine that drafts."""
    if as_json:
        sys.stdout.write(to_json(answer.document(ids, seed) | facts) + "\n")
    elif sys.stderr.isatty():
        shown = "".join(f"[{image['file']}: {image['tokens']} tokens]\n" for image in facts.get("images", ()))
        line = "" if drafting is None else f"[{draft_line(drafting)}]\n"
        sys.stderr.write(shown + answer.summary(seed) + "\n" + line)


def _raw_pieces(llm: Any) -> Pieces:
    decoder, eos = llm.tokenizer.incremental(), llm.config.tokens.eos

    def pieces(token_id: int | None, _: str | None) -> Iterator[tuple[str, str]]:
        text = decoder.flush() if token_id is None else "" if token_id == eos else decoder.push(token_id)
        if text:
            yield "text", text

    return pieces


def _chat_pieces(parser: Any, eos: int) -> Pieces:
    kinds = {"content": "text", "reasoning": "reasoning", "call": "text"}

    def pieces(token_id: int | None, reason: str | None) -> Iterator[tuple[str, str]]:
        if token_id == eos:
            return  # ends the message and is no part of it
        deltas = (
            parser.push(token_id) if token_id is not None else parser.finish("length" if reason == "length" else "stop")
        )
        for delta in deltas:
            yield kinds[delta.kind.value], delta.text

    return pieces


def _messages(system: str | None, prompt: str, num_images: int) -> list[Any]:
    from flash41.chat.conversation import Message
    from flash41.chat.parts import STAND_IN, Image

    first = [Message(role="system", content=system)] if system is not None else []
    content: Any = (*[Image(STAND_IN)] * num_images, prompt) if num_images else prompt
    return [*first, Message(role="user", content=content)]


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input: {error}, expected text", param_hint="PROMPT") from error


def _check_usage(prompt: str | None, token_ids: str | None, raw: bool, thinking: bool, chat_only: list[str]) -> None:
    if (prompt is None) == (token_ids is None):
        raise typer.BadParameter("give a prompt or --token-ids, one of them", param_hint="PROMPT")
    if token_ids is not None and (raw or chat_only):
        raise typer.BadParameter(
            "ids are sent as they are: no --raw, --thinking, --effort or --system", param_hint="--token-ids"
        )
    if raw and chat_only:
        raise typer.BadParameter(f"excludes {', '.join(chat_only)}", param_hint="--raw")
    if "--effort" in chat_only and not thinking:
        raise typer.BadParameter("needs --thinking", param_hint="--effort")
