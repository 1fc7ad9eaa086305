"""Which servers clients can draft for, and whose sessions a client has: what it writes of itself counts only where the
server wants keys."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.engine.clients.endpoint import asks_for_clients, key_of


def asked(keys: list[str] | None, authorization: str | None, host: str = "192.0.2.1") -> str:
    headers = {} if authorization is None else {"authorization": authorization}
    app = SimpleNamespace(state=SimpleNamespace(args=SimpleNamespace(api_key=keys)))
    websocket: Any = SimpleNamespace(app=app, headers=headers, client=SimpleNamespace(host=host))
    return key_of(websocket)


@pytest.fixture(autouse=True)
def _no_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


def test_without_keys_an_address_is_a_user() -> None:
    assert asked(None, None) == asked(None, "Bearer a") == asked([], "Bearer b")
    assert asked(None, None) != asked(None, None, host="192.0.2.2")


def test_a_key_is_a_user_however_its_scheme_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    one = asked(["a", "b"], "Bearer a")
    assert one == asked(["a", "b"], "bEARER a", host="192.0.2.2")
    assert one != asked(["a", "b"], "Bearer b")
    monkeypatch.setenv("VLLM_API_KEY", "a")
    assert asked(None, "bearer a") == one


@pytest.mark.parametrize("key", ["client_drafts", "client-drafts"])
def test_a_server_has_the_endpoint_where_its_engine_takes_trees(key: str) -> None:
    """vLLM takes dashes for underscores."""
    assert asks_for_clients(SimpleNamespace(speculative_config={"method": "moa", key: True}))
    assert not asks_for_clients(SimpleNamespace(speculative_config={"method": "moa", key: False}))
    assert not asks_for_clients(SimpleNamespace(speculative_config=None))
