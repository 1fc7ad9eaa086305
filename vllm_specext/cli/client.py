"""``vllm-specext client PROMPT --server wss://HOST --bundle DIR``: draft here, and have a server verify.

With ``--serve`` there is no prompt: any OpenAI client on this machine may ask, at the place that is given.
"""

import asyncio
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vllm_specext.cli.extras import require
from vllm_specext.cli.lines import show
from vllm_specext.cli.pair import read_text
from vllm_specext.cli.ports import check_free, read_port
from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from vllm_specext.remote.answer import Event
    from vllm_specext.remote.device.asking import Asking

KEY = "VLLM_API_KEY"


def client(
    server: Annotated[str, typer.Option(help="wss://HOST or ws://HOST:PORT of the server.", show_default=False)],
    bundle: Annotated[Path, typer.Option(help="The folder that vllm-specext bundle wrote.", show_default=False)],
    prompt: Annotated[str | None, typer.Argument(help="What to ask.", show_default=False)] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 takes the likeliest tokens.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="A random one when absent.", show_default=False)] = None,
    back_online: Annotated[
        Literal["keep", "rewrite"],
        typer.Option(help="What becomes of text that was said without the server: it stays, or it is verified."),
    ] = "keep",
    lost_after: Annotated[
        float, typer.Option(min=0, help="Seconds without a word of the server after which the answer goes on alone.")
    ] = 3.0,
    offline_limit: Annotated[
        int, typer.Option(min=0, help="Most tokens that are said without the server; 0 waits for it.")
    ] = 256,
    wait: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to wait for the server then; for ever when absent.", show_default=False),
    ] = None,
    rows: Annotated[Literal["int8", "float16"], typer.Option(help="How the server's rows come.")] = "int8",
    always_draft: Annotated[
        bool, typer.Option("--always-draft", help="Draft in every call, and not only where that is measured to pay.")
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow ws:// to another machine.")] = False,
    private: Annotated[
        Path | None,
        typer.Option(
            help="A file whose text ends the prompt and is never sent: the answer is the drafter's alone.",
            show_default=False,
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Ask without the chat template.")] = False,
    serve: Annotated[
        str | None, typer.Option(help="HOST:PORT to answer OpenAI clients at.", show_default=False)
    ] = None,
) -> None:
    """Draft on this machine with MoA, and have a server verify; goes on without the server while it cannot be reached.
    A key for the server is read from VLLM_API_KEY."""
    require("websockets", "torch", "transformers")  # what to install on a client comes first
    if (prompt is None) == (serve is None):
        raise ConfigurationError("give either a PROMPT or --serve HOST:PORT.")
    from vllm_specext.remote.device.asking import Asking
    from vllm_specext.remote.device.socket import address

    how = {"back_online": back_online, "lost_after": lost_after, "offline_limit": offline_limit, "patience": wait}
    asking = Asking(bundle, address(server, insecure), os.environ.get(KEY), rows, always_draft, **how)
    if serve is not None:
        run_proxy(asking, serve)
        return
    assert prompt is not None
    from vllm_specext.remote.protocol import Sampling

    def ids_of(text: str) -> list[int]:
        return asking.wording.of_text(text) if raw else asking.wording.of_chat([{"role": "user", "content": text}])

    sampling = Sampling(secrets.randbits(32) if seed is None else seed, temperature)
    if private is None:
        events = asking.answer(ids_of(prompt), sampling, max_tokens)
    else:
        whole = ids_of(prompt + read_text(private, "--private"))
        events = asking.answer_privately(whole, ids_of(prompt), sampling, max_tokens)
    asyncio.run(tell(asking, events))


async def tell(asking: "Asking", events: "AsyncIterator[Event]") -> None:
    """Print an answer as it comes, and how it came."""
    from vllm_specext.remote.device.wording import Growing
    from vllm_specext.remote.events import Done, Retracted

    text = Growing(asking.wording)
    async for event in events:
        if isinstance(event, Done):
            print(text.end(), flush=True)
            traffic = event.traffic
            show(
                f"{traffic.verified} tokens verified in {traffic.calls} calls, {traffic.offline} said without the "
                f"server; {traffic.bytes_up} bytes up, {traffic.bytes_down} down; ended by {event.finish}; "
                + ("exactly the target's" if event.exact else "not all the target's"),
                style="dim",
            )
        elif isinstance(event, Retracted):
            lost = text.retract(event.count)
            # A terminal takes back within a line; a pipe keeps what was written.
            sys.stdout.write("\b \b" * lost if sys.stdout.isatty() else f"[{lost} characters taken back]")
        else:
            print(text.more(event.ids), end="", flush=True)


def run_proxy(asking: "Asking", place: str) -> None:
    require("starlette", "uvicorn")
    import uvicorn

    from vllm_specext.remote.device.proxy import proxy

    host, colon, port = place.rpartition(":")
    if not colon or not host:
        raise ConfigurationError(f"--serve is {place!r}; expected HOST:PORT.")
    number = read_port(port, "the port of --serve")
    check_free(host, number, f"--serve {place}")
    show(f"OpenAI clients may ask at http://{place}/v1")
    uvicorn.run(proxy(asking), host=host, port=number, log_level="warning")
