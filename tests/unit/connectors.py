"""What refusals see of a KV connector."""

from types import SimpleNamespace
from typing import Any


def of_connector(name: str, policy: str = "fail") -> dict[str, Any]:
    return {"connectors": [name], "transfer": SimpleNamespace(kv_load_failure_policy=policy)}
