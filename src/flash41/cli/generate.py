"""`flash41 generate`: a prompt in, text out as it comes."""

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from flash41.cli import options
from flash41.cli.common import to_json
from flash41.cli.drafts import draft_facts, draft_line
from flash41.cli.effort import Effort, effort_of
from flash41.cli.engine_options import EngineOptions, takes_engine


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
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Longest answer in tokens.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens that reach this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Same seed, same text. [default: drawn]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end instead of text.")] = False,
    *,
    engine: EngineOptions,
) -> None:
    """Answer one prompt, streaming the text.

    The prompt is one user turn. Without --model the embedded default answers: a small random checkpoint that shows
    every mechanism of the real model at work, and makes no sense.
    """
    chat_only = {"--thinking": thinking, "--effort": effort is not None, "--system": system is not None}
    _check_usage(prompt, token_ids, raw, thinking, [name for name, given in chat_only.items() if given])
    given_ids = None if token_ids is None else options.integers(token_ids, "--token-ids")
    level = effort_of(effort)
    text = _standard_input() if prompt == "-" else prompt or ""
    from flash41.engine.request import SamplingParams

    drawn = secrets.randbits(63) if seed is None else seed
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=drawn)
    llm = engine.open(model, max_num_seqs=1)
    if given_ids is not None or raw:
        ids = llm.encode(text if given_ids is None else given_ids)
        pieces: Pieces = _raw_pieces(llm)
    else:
        conversation = llm.codec.conversation(_messages(system, text), thinking=thinking, effort=level)
        ids = llm.codec.encode(conversation).ids
        pieces = _chat_pieces(llm.codec.parser(conversation), llm.config.tokens.eos)
    answer = _Answer(echo=not as_json, approximate=engine.approximate)
    answer.run(llm.stream(ids, params), pieces)
    _report(answer, ids, params.seed, as_json, llm.engine.stats if engine.drafts else None)


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


def _report(answer: _Answer, ids: tuple[int, ...], seed: int | None, as_json: bool, drafting: Any) -> None:
    """What follows the text; `drafting` are the statistics of an engine that drafts."""
    if as_json:
        drafts = {} if drafting is None else {"drafts": draft_facts(drafting)}
        sys.stdout.write(to_json(answer.document(ids, seed) | drafts) + "\n")
    elif sys.stderr.isatty():
        line = "" if drafting is None else f"[{draft_line(drafting)}]\n"
        sys.stderr.write(answer.summary(seed) + "\n" + line)


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


def _messages(system: str | None, prompt: str) -> list[Any]:
    from flash41.chat.conversation import Message

    first = [Message(role="system", content=system)] if system is not None else []
    return [*first, Message(role="user", content=prompt)]


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
