"""What an answer to a conversation must look like, and a constraint that holds it to that.

    asked                                     reasoning       content
    response_format                           free            the format, then EOS
    response_format, tools                    free            the format or a block of calls, then EOS
    tool_choice required or named             (none)          the rest of the block that the prompt opened, then EOS
    strict tools, or no parallel calls        free            free; a block of calls by the grammar, then EOS
    anything else                             free            free: there is no constraint

Free reasoning ends with the control token `</think>` and with nothing else: EOS is forbidden in it, and so is every
base token that would finish spelling the marker, since the reader of the text could not tell the two apart.  For the
same reason no base token completes a marker that the reader looks for in constrained content.

spec: chat.md sections 2, 4, 5 and 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flash41.chat.conversation import ChatCodec, Conversation
from flash41.chat.grammar import Grammars, Matcher, json_rule, regex_rule
from flash41.chat.raw_strings import check_spelling, unanchored
from flash41.chat.schema_bounds import check_schema
from flash41.chat.spelling import MarkerGuard, Mask
from flash41.chat.tool_grammar import LARGEST_NUM_TOOLS, CallableTool, calls_grammar
from flash41.errors import RequestError, complaint

DSML = "｜DSML｜"
END_OF_REASONING = "</think>"
OPENING = f"<{DSML}"
CLOSING = f"</{DSML}"


class FreePhase:
    """Text without a grammar, until one control token."""

    def __init__(self, guard: MarkerGuard, allowed: Mask, end_id: int, behind: bytes) -> None:
        self._guard = guard
        self._allowed = allowed
        self._end_id = end_id
        self._behind = behind
        self.failure: str | None = None

    def mask(self) -> Mask:
        """Bool [vocab]: all that is allowed; the end only behind certain text."""
        mask = self._allowed.copy()
        self._guard.block(mask)
        mask[self._end_id] = self._guard.ends_with(self._behind)
        return mask

    def push(self, token_id: int) -> bool:
        """Takes the next token; true when it ended the phase."""
        self._guard.push(token_id)
        return token_id == self._end_id


class GrammarPhase:
    """Text of a grammar, to the end of the answer."""

    def __init__(self, guard: MarkerGuard, matcher: Matcher) -> None:
        self._guard = guard
        self._matcher = matcher
        self.failure: str | None = None

    def mask(self) -> Mask:
        """Bool [vocab]: what the grammar allows and no reader would misread; nothing once it failed."""
        mask = self._matcher.mask()
        self._guard.block(mask)
        if not mask.any():
            self.failure = self._matcher.failure or "every next token would complete a marker"
        return mask

    def push(self, token_id: int) -> bool:
        """Takes the next token; the phase never ends before the answer."""
        self._guard.push(token_id)
        self._matcher.push(token_id)
        return False


class AnswerConstraint:
    """Holds one answer to what was asked; the engine asks before each token and tells the one that was chosen.

    Where it cannot go on (a grammar whose steps exceed their bounds) it ends the answer with EOS and says why in
    `failure`: one request fails and no other one notices.
    """

    def __init__(self, phases: Sequence[FreePhase | GrammarPhase], eos_token_id: int) -> None:
        self._phases = list(phases)
        self._eos_token_id = eos_token_id

    @property
    def failure(self) -> str | None:
        """Why the answer was broken off, if it was."""
        return self._phases[0].failure

    def check(self) -> None:
        """Raises RequestError if the answer was broken off."""
        if self.failure is not None:
            expected = "a grammar of bounded effort at every token"
            raise RequestError(complaint("constrained answer", self.failure, expected, "simplify the schema"))

    def allowed(self) -> Mask:
        """Bool [vocab]: tokens that may come next, at least one."""
        mask = self._phases[0].mask()
        if self.failure is not None:
            mask[self._eos_token_id] = True
        return mask

    def push(self, token_id: int) -> None:
        """Takes the token that was chosen."""
        if self._phases[0].push(token_id):
            self._phases.pop(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What the content of an answer is held to."""

    grammar: str
    thing: str
    """What asked for it."""
    markers: tuple[str, ...]


class AnswerConstraints:
    """Makes constraints for the conversations of one codec; the vocabulary is prepared at the first one."""

    def __init__(self, codec: ChatCodec, vocab_size: int, eos_token_id: int) -> None:
        self._codec = codec
        self._vocab_size = vocab_size
        self._eos_token_id = eos_token_id
        self._grammars: Grammars | None = None

    def constraint(self, conversation: Conversation) -> AnswerConstraint | None:
        """The constraint of an answer, or None where nothing is asked of it.

        Raises RequestError for what cannot be enforced, and where the library of the extra `grammar` is missing.
        """
        if not _is_constrained(conversation):
            return None
        if self._grammars is None:
            self._grammars = Grammars(self._codec.tokenizer, self._vocab_size, self._eos_token_id)
        return _Maker(self._codec, self._grammars, conversation).constraint()


def _is_constrained(conversation: Conversation) -> bool:
    asked = conversation.request.conversation
    if asked.response_format != "text" or asked.tool_choice == "required":
        return True
    narrowed = not conversation.parallel_tool_calls or any(tool.strict for tool in asked.tools)
    return bool(asked.tools) and asked.tool_choice != "none" and narrowed


