"""One file with everything in it: style, script and numbers; it asks nothing of any network.

The policy in its head allows exactly this style and this script, by their hashes, so that nothing that a directory's
name or a tokenizer's text could smuggle in would ever run.  The document lies in a block of JSON that no character of
it can close.
"""

import base64
import hashlib
import html
import json
from importlib import resources

from flash41.tools.anatomy_page.document import Document

SCRIPTS = ("dom", "strip", "flow", "modes", "memory", "treemap", "parts", "trace_map", "trace_mix", "trace", "page")
STYLES = ("page", "strip", "drawings", "trace", "print")
CALL = (
    'drawAnatomy(document.getElementById("anatomy"), '
    'JSON.parse(document.getElementById("anatomy-document").textContent));\n'
)
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def script() -> str:
    """The drawing program; ends with `drawAnatomy(root, document)` defined."""
    return "".join(_file(f"{name}.js") for name in SCRIPTS)


def style() -> str:
    """Its style sheet."""
    return "".join(_file(f"{name}.css") for name in STYLES)


def page(document: Document) -> str:
    """The page as HTML."""
    code, look = script() + CALL, style()
    policy = (
        f"default-src 'none'; script-src '{_hash(code)}'; style-src '{_hash(look)}'; img-src data:; base-uri 'none'"
    )
    values = {
        "policy": policy + "; form-action 'none'",
        "title": html.escape(str(document["title"])),
        "style": look,
        "script": code,
        "document": embedded(document),
    }
    text = _file("page.html")
    pieces = text.split("@@")  # text, name, text, name, ...: what is filled in is never looked at again
    return "".join(values[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def embedded(document: Document) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text


def _file(name: str) -> str:
    return (resources.files("flash41.tools.anatomy_page") / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
