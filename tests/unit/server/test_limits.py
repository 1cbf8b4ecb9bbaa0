import asyncio

import pytest

from flash41.chat.conversation import ChatCodec
from flash41.server.api_errors import ApiError
from flash41.server.limits import Gate
from flash41.server.settings import ServerSettings
from helpers.serving import CHAT, HELLO, Scripted, facts, run


def test_a_gate_is_empty_again_when_all_have_left() -> None:
    gate = Gate(max_running=2, max_waiting=3)
    with gate.entered(2), gate.entered(3):
        assert gate.num_open == 5
        with pytest.raises(ApiError) as caught, gate.entered(1):
            pass
        assert (caught.value.status, caught.value.code) == (429, "queue_full")
        assert caught.value.retry_after_seconds is not None
    assert (gate.num_open, gate.num_refused) == (0, 1)


def test_a_gate_is_left_also_by_those_who_fail() -> None:
    gate = Gate(max_running=1, max_waiting=0)
    with pytest.raises(RuntimeError, match="inside"), gate.entered(1):
        raise RuntimeError("inside")
    assert gate.num_open == 0


def test_a_closed_gate_lets_those_inside_finish() -> None:
    gate = Gate(max_running=1, max_waiting=1)
    with gate.entered(1):
        gate.close()
        with pytest.raises(ApiError) as caught, gate.entered(1):
            pass
        assert (caught.value.status, gate.num_open) == (503, 1)


def test_whoever_finds_the_queue_full_is_told_when_to_come_back(codec: ChatCodec) -> None:
    settings = ServerSettings(max_waiting=1)
    scripted = Scripted(codec, "a " * 50, settings, facts(max_num_seqs=2), playing={"token_seconds": 0.01})

    async def work() -> list[int]:
        replies = await asyncio.gather(*(scripted.apost(CHAT, HELLO) for _ in range(6)))
        refused = [reply for reply in replies if reply.status == 429]
        assert all(1 <= int(reply.headers["retry-after"]) <= 60 for reply in refused)
        assert all(reply.json["error"]["type"] == "rate_limit_error" for reply in refused)
        return sorted(reply.status for reply in replies)

    assert run(work()) == [200] * 3 + [429] * 3
    assert scripted.post(CHAT, HELLO).status == 200
    assert "flash41_refused_requests 3.0" in scripted.get("/metrics").body.decode()


def test_choices_take_places_each(codec: ChatCodec) -> None:
    scripted = Scripted(codec, settings=ServerSettings(max_waiting=1), model=facts(max_num_seqs=2))
    assert scripted.post(CHAT, {**HELLO, "n": 3}).status == 200
    assert scripted.post(CHAT, {**HELLO, "n": 4}).status == 429
