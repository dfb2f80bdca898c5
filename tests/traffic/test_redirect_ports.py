"""The port of a redirect that names none: the scheme's own, whatever port the client's Host header has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import Template

import attrs
import pytest

from mesh_pilot.world.names import GATEWAY_NAME
from tests.support.edge import gateway
from tests.support.fleet import fleet
from tests.support.manifests import at, routes, service
from tests.support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

RULES = """
- match: [{uri: {prefix: /https}}]
  redirect: {scheme: https}
- match: [{uri: {prefix: /plain}}]
  redirect: {scheme: http, redirectCode: 302}
- match: [{uri: {prefix: /default}}]
  redirect: {uri: /new, derivePort: FROM_PROTOCOL_DEFAULT}
- match: [{uri: {prefix: /request}}]
  redirect: {scheme: https, derivePort: FROM_REQUEST_PORT}
- match: [{uri: {prefix: /port}}]
  redirect: {scheme: https, port: 8443}
- match: [{uri: {prefix: /http-port}}]
  redirect: {uri: /new, port: 80}
- match: [{uri: {prefix: /host}}]
  redirect: {scheme: https, authority: new.test}
- redirect: {uri: /kept}
"""

KUBE = """
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: kube, namespace: shop}
spec:
  gatewayClassName: istio
  listeners: [{name: http, port: $port, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: away, namespace: shop}
spec:
  parentRefs: [{name: kube}]
  rules:
  - matches: [{path: {value: /plain}}]
    filters: [{type: RequestRedirect, requestRedirect: {scheme: http}}]
  - matches: [{path: {value: /same}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /new}}}]
  - filters: [{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}]
"""


async def test_a_redirect_to_a_scheme_keeps_no_port_of_another(tmp_path: Path, free_ports: Ports) -> None:
    port, secure, kube = free_ports(3)
    servers = """
    - {port: {number: $port, name: http, protocol: HTTP}, hosts: [shop.test]}
    - port: {number: $secure, name: secure, protocol: HTTP}
      hosts: [a.secure.test, "*.b.test"]
      tls: {httpsRedirect: true}
    """
    config = gateway("edge", servers, port=port, secure=secure)
    config += routes("shop.test", RULES, gateways=("edge",)) + Template(KUBE).substitute(port=kube)
    async with fleet(tmp_path, config) as mesh:
        await mesh.envoy(attrs.evolve(EDGE, labels={"istio": "edge", GATEWAY_NAME: "kube"}))

        async def moved(at: int, path: str, host: str, **headers: str) -> str:
            reply = await mesh.get(f"http://127.0.0.1:{at}{path}", host=host, headers=headers)
            return str(reply.headers.get("location", reply.status_code))

        for host in ("shop.test", f"shop.test:{port}", "shop.test:80", "shop.test:9"):
            plain = "shop.test" if host in ("shop.test", "shop.test:80") else "shop.test:443"
            assert await moved(port, "/https/a?b=c", host) == f"https://{plain}/https/a?b=c"
            old = {"shop.test": "shop.test", "shop.test:80": "shop.test:80"}.get(host, "shop.test:80")
            assert await moved(port, "/plain", host) == f"http://{old}/plain"
            assert await moved(port, "/default", host) == f"http://{old}/new"
            assert await moved(port, "/request", host) == f"https://shop.test:{port}/request"
            assert await moved(port, "/port", host) == "https://shop.test:8443/port"
            assert await moved(port, "/http-port", host) == "http://shop.test:80/new"
            assert await moved(port, "/host", host) == "https://new.test/host"
            assert await moved(port, "/", host) == f"http://{host}/kept"
            name = host.replace("shop.test", "a.secure.test")
            assert await moved(secure, "/x?y", name) == f"https://{plain.replace('shop.test', 'a.secure.test')}/x?y"
            assert await moved(kube, "/", host) == f"https://{plain}/"
            assert await moved(kube, "/plain", host) == f"http://{old}/plain"
            assert await moved(kube, "/same", host) == f"http://shop.test:{kube}/new"
        assert await moved(secure, "/x", f"x.b.test:{secure}") == "https://x.b.test:443/x"
        await mesh.assert_all_taken()


async def test_a_sidecar_redirects_to_the_schemes_port_too(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        web = await mesh.backend("web")
        rules = (
            "- match: [{uri: {prefix: /a}}]\n  redirect: {scheme: https}\n- route: [{destination: {host: a.test}}]\n"
        )
        await mesh.apply(service("a.test", port, at(web)) + routes("a.test", rules))
        await mesh.envoy(CLIENT)
        reply = await mesh.get(f"http://127.0.0.1:{port}/a", host=f"a.test:{port}")
        assert reply.headers["location"] == "https://a.test:443/a"
        assert set(await mesh.names(f"http://127.0.0.1:{port}/b", host=f"a.test:{port}", count=1)) == {"web"}
        await mesh.assert_all_taken()
