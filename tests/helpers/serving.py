"""Servers without a model: an application over a scripted service, and a way to call it inside this process."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flash41.chat.conversation import ChatCodec
from flash41.server.app import Application, create_app
from flash41.server.conversations import ConstraintFor
from flash41.server.service import Job, ModelFacts
from flash41.server.settings import ServerSettings
from flash41.server.stub import ScriptedService
from helpers.tiny_tokenizer import TINY_IMAGE_ID, TINY_TOKENIZER

T = TypeVar("T")

NAME = "DeepSeek-V4.1-Flash"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COMPLETIONS = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def small_codec() -> ChatCodec:
    """The codec of the small random checkpoint."""
    return ChatCodec.from_directory(TINY_TOKENIZER, TINY_IMAGE_ID)


def facts(**changes: Any) -> ModelFacts:
    known: dict[str, Any] = {
        "names": (NAME,),
        "max_model_len": 8192,
        "max_num_seqs": 8,
        "vocab_size": 1024,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return ModelFacts(**known | changes)


@dataclass
class Scripted:
    """An application whose answers are a text, and the service behind it."""

    codec: ChatCodec
    text: str | Callable[[Job], str] = "because</think>Hi there"
    settings: ServerSettings = field(default_factory=ServerSettings)
    model: ModelFacts = field(default_factory=facts)
    constraint_for: ConstraintFor | None = None
    playing: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.service = ScriptedService(self.codec, self.model, self._ids, **self.playing)
        self.app: Application = create_app(self.service, self.settings, self.constraint_for)

    def _ids(self, job: Job) -> Sequence[int]:
        text = self.text if isinstance(self.text, str) else self.text(job)
        return self.codec.tokenizer.encode_with_control(text)

    def post(self, path: str, body: object, **headers: str) -> "Reply":
        return run(self.apost(path, body, **headers))

    async def apost(self, path: str, body: object, **headers: str) -> "Reply":
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await call(self.app, "POST", path, raw, {"content-type": "application/json", **headers})

    def get(self, path: str, **headers: str) -> "Reply":
        return run(call(self.app, "GET", path, b"", headers))


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    parts: list[bytes]
    """Pieces of the body as they were sent."""

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str | None, Any]]:
        """Events of a stream: names and data, JSON decoded."""
        found = []
        for block in self.body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "data" in fields:
                data = fields["data"]
                found.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
        return found

    @property
    def chunks(self) -> list[Any]:
        """Data of all events but the final [DONE]."""
        return [data for _, data in self.events if data != "[DONE]"]


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine on an event loop of its own, which must end within seconds and leave no task."""

    async def timed() -> T:
        async with asyncio.timeout(30):
            result = await work
        await asyncio.sleep(0)
        for _ in range(20):
            if len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.01)
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == [], left
        return result

    return asyncio.run(timed())


async def call(
    app: Application,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    gone_after: int | None = None,
    pieces: Sequence[bytes] | None = None,
) -> Reply:
    """One request straight into the application; `gone_after` closes the connection behind that many body parts."""
    sent, gone = Reply(status=0, headers={}, parts=[]), asyncio.Event()
    incoming = list(pieces) if pieces is not None else [body]
    given = {"host": "localhost:8000", **(headers or {})}
    target, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }

    async def receive() -> dict[str, Any]:
        if incoming:
            part = incoming.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(incoming)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        if message["type"] == "http.response.start":
            sent.status = message["status"]
            sent.headers.update((name.decode(), value.decode()) for name, value in message["headers"])
        elif message["body"]:
            sent.parts.append(message["body"])
            if gone_after is not None and len(sent.parts) >= gone_after:
                gone.set()

    if gone_after == 0:
        gone.set()
    await app(scope, receive, send)
    return sent
