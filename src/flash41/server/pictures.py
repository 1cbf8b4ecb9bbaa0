"""Pictures of bodies: fetched where that is allowed, decoded beside the event loop, one at a time for the whole server.

    prompt ──► addresses fetched (`fetching`) ──► one thread decodes ──► pictures of the call

A decoder may take 600 MB and two seconds for one picture, so there is one of them, and whoever waits for it does so in
order.  Patches of open answers are counted: more of them than allowed and the next call is told to come back.
"""

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import deepseek_recipe as recipe

from flash41.chat.conversation import Prompt
from flash41.chat.image_decode import DEFAULT_LIMITS
from flash41.chat.image_errors import ImageError, ImageFault
from flash41.chat.image_sources import bytes_below
from flash41.chat.images import Picture
from flash41.chat.prompt_pictures import data_only, pictures_of, place
from flash41.engine.prompt_images import num_widened
from flash41.errors import RequestError, complaint
from flash41.server.api_errors import ApiError, without_quotes
from flash41.server.conversations import check_room
from flash41.server.fetching import FetchError, FetchLimits, fetch
from flash41.server.local_images import local_path
from flash41.server.service import ModelFacts
from flash41.server.settings import ServerSettings

NUM_FETCHERS = 4
"""Pictures that are fetched at the same time."""
RETRY_SECONDS = 5


class PictureDesk:
    """Reads the pictures of all calls of one server."""

    def __init__(self, facts: ModelFacts, settings: ServerSettings) -> None:
        self._facts = facts
        self._settings = settings
        self._limits = FetchLimits(seconds=settings.image_fetch_seconds)
        self._decoder = ThreadPoolExecutor(1, "pictures")
        self._fetchers = ThreadPoolExecutor(NUM_FETCHERS, "fetch")
        self.num_held_bytes = 0
        """Bytes of patches of open answers."""

    async def read(self, prompt: Prompt, inside: contextlib.ExitStack) -> tuple[Picture, ...]:
        """The pictures of a prompt, counted until `inside` ends; raises ApiError naming the part."""
        sizes = self._facts.image_sizes
        if not prompt.images:
            return ()
        if sizes is None:
            raise ApiError(400, "images are not supported by this server", code=ImageFault.MEDIA_TYPE.value)
        if len(prompt.images) > DEFAULT_LIMITS.max_images:
            message = f"{len(prompt.images)} images, at most {DEFAULT_LIMITS.max_images} may be sent together"
            raise ApiError(400, message, code=ImageFault.COUNT.value)
        fetched = await self._fetched(prompt.images)
        pictures = pictures_of(prompt.images, sizes, functools.partial(self._bytes_of, fetched))
        taken = list[Picture]()
        for source in prompt.images:
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._decoder, next, pictures)
            except RequestError as error:
                raise _refused(error, source) from error
            if not any(found is known for known in taken):
                self._hold(found, inside)
            taken.append(found)
            check_room(num_widened(prompt.ids, taken), self._facts)
        return tuple(taken)

    async def _fetched(self, sources: Sequence[recipe.ImageSource]) -> dict[str, bytes]:
        """The bytes behind the addresses of other servers, each fetched once."""
        found: dict[str, bytes] = {}
        for number, source in enumerate(sources, 1):
            url = source.url
            if url is None or url in found or local_path(url) is not None:
                continue
            try:
                found[url] = await self._from_elsewhere(url)
            except RequestError as error:
                error.args = (f"{place(source, number)}: {error}",)
                raise _refused(error, source) from error
            total = sum(map(len, found.values()))
            if total > DEFAULT_LIMITS.max_total_bytes:
                message = f"{total} bytes of images, at most {DEFAULT_LIMITS.max_total_bytes} may be sent together"
                raise ApiError(400, message, code=ImageFault.TOTAL_SIZE.value)
        return found

    async def _from_elsewhere(self, url: str) -> bytes:
        if not self._settings.image_http:
            expected = "a data URL: this server fetches nothing"
            raise RequestError(complaint("image address", "one of another server", expected))
        loop = asyncio.get_running_loop()
        try:
            # A resolver may sit longer than any socket; its thread is left to end by itself.
            async with asyncio.timeout(2 * self._limits.seconds):
                return await loop.run_in_executor(self._fetchers, fetch, url, self._limits)
        except TimeoutError:
            raise FetchError("no answer in time", "a server that answers", is_retryable=True) from None

    def _bytes_of(self, fetched: dict[str, bytes], source: recipe.ImageSource) -> bytes:
        if source.url is None:
            return data_only(source)
        path = local_path(source.url)
        if path is None:
            return fetched[source.url]
        if self._settings.image_root is None:
            raise RequestError(complaint("image address", "a local file", "a data URL"))
        return bytes_below(self._settings.image_root, path)

    def _hold(self, found: Picture, inside: contextlib.ExitStack) -> None:
        size, limit = found.patches.nbytes, self._settings.max_picture_bytes
        if self.num_held_bytes + size > limit:
            message = "the pictures of open answers take all the room there is; try again later"
            raise ApiError(429, message, code="queue_full", retry_after_seconds=RETRY_SECONDS)
        self.num_held_bytes += size
        inside.callback(self._release, size)

    def _release(self, size: int) -> None:
        self.num_held_bytes -= size


def _refused(error: RequestError, source: recipe.ImageSource) -> ApiError:
    param = source.path.lstrip(".") or None
    if isinstance(error, ImageError):  # tells of sizes and headers only
        return ApiError(400, str(error), code=error.kind.value, param=param)
    if isinstance(error, FetchError):
        return ApiError(500 if error.is_retryable else 400, str(error), code="image_fetch_failed", param=param)
    return ApiError(400, without_quotes(str(error)), param=param)