class _Maker:
    """One constraint in the making."""

    def __init__(self, codec: ChatCodec, grammars: Grammars, conversation: Conversation) -> None:
        self._codec = codec
        self._grammars = grammars
        self._conversation = conversation
        self._asked = conversation.request.conversation
        self._reasons = conversation.starts_in_reasoning
        self._calls_are_read = conversation.parsing_options.parse_tool_calls
        self._begun = _begun(codec, conversation)

    def constraint(self) -> AnswerConstraint:
        return AnswerConstraint(self._phases(), self._grammars.eos_token_id)

    def _phases(self) -> list[FreePhase | GrammarPhase]:
        if self._asked.tool_choice == "required":
            block = self._calls((CLOSING,), all_strict=True)
            return [self._held(_Form(grammar=f"start: calls\n{block}", thing="tool_choice", markers=(CLOSING,)), "")]
        reasoning = [self._reasoning()] if self._reasons else []
        begun = "" if self._reasons else self._begun
        if self._asked.response_format != "text":
            return [*reasoning, self._held(self._format(), begun)]
        block = self._calls((CLOSING,), all_strict=False)
        form = _Form(grammar=f'start: " calls>\\n" calls\n{block}', thing="tools", markers=(CLOSING,))
        return [*reasoning, self._content(begun), self._held(form, "")]

    def _reasoning(self) -> FreePhase:
        """Anything but EOS; what opens calls only once the reasoning is over, though the reader would heal it."""
        markers = [END_OF_REASONING, *([OPENING] if self._calls_are_read else [])]
        allowed = self._everything()
        allowed[self._grammars.eos_token_id] = False
        allowed[self._id(DSML)] = not self._calls_are_read
        return FreePhase(self._guard(markers, self._begun), allowed, self._id(END_OF_REASONING), b"")

    def _content(self, begun: str) -> FreePhase:
        """Anything; behind `<` the control token opens calls."""
        return FreePhase(self._guard([OPENING], begun), self._everything(), self._id(DSML), b"<")

    def _format(self) -> _Form:
        """The response format, or a block of calls where tools are declared."""
        tools = self._calls_are_read and self._asked.tool_choice != "none"
        markers = (END_OF_REASONING, *((OPENING, CLOSING) if tools else ()))
        lines = [self._content_rules(markers), "start: content"]
        if tools:
            lines = [lines[0], self._calls(markers, all_strict=False)]
            lines += ['start: content | NEWLINE NEWLINE "<" dsml " calls>" NEWLINE calls']
        return _Form(grammar="\n".join(lines), thing="response_format", markers=markers)

    def _content_rules(self, markers: Sequence[str]) -> str:
        if self._asked.response_format == "regex":
            pattern = unanchored(self._asked.response_regex or "", "response_format: regex", search=False)
            check_schema({"pattern": pattern}, "response_format: regex")
            self._grammars.check_pattern(pattern, "response_format: regex")
            # The reader drops newlines in front of the content.
            return f"content: CONTENT\nCONTENT: {regex_rule(pattern)} & ~/\\n(?s:.*)/"
        schema: Any = {"type": "object"}
        if self._asked.response_format == "json_schema":
            schema = self._asked.response_schema
        check_schema(schema, "response_format")
        check_spelling(list(_constants(schema)), markers, "response_format")
        self._grammars.check_json(schema, "response_format")
        return f"content: {json_rule(schema)}"

    def _calls(self, markers: Sequence[str], *, all_strict: bool) -> str:
        tools = self._asked.tools
        if len(tools) > LARGEST_NUM_TOOLS:
            raise RequestError(complaint("tools", len(tools), f"at most {LARGEST_NUM_TOOLS}"))
        wishes = [
            CallableTool(name=tool.name, parameters=tool.parameters, free=not (all_strict or tool.strict))
            for tool in tools
        ]
        check_schema([wish.parameters for wish in wishes if not wish.free], "tools")
        several = self._conversation.parallel_tool_calls
        return calls_grammar(wishes, self._grammars, self._id(DSML), several=several, markers=markers)

    def _held(self, form: _Form, begun: str) -> GrammarPhase:
        """The content by a grammar, behind what a prefix has begun of it."""
        matcher = self._grammars.matcher(form.grammar, form.thing)
        for token_id in self._codec.tokenizer.encode(begun) if begun else ():
            matcher.push(token_id)
        if matcher.failure is not None:
            raise RequestError(
                complaint(f"{form.thing}: prefix", begun, "the beginning of an answer that is asked for")
            )
        return GrammarPhase(self._guard(form.markers, begun), matcher)

    def _guard(self, markers: Sequence[str], begun: str) -> MarkerGuard:
        return MarkerGuard(self._grammars.spellings, markers, begun)

    def _everything(self) -> Mask:
        mask = np.zeros(self._grammars.vocab_size, np.bool_)
        mask[: len(self._grammars.spellings.of_token)] = True
        return mask

    def _id(self, spelling: str) -> int:
        token_id = self._codec.tokenizer.id_of(spelling)
        assert token_id is not None, f"{spelling!r} was not checked by the codec"
        return token_id


def _begun(codec: ChatCodec, conversation: Conversation) -> str:
    """What the prompt holds of the answer already: the text behind its last control token."""
    rendering = codec.render(conversation)
    return rendering.text[rendering.control_spans[-1][1] :]


def _constants(schema: Any) -> list[Any]:
    """Texts and values that an answer by a schema may have to write: names of properties, enum, const."""
    if isinstance(schema, list):
        return [value for item in schema for value in _constants(item)]
    if not isinstance(schema, dict):
        return []
    found: list[Any] = list(schema.get("enum", ())) if isinstance(schema.get("enum"), list) else []
    found += [schema["const"]] if "const" in schema else []
    found += schema["properties"] if isinstance(schema.get("properties"), dict) else []
    found += schema["required"] if isinstance(schema.get("required"), list) else []
    return found + [value for key, item in schema.items() if key not in ("enum", "const") for value in _constants(item)]
