"""What EnvoyFilters do to requests through a real Envoy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.patching import LUA, envoy_filter, in_http_filter, patch

pytestmark = pytest.mark.envoy

CLIENT = EnvoyNode("web", "shop", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)

SERVICE = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: api, namespace: shop}}
spec:
  hosts: [api.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: http, protocol: HTTP}}]
  endpoints: [{{address: {backend.host}, ports: {{http: {backend.port}}}}}]
"""
ADDED = """
name: added
address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
filter_chains:
- filters:
  - name: envoy.filters.network.direct_response
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config
      response: {{inline_string: "HTTP/1.1 202 Accepted\\r\\nconnection: close\\r\\ncontent-length: 0\\r\\n\\r\\n"}}
"""


def marks(header: str) -> str:
    """A Lua script that marks responses."""
    return f'function envoy_on_response(h) h:headers():add("{header}", "yes") end'


ROUTER = in_http_filter("envoy.filters.http.router")
BY_NAME = {
    "name": "fetched",
    "config_discovery": {
        "config_source": {"ads": {}, "resource_api_version": "V3"},
        "type_urls": [LUA],
    },
}


async def answers(mesh: Fleet, url: str, status: int, **headers: str) -> None:
    """Wait for a reply of this status that has these headers (``none``: has them not)."""

    async def so() -> bool:
        reply = await mesh.get(url, host="api.test", headers={"connection": "close"})
        found = {name: reply.headers.get(name.replace("_", "-"), "none") for name in headers}
        return reply.status_code == status and found == headers

    await eventually(so, what=f"{url} answers {status} {headers}")


@pytest.mark.smoke
async def test_filters_routes_and_listeners_are_patched(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    port, extra = free_ports(2)
    url = f"http://127.0.0.1:{port}/"
    written = {"name": "written", "typed_config": {"@type": LUA, "inline_code": marks("x-written")}}
    fetched = {"name": "fetched", "typed_config": {"@type": LUA, "inline_code": marks("x-fetched")}}
    teapot = "{name: tea, match: {path: /tea}, direct_response: {status: 418}}"
    patches = envoy_filter(
        patch("HTTP_FILTER", "INSERT_BEFORE", written, context="SIDECAR_OUTBOUND", listener=ROUTER),
        patch("HTTP_FILTER", "ADD", BY_NAME, context="SIDECAR_OUTBOUND", listener={"portNumber": port}),
        patch("EXTENSION_CONFIG", "ADD", fetched),
        patch("HTTP_ROUTE", "INSERT_FIRST", teapot, routeConfiguration={"portNumber": port}),
        patch("LISTENER", "ADD", ADDED.format(port=extra), context="SIDECAR_OUTBOUND"),
        patch("CLUSTER", "MERGE", {"connect_timeout": "soon"}),
    )
    async with fleet(tmp_path) as mesh:
        backend = await mesh.backend("api")
        await mesh.apply(SERVICE.format(port=port, backend=backend))
        await mesh.envoy(CLIENT)
        await answers(mesh, url, 200, x_written="none", x_fetched="none")
        await mesh.apply(patches, "filter.yaml")
        await answers(mesh, url, 200, x_written="yes", x_fetched="yes")
        await answers(mesh, f"{url}tea", 418)
        await answers(mesh, f"http://127.0.0.1:{extra}/", 202)
        await mesh.apply(patches.replace("x-fetched", "x-again"), "filter.yaml")
        await answers(mesh, url, 200, x_written="yes", x_fetched="none", x_again="yes")
        ((problem, proxies),) = mesh.plane.state.catalog.diagnostics().patches().items()
        assert (problem.field, proxies) == ("spec.configPatches[5]", ["web.shop"])
        (tmp_path / "config" / "filter.yaml").unlink()
        await answers(mesh, url, 200, x_written="none", x_again="none")
        await mesh.assert_all_taken()
