"""What refusals see of a KV connector."""

from types import SimpleNamespace
from typing import Any


def of_connector(name: str, policy: str = "fail", **own: Any) -> SimpleNamespace:
    return SimpleNamespace(kv_connector=name, kv_load_failure_policy=policy, kv_connector_extra_config=own)
