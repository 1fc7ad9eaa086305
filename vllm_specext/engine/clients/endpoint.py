"""The WebSocket on which clients that draft talk to a server. vLLM takes it for an endpoint plug-in. It is there where
the launch asks for ``client_drafts``, and nowhere else."""

import hashlib
from argparse import Namespace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, WebSocket
from starlette.websockets import WebSocketDisconnect
from vllm import envs

from vllm_specext.engine.clients.verifier import EngineVerifier
from vllm_specext.methods.checkpoints import SAFETENSORS
from vllm_specext.methods.end_ids import ends_of
from vllm_specext.remote.connection import LinkLost
from vllm_specext.remote.fingerprint import fingerprint
from vllm_specext.remote.protocol import MAX_NODES, Welcome
from vllm_specext.remote.server import Served, converse
from vllm_specext.remote.sessions import Sessions
from vllm_specext.speculative_config import keys

ROUTE = "/v1/specext/drafts"
POLICY_VIOLATION = 1008
"""A code of RFC 6455."""


class RemoteDrafting:
    """vLLM's ``EndpointPlugin``. It has no entry point: vLLM would warn of it in every server's log."""

    name = "vllm_specext_remote"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        if asks_for_clients(app.state.args):
            app.add_api_websocket_route(ROUTE, drafts)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        if asks_for_clients(args):
            state.specext_clients = served_by(engine_client)


def asks_for_clients(args: Namespace) -> bool:
    """Whether the launch wants clients to draft."""
    speculative = getattr(args, "speculative_config", None)
    return isinstance(speculative, dict) and bool(keys(speculative).get("client_drafts"))


def served_by(engine_client: Any) -> Served:
    """What all conversations share."""
    vllm_config = engine_client.vllm_config
    config, model = vllm_config.speculative_config, vllm_config.model_config
    layer = config.draft_overrides["moa_shape"]["cross_attention"]
    nodes = min(config.num_speculative_tokens, MAX_NODES)
    limits = Welcome(0, str(model.served_model_name)[:200], model.get_vocab_size(), model.max_model_len, nodes,
                     min(config.tree.depth, nodes))  # fmt: skip
    return Served(
        limits,
        fingerprint(Path(config.model) / SAFETENSORS),
        layer["kv_heads"],
        layer["head_dim"],
        frozenset(ends_of(model)),
        Sessions(model.max_model_len),
        EngineVerifier(engine_client),
    )


async def drafts(websocket: WebSocket) -> None:
    await websocket.accept()
    await converse(SocketConnection(websocket), key_of(websocket), websocket.app.state.specext_clients)


def key_of(websocket: WebSocket) -> str:
    """Who asks: a digest of the API key that vLLM has let in, or of the place that asks where no key is wanted; what a
    client writes of itself then counts for nothing."""
    if any(websocket.app.state.args.api_key or [envs.VLLM_API_KEY]):
        who = websocket.headers.get("authorization", "").partition(" ")[2]
    else:
        who = websocket.client.host if websocket.client is not None else ""
    return hashlib.sha256(who.encode()).hexdigest()


class SocketConnection:
    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def send(self, frame: bytes) -> None:
        try:
            await self._websocket.send_bytes(frame)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise LinkLost("closed") from error

    async def receive(self) -> bytes:
        try:
            message = await self._websocket.receive()
        except RuntimeError as error:  # after the end
            raise LinkLost("closed") from error
        if message["type"] == "websocket.disconnect":
            raise LinkLost("closed")
        # A frame of text is none of the protocol's, and told so.
        return message.get("bytes") or b""

    async def close(self) -> None:
        try:
            await self._websocket.close(POLICY_VIOLATION)
        except RuntimeError:
            return
