"""The one place that knows where vLLM keeps what it moved between the versions that we work with."""

try:
    from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups, get_kv_cache_groups
except ImportError:  # vLLM 0.32
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups

__all__ = ["get_kv_cache_config_from_groups", "get_kv_cache_groups"]
