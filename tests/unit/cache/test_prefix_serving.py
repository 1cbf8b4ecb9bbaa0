"""The prefix cache under requests of any kind and order: nobody ever reads another text's rows."""

import dataclasses
from collections.abc import Sequence

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flash41.cache.images import Image, ImageRole
from flash41.cache.matches import PrefixLease
from flash41.cache.page_keys import PageKey, chain
from flash41.cache.pages import PagePool, PageTable
from flash41.cache.prefix import PrefixCache
from helpers.prefix_bench import BLOCK, ROOT


@dataclasses.dataclass
class Request:
    tokens: list[int]
    table: PageTable
    keys: tuple[PageKey, ...] = ()


class Serving(RuleBasedStateMachine):
    """Requests that begin, grow, end and restore, with the text behind every page and every image kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(10)
        self.cache = PrefixCache(self.pool, BLOCK, max_pages=7, num_images=2)
        self.requests: list[Request] = []
        self.restores: list[PrefixLease] = []
        self.copies: list[Image] = []
        self.text_of_page: dict[int, tuple[int, ...]] = {}
        self.text_of_slot: dict[int, tuple[int, ...]] = {}
        self.text_of_key: dict[int, tuple[int, ...]] = {}

    def grow(self, request: Request, tokens: Sequence[int]) -> bool:
        if not self.cache.make_room(request.table.pages_needed(len(tokens))):
            return False
        assert request.table.append(len(tokens)) == [], "a full page is never copied"
        for token in tokens:
            page, _ = request.table.locate(len(request.tokens))
            assert self.pool.references(page) == 1, "a shared page is written"
            request.tokens.append(token)
            self.text_of_page[page] = tuple(request.tokens)
        request.keys = chain(request.tokens, BLOCK, ROOT, known=request.keys)
        for index, key in enumerate(request.keys):
            self.text_of_key[key.hash] = tuple(request.tokens[: BLOCK * (index + 1)])
        return True

    @precondition(lambda self: len(self.requests) < 3)
    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9), admitted=st.booleans())
    def begin(self, prompt: list[int], admitted: bool) -> None:
        keys = chain(prompt, BLOCK, ROOT)
        found = self.cache.match(keys, len(prompt))
        assert found.num_tokens <= found.counterfactual_tokens <= found.pre_gate_tokens < len(prompt)
        lease = self.cache.acquire(found)
        for index, page in enumerate(found.page_ids):
            assert self.text_of_page[page] == tuple(prompt[: BLOCK * (index + 1)]), "rows of another text"
        if lease.image is not None:
            assert self.text_of_slot[lease.image.slot] == tuple(prompt[: found.num_tokens]), "state of another text"
        request = Request(tokens=prompt[: found.num_tokens], table=PageTable(self.pool, BLOCK), keys=found.keys)
        # A request that finds no room gives up with its lease intact.
        if not admitted or not self.cache.make_room(-(-len(prompt) // BLOCK) - len(found.page_ids)):
            self.cache.abandon(lease)
            return
        request.table.adopt(found.page_ids)
        assert self.grow(request, prompt[found.num_tokens :])
        self.restores.append(lease)
        self.requests.append(request)

    @precondition(lambda self: self.restores)
    @rule(data=st.data())
    def end_restore(self, data: st.DataObject) -> None:
        lease = self.restores.pop(data.draw(st.integers(0, len(self.restores) - 1)))
        if lease.image is not None:
            text = self.text_of_slot[lease.image.slot]
            assert len(text) == lease.match.num_tokens, "an image changed while it was restored"
        self.cache.commit(lease)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def decode(self, data: st.DataObject, tokens: list[int]) -> None:
        self.grow(data.draw(st.sampled_from(self.requests)), tokens)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        cached = self.cache.publish(request.keys, request.table.page_ids)
        assert self.cache.match(request.keys, BLOCK * cached + 1).pre_gate_tokens == BLOCK * cached

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), role=st.sampled_from(list(ImageRole)))
    def keep_image(self, data: st.DataObject, role: ImageRole) -> None:
        request = data.draw(st.sampled_from(self.requests))
        assume(request.keys)
        key = data.draw(st.sampled_from(request.keys))
        image = self.cache.begin_image(key, role)
        if image is not None:
            busy = [lease.image.slot for lease in self.restores if lease.image is not None]
            assert image.slot not in [*busy, *(other.slot for other in self.copies)]
            self.text_of_slot[image.slot] = self.text_of_key[key.hash]
            self.copies.append(image)

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), cancelled=st.booleans())
    def end_copy(self, data: st.DataObject, cancelled: bool) -> None:
        image = self.copies.pop(data.draw(st.integers(0, len(self.copies) - 1)))
        (self.cache.cancel_image if cancelled else self.cache.finish_image)(image)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1))).table.release()

    @rule(count=st.integers(0, 10))
    def make_room(self, count: int) -> None:
        before = self.cache.num_pages
        assert self.cache.make_room(count) is (self.pool.num_free >= count)
        if self.pool.num_free < count:
            assert self.cache.num_pages == before

    @invariant()
    def everything_adds_up(self) -> None:
        self.cache.check_integrity()
        tables = [page for request in self.requests for page in request.table.page_ids]
        self.pool.check_integrity([*self.cache.held_page_ids, *tables])


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
