"""Waits that end sooner than they do for users, and listeners that wait for what nobody serves."""

from __future__ import annotations

import pytest

from mesh_pilot.safety.quarantine import cases, clients
from mesh_pilot.xds.ads import warming, warming_follower

FROM_ANOTHER_SERVER = """\
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: partner, namespace: shop}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: SIDECAR_OUTBOUND
      listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}
    patch:
      operation: INSERT_FIRST
      value:
        name: partner-filter
        config_discovery:
          type_urls: [type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer]
          config_source:
            resource_api_version: V3
            initial_fetch_timeout: 600s
            api_config_source:
              api_type: GRPC
              transport_api_version: V3
              grpc_services: [{google_grpc: {target_uri: "127.0.0.1:9", stat_prefix: partner}}]
"""
"""A filter whose settings come from a server that is away: the control plane cannot know that it never comes."""


def shorten_warming(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have what warms shown, and told quarantine, after so many seconds."""
    for module in (warming, warming_follower, clients, cases):
        monkeypatch.setattr(module, "WARMING_SECONDS", seconds)
