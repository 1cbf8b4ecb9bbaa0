"""Names of full pages: a hash chain over tokens, with everything else that decides their rows.

    root   = H(layout_id, salt)
    key[i] = H(key[i-1] as 8 little-endian bytes, ids of page i as 4 little-endian bytes each, image parts of page i)

H is BLAKE2b with 8 bytes of digest.  A key therefore names a page and all pages before it.  Sixty-four bits may
collide: whoever looks a key up compares the content too, page by page from the front.

Placeholders of an image look alike by id, so a page carries the identity of every image it overlaps and where in the
image it begins.  The salt separates users who must not learn from each other's timing.
spec: cache.md section 7, vision.md section 8.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpan:
    """One image of a request: its identity and the positions of its placeholders."""

    identity: str
    """Hash of decoded pixels with their shape, plus grid and processor settings."""
    start: int
    """Position of the first placeholder."""
    length: int
    """Placeholders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """The part of an image that lies in one page."""

    identity: str
    """Identity of the image."""
    page_offset: int
    """First token of the page that belongs to it."""
    span_offset: int
    """Placeholders of the image before that token."""
    length: int
    """Placeholders in this page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """What the rows of a page depend on, apart from the pages before it; compared exactly."""

    root: str
    """Layout and salt of the chain."""
    token_ids: tuple[int, ...]
    """Ids of the whole page."""
    images: tuple[ImagePart, ...]
    """Images it overlaps, by position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageKey:
    """A full page in a chain."""

    hash: int
    """64 bits, unsigned; names this page and all before it."""
    parent: int
    """Hash of the page before it, or of the chain's root."""
    content: PageContent
    """What is compared beside the hash."""


def chain(
    token_ids: Sequence[int],
    block_size: int,
    root: str,
    images: Sequence[ImageSpan] = (),
    known: Sequence[PageKey] = (),
) -> tuple[PageKey, ...]:
    """Keys of all full pages of a request; `known` are its first ones from an earlier call, which are kept.

    `root` is what `chain_root` returns.
    """
    keys = list(known)
    previous = keys[-1].hash if keys else hash64(root.encode())
    for start in range(len(keys) * block_size, len(token_ids) - block_size + 1, block_size):
        content = PageContent(
            root=root,
            token_ids=tuple(token_ids[start : start + block_size]),
            images=_parts(images, start, start + block_size),
        )
        keys.append(PageKey(hash=page_hash(previous, content), parent=previous, content=content))
        previous = keys[-1].hash
    return tuple(keys)


def chain_root(layout_id: str, salt: str = "") -> str:
    """What a chain begins with; different for every pair of layout and salt."""
    return f"{len(layout_id)}:{layout_id}{salt}"


def page_hash(previous: int, content: PageContent) -> int:
    """Hash of a page behind the page or root with hash `previous`."""
    ids = struct.pack(f"<{len(content.token_ids)}I", *content.token_ids)
    parts = b"".join(_encoded(part) for part in content.images)
    return hash64(previous.to_bytes(8, "little") + ids + parts)


def hash64(data: bytes) -> int:
    """BLAKE2b of eight bytes, read as a little-endian integer."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _encoded(part: ImagePart) -> bytes:
    identity = part.identity.encode()
    return struct.pack("<4I", part.page_offset, part.span_offset, part.length, len(identity)) + identity


def _parts(images: Sequence[ImageSpan], start: int, end: int) -> tuple[ImagePart, ...]:
    parts = []
    for image in sorted(images, key=lambda span: span.start):
        first, last = max(start, image.start), min(end, image.start + image.length)
        if first < last:
            parts.append(
                ImagePart(
                    identity=image.identity,
                    page_offset=first - start,
                    span_offset=first - image.start,
                    length=last - first,
                )
            )
    return tuple(parts)
