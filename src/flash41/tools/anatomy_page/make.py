"""From a directory or a config.json, and maybe a trace, to the file of the page."""

import os
import secrets
from pathlib import Path

from flash41.chat.tokenizer import Tokenizer
from flash41.config.huggingface import FILE_NAME, read_config
from flash41.errors import CapacityError, ConfigError, RequestError, complaint
from flash41.tools.anatomy import UNNAMED, Anatomy, dissect
from flash41.tools.anatomy_page.document import Document, page_document
from flash41.tools.anatomy_page.html import page
from flash41.tools.anatomy_page.trace_file import read_trace_file
from flash41.tools.anatomy_page.trace_view import Text, trace_view

TOKENIZER_FILE = "tokenizer.json"


def make_page(source: Path, out: Path, trace: Path | None = None, token: int | None = None, force: bool = False) -> int:
    """Writes the page of the model at `source` to `out` and returns its bytes.

    Raises RequestError for a target that cannot be made, or exists without `force`, for a file that is no trace of
    this model, and for a token without a trace or outside of it; ConfigError for a configuration that is refused.
    """
    _check_target(out, force)
    if token is not None and trace is None:
        raise RequestError(complaint("token", token, "a trace to take it from", "name one with --trace"))
    anatomy = dissect(read_config(source))
    shown = None if trace is None else _trace(source, trace, anatomy, token)
    content = page(page_document(anatomy, title(source, anatomy), shown)).encode()
    _write(out, content)
    return len(content)


def title(source: Path, anatomy: Anatomy) -> str:
    """The released name, else that of the directory or file; bytes of it that are no text become question marks."""
    if anatomy.name != UNNAMED:
        return anatomy.name
    named = source.parent if source.name == FILE_NAME and not source.is_dir() else source
    name = named.resolve().name if named.is_dir() else named.stem
    return name.encode("utf-8", "replace").decode() or "a model"


def spelling(source: Path) -> Text:
    """Spells ids with the tokenizer of a directory; nothing where there is none, or one that cannot be read."""
    folder = source if source.is_dir() else source.parent
    try:
        tokenizer = Tokenizer.from_file(folder / TOKENIZER_FILE)
    except ConfigError:
        return lambda _: None

    def text(token_id: int) -> str | None:
        try:
            return tokenizer.token_text(token_id)
        except RequestError:
            return None

    return text


def _trace(source: Path, path: Path, anatomy: Anatomy, token: int | None) -> Document:
    file = read_trace_file(path, anatomy.config, anatomy.topology)
    return trace_view(file, anatomy.config, anatomy.topology, spelling(source), token)


def _check_target(out: Path, force: bool) -> None:
    if out.suffix != ".html":
        raise RequestError(complaint("output file", str(out), "a name that ends in .html"))
    if out.is_dir():
        raise RequestError(complaint("output file", str(out), "a file", "a folder is never replaced"))
    if os.path.lexists(out) and not force:
        raise RequestError(complaint("output file", str(out), "a name that does not exist yet", "or use --force"))
    folder = out.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise RequestError(complaint("output folder", str(folder), "an existing folder that can be written"))


def _write(out: Path, content: bytes) -> None:
    partial = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, out)
    except OSError as error:
        raise CapacityError(complaint(f"writing {out}", str(error), "a file system that accepts it")) from error
    finally:
        partial.unlink(missing_ok=True)
