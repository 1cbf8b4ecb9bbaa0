"""A prefix cache of pages of two tokens, and requests that run to their end at once."""

from collections.abc import Sequence

from flash41.cache.images import Image, ImageRole
from flash41.cache.matches import PrefixMatch
from flash41.cache.page_keys import PageKey, chain, chain_root
from flash41.cache.pages import PagePool
from flash41.cache.prefix import PrefixCache

BLOCK = 2
ROOT = chain_root("layout")


def keys_of(ids: Sequence[int], root: str = ROOT) -> tuple[PageKey, ...]:
    return chain(ids, BLOCK, root)


class Bench:
    """A cache over a pool, and requests that run to their end at once."""

    def __init__(self, num_pages: int = 16, max_pages: int = 16, num_images: int = 4, interval: int = BLOCK) -> None:
        self.pool = PagePool(num_pages)
        self.cache = PrefixCache(self.pool, BLOCK, max_pages=max_pages, num_images=num_images, image_interval=interval)

    def publish(self, ids: Sequence[int], root: str = ROOT) -> tuple[PageKey, ...]:
        keys = keys_of(ids, root)
        pages = self.pool.take(len(keys))
        self.cache.publish(keys, pages)
        self.pool.give_back(pages)
        return keys

    def keep(self, key: PageKey, role: ImageRole = ImageRole.PROMPT) -> Image:
        image = self.cache.begin_image(key, role)
        assert image is not None
        self.cache.finish_image(image)
        return image

    def match(self, ids: Sequence[int], root: str = ROOT) -> PrefixMatch:
        return self.cache.match(keys_of(ids, root), len(ids))

    def check(self, *held: int) -> None:
        self.cache.check_integrity()
        self.pool.check_integrity([*self.cache.held_page_ids, *held])
