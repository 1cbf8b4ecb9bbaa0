"""Keys of pages: the specified bytes, and every difference that must change a key."""

import hashlib
import struct
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from flash41.cache.page_keys import ImagePart, ImageSpan, PageContent, PageKey, chain, chain_root, hash64, page_hash

ROOT = chain_root("layout")
IDS = st.lists(st.integers(0, 3), max_size=14)


def hashes(keys: tuple[PageKey, ...]) -> list[int]:
    return [key.hash for key in keys]


def test_a_key_hashes_eight_bytes_of_the_previous_one_and_then_the_ids() -> None:
    def digest(data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=8).digest()

    first = digest(digest(ROOT.encode()) + struct.pack("<2I", 7, 129_279))
    second = digest(first + struct.pack("<2I", 1, 0))
    found = chain([7, 129_279, 1, 0, 5], 2, ROOT)
    assert [key.hash.to_bytes(8, "little") for key in found] == [first, second]
    assert found[1].parent == found[0].hash
    assert found[0].parent == hash64(ROOT.encode())


def test_only_full_pages_have_keys() -> None:
    assert [len(chain(list(range(count)), 4, ROOT)) for count in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_chain_is_extended_without_hashing_its_beginning_again() -> None:
    ids = list(range(12))
    begun = chain(ids[:9], 4, ROOT)
    extended = chain(ids, 4, ROOT, known=begun)
    assert extended == chain(ids, 4, ROOT)
    assert extended[0] is begun[0]


def test_layout_and_salt_begin_the_chain() -> None:
    roots = [chain_root(*pair) for pair in (("a", ""), ("b", ""), ("a", "b"), ("ab", ""), ("", "ab"), ("1:a", ""))]
    keys = [chain([1, 2], 2, root)[0] for root in roots]
    assert len({key.hash for key in keys}) == len({key.content for key in keys}) == len(roots)


def test_an_image_is_part_of_every_page_it_overlaps() -> None:
    # Pitfall 145: placeholders alike by id must not share pages.
    ids = [1, 2, 9, 9, 9, 9, 9, 3]
    text = chain(ids, 2, ROOT)
    one, other = (chain(ids, 2, ROOT, [ImageSpan(identity=name, start=2, length=5)]) for name in "ab")
    assert text[0] == one[0] == other[0]
    for index in (1, 2, 3):
        assert len({keys[index].hash for keys in (text, one, other)}) == 3
    assert [key.content.images for key in one[1:]] == [
        (ImagePart(identity="a", page_offset=0, span_offset=0, length=2),),
        (ImagePart(identity="a", page_offset=0, span_offset=2, length=2),),
        (ImagePart(identity="a", page_offset=0, span_offset=4, length=1),),
    ]


def test_two_images_in_one_page_are_told_apart_by_place() -> None:
    spans = [ImageSpan(identity="b", start=2, length=2), ImageSpan(identity="a", start=0, length=1)]
    (key,) = chain([9, 1, 9, 9], 4, ROOT, spans)
    assert key.content.images == (
        ImagePart(identity="a", page_offset=0, span_offset=0, length=1),
        ImagePart(identity="b", page_offset=2, span_offset=0, length=2),
    )
    moved = [ImageSpan(identity="b", start=1, length=2), spans[1]]
    assert chain([9, 1, 9, 9], 4, ROOT, moved)[0].hash != key.hash


def test_every_field_of_a_content_changes_the_hash() -> None:
    def content(ids: tuple[int, ...], *parts: tuple[str, int, int, int]) -> PageContent:
        images = tuple(ImagePart(identity=i, page_offset=p, span_offset=s, length=n) for i, p, s, n in parts)
        return PageContent(root=ROOT, token_ids=ids, images=images)

    contents = [
        content((9, 9)),
        content((9, 8)),
        content((9, 9), ("a", 0, 0, 2)),
        content((9, 9), ("b", 0, 0, 2)),
        content((9, 9), ("a", 1, 0, 1)),
        content((9, 9), ("a", 0, 1, 2)),
        content((9, 9), ("a", 0, 0, 1)),
        content((9, 9), ("a", 0, 0, 1), ("a", 1, 0, 1)),
    ]
    assert len({page_hash(1, one) for one in contents}) == len(contents)
    assert page_hash(1, contents[0]) != page_hash(2, contents[0])


@given(first=IDS, second=IDS)
@settings(deadline=None, max_examples=100)
def test_two_texts_share_keys_as_far_as_they_share_pages(first: list[int], second: list[int]) -> None:
    one, other = chain(first, 3, ROOT), chain(second, 3, ROOT)
    for index in range(min(len(one), len(other))):
        same = first[: 3 * index + 3] == second[: 3 * index + 3]
        assert (one[index].hash == other[index].hash) is same
        assert (one[index] == other[index]) is same


def test_hashes_are_64_bits_and_spread() -> None:
    found = [hash64(bytes([byte])) for byte in range(256)]
    assert all(0 <= value < 2**64 for value in found)
    assert all(left != right for left, right in combinations(found, 2))
    assert max(found) >= 2**63
