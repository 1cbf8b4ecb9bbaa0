"""`flash41 serve`: the model behind HTTP."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flash41.cli import options
from flash41.cli.engine_options import EngineOptions, takes_engine
from flash41.server.settings import ServerSettings

Host = Annotated[str, typer.Option("--host", help="Address to listen at.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen at; 0 takes a free one.")]
ApiKeyFile = Annotated[
    Path | None, typer.Option("--api-key-file", metavar="F", help="File of API keys, one a line. [default: no key]")
]
AllowedHosts = Annotated[
    list[str] | None, typer.Option("--allowed-host", metavar="NAME", help="Host name to answer to; may be repeated.")
]
AllowedOrigins = Annotated[
    list[str] | None,
    typer.Option("--allowed-origin", metavar="URL", help="Origin whose pages may call; may be repeated."),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--served-model-name", metavar="NAME", help="Name of the model; may be repeated."),
]
DefaultMode = Annotated[
    str, typer.Option("--default-mode", metavar="thinking|chat", help="Mode of a request that does not say.")
]
HostedSampling = Annotated[
    bool, typer.Option("--hosted-sampling", help="Clamp temperature and top_p as the hosted service does.")
]
MaxWaiting = Annotated[int, typer.Option("--max-waiting", min=0, help="Answers that may wait; more get status 429.")]
RequestTimeout = Annotated[float, typer.Option("--request-timeout", min=0.001, help="Longest request in seconds.")]
MaxBody = Annotated[str, typer.Option("--max-body", metavar="BYTES", help="Largest body of a request.")]
ImageRoot = Annotated[
    Path | None,
    typer.Option("--image-root", metavar="DIR", help="Folder whose files may be named as images. [default: none]"),
]
ImageHttp = Annotated[bool, typer.Option("--image-http", help="Fetch images from public servers that requests name.")]
Grace = Annotated[float, typer.Option("--grace", min=0.0, help="Seconds for open answers when told to stop.")]
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LogJson = Annotated[bool, typer.Option("--log-json", help="Write the log as JSON lines.")]


@takes_engine()
def serve(
    model: options.Model = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key_file: ApiKeyFile = None,
    allowed_host: AllowedHosts = None,
    allowed_origin: AllowedOrigins = None,
    served_model_name: Names = None,
    default_mode: DefaultMode = "thinking",
    hosted_sampling: HostedSampling = False,
    max_waiting: MaxWaiting = 256,
    request_timeout: RequestTimeout = 3600.0,
    max_body: MaxBody = "32M",
    image_root: ImageRoot = None,
    image_http: ImageHttp = False,
    grace: Grace = 30.0,
    log_json: LogJson = False,
    *,
    engine: EngineOptions,
) -> None:
    """Serve the model over HTTP, to clients of the OpenAI and Anthropic protocols.

    Listens at this machine only, unless --host says otherwise. Ends with status 0 on SIGTERM or Ctrl-C, when open
    answers are finished. Without --model the embedded default is served, a small trained model: say "Hello!", or tell
    it a short story and ask about it in the same message.
    """
    if default_mode not in ("thinking", "chat"):
        raise typer.BadParameter(f"got {default_mode!r}, expected thinking or chat", param_hint="--default-mode")
    if image_root is not None and not image_root.is_dir():
        raise typer.BadParameter(f"got '{image_root}', expected a folder", param_hint="--image-root")
    from flash41.chat.conversation import MODEL_NAME
    from flash41.checkpoint.embedded import default_config
    from flash41.config.huggingface import read_config
    from flash41.server.security import read_keys

    settings = ServerSettings(
        host=host,
        port=port,
        api_keys=() if api_key_file is None else read_keys(api_key_file),
        allowed_hosts=tuple(allowed_host or ()),
        allowed_origins=tuple(allowed_origin or ()),
        thinks_by_default=default_mode == "thinking",
        hosted_sampling=hosted_sampling,
        max_waiting=max_waiting,
        request_timeout_seconds=request_timeout,
        max_body_bytes=options.num_bytes(max_body, "--max-body"),
        image_root=image_root,
        image_http=image_http,
        grace_seconds=grace,
        model_config=default_config() if model is None else read_config(model),
    )
    keywords = {"model": None if model is None else str(model), **engine.keywords()}
    raise typer.Exit(_served(keywords, served_model_name or [MODEL_NAME], settings, log_json))


def _served(engine_options: Mapping[str, Any], names: Sequence[str], settings: ServerSettings, log_json: bool) -> int:
    """Starts the engine in its process, tells what it has decided, and serves it; the exit status."""
    from flash41.server import logs
    from flash41.server.engine_process import EngineProcess

    logs.set_up(as_json=log_json)
    with EngineProcess(engine_options, names, logs_json=log_json) as process:
        from flash41.server import run  # takes its time while the engine takes its own

        engine = process.client()
        for choice in engine.facts.choices:
            typer.echo(choice)
        if not settings.api_keys and settings.host not in LOOPBACK:
            typer.echo(f"note: whoever reaches {settings.host} may use this server; --api-key-file asks for a key")
        return run.serve(engine, settings, _announce)


def _announce(url: str) -> None:
    typer.echo(f"listening at {url}")
