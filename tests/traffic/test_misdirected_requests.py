"""HTTPS listeners of the Gateway API on one port: requests on another listener's connection get 421."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import attrs
import httpx
import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.config import ConfigKey
from tests.support.edge import secure
from tests.support.manifests import at, service

pytestmark = pytest.mark.envoy

EDGE = EnvoyNode(
    "edge-1", "shop", "127.0.0.3", type="router", labels={"gateway.networking.k8s.io/gateway-name": "edge"}
)
SPLIT = attrs.evolve(EDGE, metadata={**EDGE.metadata, "VIRTUAL_HOSTS": "split"})
_HEAD = "---\napiVersion: gateway.networking.k8s.io/v1\n"

LISTENERS = {
    "any": "",
    "one": "one.test",
    "wide": "*.wide.test",
    "narrow": "narrow.wide.test",
    "bare": "bare.wide.test",
}
ROUTES = {
    "any": "hostnames: [any.test, narrow.wide.test]",
    "one": "hostnames: []",
    "wide": "hostnames: [a.wide.test, narrow.wide.test]",
    "narrow": "hostnames: []",
}
ASKED = {
    # SNI, host: status, and the listener's route that answers
    ("any.test", "any.test"): (200, "any"),
    ("any.test", "one.test"): (421, ""),
    ("any.test", "unknown.test"): (404, ""),
    ("any.test", "narrow.wide.test"): (421, ""),
    ("one.test", "one.test"): (200, "one"),
    ("one.test", "any.test"): (421, ""),
    ("one.test", "unknown.test"): (421, ""),
    ("a.wide.test", "a.wide.test"): (200, "wide"),
    ("b.wide.test", "a.wide.test"): (200, "wide"),
    ("a.wide.test", "b.wide.test"): (404, ""),
    ("a.wide.test", "narrow.wide.test"): (421, ""),
    ("a.wide.test", "bare.wide.test"): (421, ""),
    ("a.wide.test", "unknown.test"): (421, ""),
    ("narrow.wide.test", "narrow.wide.test"): (200, "narrow"),
    ("narrow.wide.test", "a.wide.test"): (421, ""),
    ("bare.wide.test", "bare.wide.test"): (404, ""),
    ("bare.wide.test", "a.wide.test"): (421, ""),
    ("unknown.test", "any.test"): (200, "any"),
}


def objects(port: int) -> str:
    tls = "tls: {certificateRefs: [{name: edge}]}"
    listeners = ", ".join(
        f"{{name: {name}, port: {port}, protocol: HTTPS, {tls}{host and f', hostname: {host!r}'}}}"
        for name, host in LISTENERS.items()
    )
    gateway = (
        f"{_HEAD}kind: Gateway\nmetadata: {{name: edge, namespace: shop}}\n"
        f"spec: {{gatewayClassName: istio, listeners: [{listeners}]}}\n"
    )
    to = "{group: networking.istio.io, kind: Hostname, name: app.test, port: 80}"
    says = "{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-listener, value: NAME}]}}"
    return gateway + "".join(
        f"{_HEAD}kind: HTTPRoute\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n"
        f"  parentRefs: [{{name: edge, sectionName: {name}}}]\n  {hosts}\n"
        f"  rules: [{{filters: [{says.replace('NAME', name)}], backendRefs: [{to}]}}]\n"
        for name, hosts in ROUTES.items()
    )


@pytest.mark.parametrize("node", [EDGE, SPLIT], ids=["whole", "split"])
async def test_a_request_is_served_by_the_listener_of_its_host_only(
    tmp_path: Path, free_ports: Callable[[int], list[int]], node: EnvoyNode
) -> None:
    (port,) = free_ports(1)
    async with secure(tmp_path) as edge:
        names = sorted({sni for sni, _ in ASKED})
        own = edge.credential("edge", *names)
        await edge.mesh.apply(service("app.test", 80, at(edge.app)) + objects(port))
        await edge.mesh.envoy(node, delta=node is SPLIT)
        context = ssl.create_default_context(cafile=str(own.ca))
        found = {}
        for sni in dict.fromkeys(sni for sni, _ in ASKED):
            # All requests of a client are on one connection: as of a browser that has a certificate for all hosts.
            async with httpx.AsyncClient(verify=context, timeout=60, trust_env=False, http2=True) as client:
                for host in (host for its, host in ASKED if its == sni):
                    url, named = f"https://127.0.0.1:{port}/", {"host": host}
                    reply = await client.get(url, headers=named, extensions={"sni_hostname": sni})
                    found[sni, host] = (reply.status_code, reply.headers.get("x-listener", ""))
        assert found == ASKED
        status = edge.mesh.plane.state.world.object_status(ConfigKey("KubernetesGateway", "shop", "edge"))
        assert status is not None
        said = {
            each["name"]: condition["message"]
            for each in status["listeners"]
            for condition in each["conditions"]
            if condition["type"] == "OverlappingTLSConfig"
        }
        assert said["wide"] == "The hostname overlaps with that of any, narrow, and bare"
        assert said["one"] == "The hostname overlaps with that of any"
