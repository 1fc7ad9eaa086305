"""What a client that drafts and a server that verifies say to each other.

Every frame of the connection is one message: a msgpack array of the message's name and its fields, in their order.
Token ids are little-endian uint32, a tree's parents are bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from vllm_specext.errors import ConfigurationError

PROTOCOL = 2
MAX_FRAME = 64 << 10
"""Bytes of a client's frame."""
MAX_NODES = 128
"""Nodes of a drafted tree: their numbers fit into the byte of a parent."""
MAX_EXTRA = 64
"""Tokens that are decoded plainly for one message."""
MAX_TOKENS = 1 << 24
"""Of a text, whatever the target bears: a bound for numbers in messages."""
TOKEN_BYTES = 4
WORKING_SECONDS = 0.1
"""Between two ``Working`` of a server."""
PIECE = (MAX_FRAME - 64) // TOKEN_BYTES
"""Most token ids that a frame of ``Tokens`` has room for."""

Number = Annotated[int, Meta(ge=0, lt=1 << 32)]
"""Of a message, counted by its sender; what answers it repeats it."""
Length = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Session = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""Random, made by the client."""
Digest = Annotated[bytes, Meta(min_length=8, max_length=8)]
"""Of the tokens of a text up to a length: both have the same ones."""
Ids = Annotated[bytes, Meta(max_length=PIECE * TOKEN_BYTES)]
Milliseconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(max_length=200)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One frame."""


class Hello(Message, frozen=True, tag="hello"):
    """The first frame of a connection."""

    number: Number
    protocol: Annotated[int, Meta(ge=1, lt=1 << 16)]
    drafter: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """The drafter's fingerprint, which is the server's drafter's too."""
    rows: Annotated[str, Meta(pattern="^(int8|float16)$")]
    """How the client wants its rows; see ``rows.py``."""


class Sampling(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How tokens are drawn. What counts the tokens of an answer has no place here: a server sees the earlier tokens of
    an answer as part of the prompt."""

    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] = 1.0


class Open(Message, frozen=True, tag="open"):
    """A session with a text of ``length`` tokens, of which the server asks for what it lacks. A session that the server
    has already goes on, and belongs to this connection from now on: what another one still says of it is too late."""

    number: Number
    session: Session
    length: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    digest: Digest
    max_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    """Of the answer."""
    sampling: Sampling
    prompt: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    """How many tokens of the text are the prompt's; the rest is of an answer that was begun."""


class Tokens(Message, frozen=True, tag="tokens"):
    """The part of the text that begins at token ``first``."""

    number: Number
    session: Session
    first: Length
    ids: Ids


class Verify(Message, frozen=True, tag="verify"):
    """A tree after the first ``length`` tokens of the text, for ``Drafted.of``. The same message again has the same
    answer."""

    number: Number
    session: Session
    length: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    digest: Digest
    ids: Annotated[bytes, Meta(max_length=MAX_NODES * TOKEN_BYTES)]
    parents: Annotated[bytes, Meta(max_length=MAX_NODES)]
    rows: Length
    """How many tokens' rows the client has."""
    extra: Annotated[int, Meta(ge=0, le=MAX_EXTRA)] = 0
    """Tokens that the target is to say after the verified ones, one after the other."""


class Close(Message, frozen=True, tag="close"):
    """The session is at its end for the client."""

    number: Number
    session: Session


class Welcome(Message, frozen=True, tag="welcome"):
    """Answers ``Hello``."""

    number: Number
    model: Name
    vocabulary: Annotated[int, Meta(ge=1, lt=1 << 31)]
    max_length: Length
    """Of a text with its answer."""
    max_nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    max_levels: Annotated[int, Meta(ge=1, le=MAX_NODES)]


class Need(Message, frozen=True, tag="need"):
    """Answers ``Open``, and the last of its ``Tokens``: the server lacks the text from token ``first`` on, which is its
    length where it lacks nothing."""

    number: Number
    first: Length


class Working(Message, frozen=True, tag="working"):
    """The answer is not there yet: it is the server that takes its time, and not the link that is cut."""

    number: Number


class Rows(Message, frozen=True, tag="rows"):
    """The rows of tokens from ``first`` on, before a text's first ``Verified``."""

    number: Number
    first: Length
    rows: bytes


class Verified(Message, frozen=True, tag="verified"):
    """The tokens that follow the first ``length`` ones, of which all but the last were drafted, and the rows of the
    tokens from ``first`` on."""

    number: Number
    length: Length
    ids: Annotated[bytes, Meta(min_length=TOKEN_BYTES)]
    first: Length
    rows: bytes
    finish: Annotated[str, Meta(pattern="^(|stop|length)$")]
    """Why the answer has ended; empty where it goes on."""
    server_ms: Milliseconds
    """From the question to the engine until its answer, with what it waited for others."""


class Error(Message, frozen=True, tag="error"):
    """Why there is no answer, in a sentence. ``retry_ms``: when to ask again, or 0 for never."""

    number: Number
    code: Annotated[str, Meta(pattern="^(busy|malformed|refused|unknown|failed)$")]
    sentence: Annotated[str, Meta(max_length=1000)]
    retry_ms: Milliseconds = 0.0


FromClient = Hello | Open | Tokens | Verify | Close
FromServer = Welcome | Need | Working | Rows | Verified | Error
_encoder = msgspec.msgpack.Encoder()
_of_client, _of_server = msgspec.msgpack.Decoder(FromClient), msgspec.msgpack.Decoder(FromServer)


class MalformedError(ConfigurationError):
    """A frame that is no message, or one whose parts contradict each other."""


def encode(message: FromClient | FromServer) -> bytes:
    return _encoder.encode(message)


def from_client(frame: bytes) -> FromClient:
    if len(frame) > MAX_FRAME:
        raise MalformedError(f"a frame has {len(frame)} bytes, but at most {MAX_FRAME} are allowed.")
    with _as_malformed():
        return _of_client.decode(frame)


def from_server(frame: bytes) -> FromServer:
    with _as_malformed():
        return _of_server.decode(frame)


@contextmanager
def _as_malformed() -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"a frame is no message of protocol {PROTOCOL}: {error}.") from None


def ids_to_bytes(ids: np.ndarray | list[int]) -> bytes:
    return np.asarray(ids, dtype="<u4").tobytes()


def ids_from_bytes(ids: bytes, vocabulary: int) -> np.ndarray:
    """``[n]`` int64, each less than ``vocabulary``."""
    if len(ids) % TOKEN_BYTES:
        raise MalformedError(f"token ids have {len(ids)} bytes; each has {TOKEN_BYTES}.")
    found = np.frombuffer(ids, dtype="<u4").astype(np.int64)
    if len(found) and (largest := int(found.max())) >= vocabulary:
        raise MalformedError(f"token id {largest} is not one of the target's {vocabulary}.")
    return found
