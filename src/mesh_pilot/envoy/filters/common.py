"""How a filter is named and wrapped."""

from __future__ import annotations

from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from google.protobuf import message

from mesh_pilot.envoy.core.protobuf import any_of


def http_filter(name: str, config: message.Message) -> hcm_pb2.HttpFilter:
    return hcm_pb2.HttpFilter(name=name, typed_config=any_of(config))
