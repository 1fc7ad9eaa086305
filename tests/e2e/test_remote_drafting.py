"""Clients that draft and a server that verifies, as their users start them: the answers of the server itself, over a
network that is cut, with others asking meanwhile, and frames of every bad kind."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from openai import OpenAI
from typer.testing import CliRunner
from websockets.sync.client import connect

from tests.e2e.conftest import KEY, Client
from vllm_specext.cli import app
from vllm_specext.cli.ports import check_free
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS, PROMPTS, TARGET
from vllm_specext.measure.server import HOST, Server, free_port
from vllm_specext.remote.device.asking import Asking
from vllm_specext.remote.device.proxy import proxy
from vllm_specext.remote.device.socket import ROUTE, address
from vllm_specext.remote.events import Done, Retracted, Said
from vllm_specext.remote.protocol import Error, Sampling, from_server

MOA = {"method": "moa", "model": str(MODELS / "moa"), "client_drafts": True, "tree_top_k": 8}
LENGTH = 48
ASKED = [prompt["text"] for prompt in json.loads(PROMPTS.read_text())[:4]]


@pytest.fixture(scope="module")
def server(logs: Path) -> Iterator[Server]:
    with Server(logs / "remote.log", MOA, arguments=(f"--api-key={KEY}",)) as server:
        yield server.start()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "new"
    made = CliRunner().invoke(app, ["bundle", str(TARGET), str(MODELS / "moa"), str(folder), "--dtype", "float32"])
    assert made.exit_code == 0, made.output
    return folder


def asking(server: Server, bundle: Path, port: int | None = None, key: str = KEY, **how: Any) -> Asking:
    """Only a cut ends a connection: a machine on which much is tested at once can be silent for seconds."""
    how = {"lost_after": 60.0, **how}
    return Asking(bundle, address(f"ws://{HOST}:{port or server.port}", insecure=False), key, "int8", **how)


@contextmanager
def proxied(asks: Asking) -> Iterator[OpenAI]:
    """A client of a proxy on this machine."""
    port = free_port()
    check_free(HOST, port)
    running = uvicorn.Server(uvicorn.Config(proxy(asks), HOST, port, log_level="warning"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        assert thread.is_alive()
    yield OpenAI(base_url=f"http://{HOST}:{port}/v1", api_key="none", max_retries=0, timeout=600)
    running.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def local(server: Server, bundle: Path) -> Iterator[OpenAI]:
    with proxied(asking(server, bundle)) as client:
        yield client


def how(index: int) -> dict[str, Any]:
    return {"temperature": float(index % 2), "seed": 40 + index, "max_tokens": LENGTH}


@pytest.fixture(scope="module")
def plain(server: Server, client: Client) -> list[str]:
    """What the server says without drafts."""
    off = {"vllm_xargs": {"speculation": False}}
    asked = enumerate(ASKED)
    return [
        client(server).completions.create(model="bundled", prompt=text, extra_body=off, **how(index)).choices[0].text
        for index, text in asked
    ]


def test_the_proxy_answers_as_the_server_does_streamed_and_whole(local: OpenAI, plain: list[str]) -> None:
    calls = 0
    for index, text in enumerate(ASKED):
        whole = local.completions.create(model="any", prompt=text, **how(index))
        *_, last = chunks = list(local.completions.create(model="any", prompt=text, stream=True, **how(index)))
        assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks) == plain[index]
        for said in (whole, last):
            assert said.specext["exact"]  # type: ignore[attr-defined]
            assert said.specext["offline"] == 0  # type: ignore[attr-defined]
        assert whole.usage is not None
        assert whole.usage.completion_tokens == whole.specext["verified"]  # type: ignore[attr-defined]
        calls += whole.specext["calls"]  # type: ignore[attr-defined]
    assert calls < 0.7 * len(ASKED) * LENGTH


def test_the_command_prints_the_answer_and_how_it_came(server: Server, bundle: Path, plain: list[str]) -> None:
    place = ["--server", f"ws://{HOST}:{server.port}", "--bundle", str(bundle)]
    asked = ["client", ASKED[0], "--raw", "--max-tokens", str(LENGTH), "--seed", "40", "--lost-after", "60", *place]
    done = CliRunner().invoke(app, asked, env={"VLLM_API_KEY": KEY})
    assert done.exit_code == 0, done.output
    assert done.output.startswith(plain[0])
    assert f"{LENGTH} tokens verified in" in done.output
    assert "exactly the target's" in done.output


def test_the_command_keeps_a_file_to_itself(server: Server, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(" and nobody else's")
    asked = ["client", "Sort a list.", "--private", str(tmp_path / "mine.txt"), "--max-tokens", "8"]
    place = ["--server", f"ws://{HOST}:{server.port}", "--bundle", str(bundle)]
    done = CliRunner().invoke(app, [*asked, *place], env={"VLLM_API_KEY": KEY})
    assert done.exit_code == 0, done.output
    assert "0 tokens verified in 1 calls" in done.output


def test_chats_have_the_targets_template(server: Server, client: Client, local: OpenAI) -> None:
    asked: Any = {"messages": [{"role": "user", "content": "Sort a list."}], "temperature": 0, "max_tokens": 24}
    said = client(server).chat.completions.create(model="bundled", **asked).choices[0].message.content
    assert local.chat.completions.create(model="any", **asked).choices[0].message.content == said


def test_a_private_message_is_answered_by_the_drafter_alone(local: OpenAI) -> None:
    messages: Any = [
        {"role": "user", "content": "Sort a list."},
        {"role": "user", "content": "It is mine.", "private": True},
    ]
    said = local.chat.completions.create(model="any", messages=messages, temperature=0, max_tokens=8)
    assert said.specext["offline"] == said.usage.completion_tokens > 0  # type: ignore[attr-defined, union-attr]
    assert not said.specext["exact"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"n": 2}, "'n' is 2; only 1 is supported."),
        ({"presence_penalty": 1}, "'presence_penalty' is not supported by a client that drafts."),
        ({"temperature": 3}, "'temperature' is 3; expected a number from 0 to 2."),
        ({"prompt": ["a", "b"]}, "'prompt' must be a string."),
        ({"prompt": ""}, "the prompt is empty."),
        ({"stop": ["x"]}, "'stop' is not supported by a client that drafts."),
    ],
)
def test_what_a_client_that_drafts_cannot_do_is_refused_in_one_sentence(
    local: OpenAI, asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Exception, match="400") as refused:
        local.completions.create(**({"model": "any", "prompt": "a"} | asked))
    assert refused.value.body["message"] == sentence  # type: ignore[attr-defined]


def test_two_clients_and_eight_others_at_once(server: Server, client: Client, local: OpenAI, plain: list[str]) -> None:
    def ask(who: OpenAI, index: int) -> str:
        return who.completions.create(model="bundled", prompt=ASKED[index], **how(index)).choices[0].text

    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(ask, local if number < 2 else client(server), number % 4) for number in range(10)]
        assert [one.result() for one in asked] == [plain[number % 4] for number in range(10)]


class Relay:
    """A place on this machine that hands bytes on to a port, until it is cut."""

    def __init__(self, port: int) -> None:
        self.to, self.port, self.is_up = port, free_port(), True
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> "Relay":
        self.server = await asyncio.start_server(self._serve, HOST, self.port)
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_up:
            writer.close()
            return
        there, to = await asyncio.open_connection(HOST, self.to)
        self.writers += [writer, to]
        await asyncio.gather(self._hand_on(reader, to), self._hand_on(there, writer))

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self.is_up and (piece := await reader.read(65536)):
            writer.write(piece)
        writer.close()

    def cut(self) -> None:
        self.is_up = False
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


def over_a_cut(server: Server, bundle: Path, back_online: str) -> tuple[list[int], list[int], Done]:
    """An answer during which the network is cut: what was said alone, what it has at the end, and how it ended."""

    async def main() -> tuple[list[int], list[int], Done]:
        relay = await Relay(server.port).start()
        asks = asking(server, bundle, relay.port, back_online=back_online, offline_limit=6)
        ids: list[int] = []
        alone: list[int] = []
        async for event in asks.answer(asks.wording.of_text(ASKED[0]), Sampling(how(0)["seed"]), LENGTH):
            if isinstance(event, Done):
                relay.server.close()
                return alone, ids, event
            if isinstance(event, Retracted):
                del ids[-event.count :]
                continue
            assert isinstance(event, Said)
            ids += event.ids
            if not event.verified:
                alone += event.ids
                relay.is_up = len(alone) >= 6
            elif len(ids) >= 10 and not alone:
                relay.cut()
        raise AssertionError("no end")

    return asyncio.run(main())


@pytest.mark.parametrize("back_online", ["keep", "rewrite"])
def test_an_answer_goes_on_over_a_cut(server: Server, bundle: Path, plain: list[str], back_online: str) -> None:
    alone, ids, done = over_a_cut(server, bundle, back_online)
    assert len(alone) >= 6
    wording = asking(server, bundle).wording
    if back_online == "rewrite":
        assert done.exact
        assert wording.text(ids) == plain[0]
    else:
        assert done.traffic.offline == len(alone)
        assert plain[0].startswith(wording.text(ids[:10]))


def test_a_stream_of_the_proxy_goes_on_over_a_cut(server: Server, bundle: Path, plain: list[str]) -> None:
    """What is said without the server is held until it is verified, because a stream takes nothing back."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    relay = asyncio.run_coroutine_threadsafe(Relay(server.port).start(), loop).result()
    asks = asking(server, bundle, relay.port, back_online="rewrite", offline_limit=200)
    said, is_cut = "", False

    def cut_for_three_seconds() -> None:
        relay.cut()
        loop.call_later(3, setattr, relay, "is_up", True)

    with proxied(asks) as local:
        for chunk in local.completions.create(model="any", prompt=ASKED[0], stream=True, **how(0)):
            said += chunk.choices[0].text
            if len(said) > 20 and not is_cut:
                is_cut = True
                loop.call_soon_threadsafe(cut_for_three_seconds)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    assert is_cut
    assert said == plain[0]
    assert chunk.specext["exact"]  # type: ignore[attr-defined]


async def said_by(asks: Asking) -> None:
    async for _ in asks.answer([9, 10], Sampling(0), 4):
        pass


def test_another_key_is_refused_in_one_sentence(server: Server, bundle: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^the server wants another API key \(401\)\.$"):
        asyncio.run(said_by(asking(server, bundle, key="sk-none")))


@pytest.mark.parametrize("frame", [b"\xc1", b"", bytes(70_000), "text", b"\x93\xa4open\x01\x02"], ids=range(5))
def test_a_bad_frame_ends_its_connection_and_nothing_else(server: Server, frame: Any, local: OpenAI) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    with connect(f"ws://{HOST}:{server.port}{ROUTE}", additional_headers=headers) as socket:
        socket.send(frame)
        told = from_server(socket.recv(decode=False))
        assert isinstance(told, Error)
        assert told.code == "malformed"
        with pytest.raises(Exception, match="1008"):
            socket.recv()
    assert local.completions.create(model="any", prompt="a", max_tokens=2).choices[0].text is not None
