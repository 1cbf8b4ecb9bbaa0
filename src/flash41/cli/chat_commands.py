"""What a line of a chat asks for: a message, or one of the commands that begin with a slash."""

from dataclasses import dataclass, replace
from pathlib import Path

from flash41.cli.effort import known_effort
from flash41.errors import RequestError, complaint
from flash41.tools.chat_session import ChatSession

HELP = """\
/reset                    forget the conversation; the system text stays
/system TEXT              put TEXT in front of it; without TEXT, nothing
/thinking on|off [EFFORT] reason first; EFFORT is low, high, max or 1 to 100
/image FILE               show a picture with the next message
/help                     these lines
/exit                     leave, as Ctrl-D does
//TEXT                    a message that begins with a slash
Alt-Enter, or a backslash at the end of a line, begins another line. Ctrl-C stops an answer."""
NAMES = ("/reset", "/system", "/thinking", "/image", "/help", "/exit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command was obeyed."""

    told: str
    """What happened, for whoever typed it."""
    leaves: bool = False


def obey(session: ChatSession, line: str) -> Done | None:
    """Obeys a command; None where the line is a message.  Raises RequestError for what is no command."""
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    match name.strip():
        case "/system":
            session.manner = replace(session.manner, system=rest or None)
            return Done(told="the system text is set" if rest else "there is no system text")
        case "/thinking":
            return _think(session, rest.split())
        case "/image" if rest:
            picture = session.attach(Path(rest).expanduser())
            return Done(told=f"the next message shows {rest}, {picture.plan.num_tokens} tokens")
        case "/reset" if not rest:
            session.reset()
            return Done(told="the conversation is forgotten")
        case "/help" if not rest:
            return Done(told=HELP)
        case "/exit" if not rest:
            return Done(told="", leaves=True)
    raise RequestError(complaint("command", line.split("\n")[0], ", ".join(NAMES), "// begins a message with a slash"))


def message_of(line: str) -> str:
    """The message of a line that is no command."""
    return line.removeprefix("/") if line.startswith("//") else line


def _think(session: ChatSession, words: list[str]) -> Done:
    expected = "on or off, and with on an effort: low, high, max or 1 to 100"
    if not words or words[0] not in ("on", "off") or len(words) > (2 if words[0] == "on" else 1):
        raise RequestError(complaint("/thinking", " ".join(words) or "nothing", expected))
    effort = None
    if len(words) == 2 and (effort := known_effort(words[1])) is None:
        raise RequestError(complaint("/thinking", words[1], expected))
    is_on = words[0] == "on"
    session.manner = replace(session.manner, thinking=is_on, effort=effort)
    return Done(told=f"thinking is {words[0]}" + (f", effort {effort}" if effort is not None else ""))
