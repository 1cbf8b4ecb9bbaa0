"""`GET /` and `GET /web/{name}`: the page for people, as files of the package.

The drawing program of the anatomy tab is that of `flash41 anatomy`, in one file each for script and style.  Files are
read once, when the application is made; nothing else of the disk can be reached.  A browser asks again at every visit
and is told when nothing has changed.
"""

import hashlib
from dataclasses import dataclass
from importlib import resources

from fastapi import APIRouter, Request
from starlette.responses import Response

from flash41.server.api_errors import ApiError
from flash41.server.context import Context
from flash41.tools.anatomy_page.html import script, style

INDEX = "index.html"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
METHODS = ["GET", "HEAD"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """One file of the page."""

    content: bytes
    media_type: str
    tag: str
    """Changes with the content."""


def page_files() -> dict[str, PageFile]:
    """All files of the page by name."""
    folder = resources.files("flash41.server") / "web"
    contents = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    contents["drawing.js"] = (script() + "export { drawAnatomy };\n").encode()
    contents["drawing.css"] = style().encode()
    return {name: _read(name, content) for name, content in contents.items()}


def _read(name: str, content: bytes) -> PageFile:
    suffix = name[name.rindex(".") :]
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    return PageFile(content=content, media_type=MEDIA_TYPES[suffix], tag=tag)


def page_routes(context: Context) -> APIRouter:  # noqa: ARG001 -- the signature of all routes
    """The routes of the page; they are no part of the interface description."""
    router, files = APIRouter(include_in_schema=False), page_files()

    def response(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise ApiError(404, "there is nothing at this path", code="not_found")
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    @router.api_route("/", methods=METHODS)
    async def index(request: Request) -> Response:
        return response(request, INDEX)

    @router.api_route("/web/{name}", methods=METHODS)
    async def one(request: Request, name: str) -> Response:
        return response(request, name)

    return router
