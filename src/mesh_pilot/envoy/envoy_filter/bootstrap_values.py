"""Bootstraps in EnvoyFilters: what they may not change, and their JSON for agents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from mesh_pilot.envoy.envoy_filter.patch import PatchError

_OF_THE_AGENT: Mapping[str, str] = {
    "node": "the agent says who the proxy is; use proxyMetadata of a ProxyConfig",
    "admin": "the agent reaches Envoy there",
    "dynamic_resources": "the agent sends Envoy its configuration",
}


def check_bootstrap(value: Any) -> None:
    """Raises PatchError for a Bootstrap with a field of the agent's, and any error for one without JSON."""
    for name, reason in _OF_THE_AGENT.items():
        if value.HasField(name):
            raise PatchError(f"patch.value.{name} cannot be patched: {reason}")
    bootstrap_json(value)


def bootstrap_json(value: Message) -> str:
    """The same JSON for the same Bootstrap, everywhere."""
    return json.dumps(MessageToDict(value, preserving_proto_field_name=True), sort_keys=True)
