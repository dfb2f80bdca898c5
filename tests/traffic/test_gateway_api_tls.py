"""The Gateway API's TLSRoutes and HTTPRoutes at listeners with TLS: passed through, terminated, and cut off."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from string import Template

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from tests.support.certificates import serving
from tests.support.edge import secure
from tests.support.manifests import at, service

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

EDGE = EnvoyNode(
    "edge-1", "shop", "127.0.0.3", type="router", labels={"gateway.networking.k8s.io/gateway-name": "edge"}
)
OBJECTS = """
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  listeners:
  - {name: passed, port: $passed, protocol: TLS, tls: {mode: Passthrough}}
  - {name: ended, port: $ended, protocol: TLS, tls: {certificateRefs: [{name: edge}]}}
  - {name: https, port: $https, protocol: HTTPS, hostname: https.test, tls: {certificateRefs: [{name: edge}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: passed, namespace: shop}
spec:
  parentRefs: [{name: edge, sectionName: passed}]
  hostnames: [passed.test]
  rules: [{backendRefs: [{group: networking.istio.io, kind: Hostname, name: safe.internal, port: 443}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: ended, namespace: shop}
spec:
  parentRefs: [{name: edge, sectionName: ended}]
  hostnames: [ended.test]
  rules: [{backendRefs: [{group: networking.istio.io, kind: Hostname, name: plain.internal, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: https, namespace: shop}
spec:
  parentRefs: [{name: edge, sectionName: https}]
  rules: [{backendRefs: [{group: networking.istio.io, kind: Hostname, name: plain.internal, port: 80}]}]
"""


async def answered(port: int, host: str, ca: Path) -> str:
    """What comes back for a request over TLS; empty where the connection ends."""
    context = ssl.create_default_context(cafile=str(ca))
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        try:
            tls = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
            await tls.send_all(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            reply = b""
            while part := await tls.receive_some():
                reply += part
        except trio.BrokenResourceError:
            return ""
        return reply.decode()


async def test_tls_is_passed_through_or_ended_by_server_name(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    passed, ended, https = free_ports(3)
    async with secure(tmp_path) as edge:
        own = edge.credential("edge", "ended.test", "https.test", "other.test")
        inner = edge.certificate("inner", "passed.test")
        safe = await edge.mesh.backend("safe", tls=serving(inner))
        await edge.mesh.apply(
            service("safe.internal", 443, at(safe), protocol="TLS")
            + service("plain.internal", 80, at(edge.app))
            + Template(OBJECTS).substitute(passed=passed, ended=ended, https=https)
        )
        await edge.mesh.envoy(EDGE)
        assert '"name": "safe"' in await answered(passed, "passed.test", inner.ca)
        assert '"name": "app"' in await answered(ended, "ended.test", own.ca)
        assert '"name": "app"' in await answered(https, "https.test", own.ca)
        assert await answered(ended, "other.test", own.ca) == ""
        assert await answered(passed, "ended.test", own.ca) == ""
