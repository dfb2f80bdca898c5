"""The certificate that a Gateway of the Gateway API shows to backends with a BackendTLSPolicy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.config import ConfigKey
from tests.support.certificates import serving
from tests.support.credentials import write_credential
from tests.support.edge import Secure, secure
from tests.support.envoy import eventually
from tests.support.manifests import at, service

pytestmark = pytest.mark.envoy

EDGE = EnvoyNode(
    "edge-1", "shop", "127.0.0.3", type="router", labels={"gateway.networking.k8s.io/gateway-name": "edge"}
)
_HEAD = "---\napiVersion: gateway.networking.k8s.io/v1\n"
GRANT = (
    _HEAD
    + """kind: ReferenceGrant
metadata: {name: keys, namespace: bank}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}]
  to: [{group: "", kind: Secret, name: own}]
"""
)


def gateway(port: int, ref: str) -> str:
    listener = f"{{name: http, port: {port}, protocol: HTTP}}"
    tls = f"tls: {{backend: {{clientCertificateRef: {ref}}}}}"
    spec = f"{{gatewayClassName: istio, listeners: [{listener}], {tls}}}"
    return f"{_HEAD}kind: Gateway\nmetadata: {{name: edge, namespace: shop}}\nspec: {spec}\n"


def reached(name: str, ca: Path) -> str:
    """A route by the host of a service's name, its policy of TLS, and the CA certificates for that."""
    validation = f"{{hostname: {name}.test, caCertificateRefs: [{{group: '', kind: ConfigMap, name: {name}}}]}}"
    target = f"{{group: '', kind: Service, name: {name}}}"
    return (
        f"{_HEAD}kind: BackendTLSPolicy\nmetadata: {{name: {name}, namespace: shop}}\n"
        f"spec: {{targetRefs: [{target}], validation: {validation}}}\n"
        f"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: shop}}\n"
        f"data: {{ca.crt: {json.dumps(ca.read_text())}}}\n" + route(name)
    )


def route(name: str) -> str:
    spec = f"{{parentRefs: [{{name: edge}}], hostnames: [{name}.test], rules: [{{backendRefs: [{to(name)}]}}]}}"
    return f"{_HEAD}kind: HTTPRoute\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n"


def to(name: str) -> str:
    return f"{{name: {name}, port: 80}}"


def resolved(edge: Secure) -> str:
    """The reason of the Gateway's condition ResolvedRefs."""
    status = edge.mesh.plane.state.world.object_status(ConfigKey("KubernetesGateway", "shop", "edge"))
    assert status is not None
    (found,) = (each["reason"] for each in status["conditions"] if each["type"] == "ResolvedRefs")
    return str(found)


async def test_backends_see_the_certificate_as_it_is_now(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    async with secure(tmp_path) as edge:
        # Each takes only clients whose certificate is of its own CA; the third asks for none.
        served = {name: edge.certificate(name, f"{name}.test", ca=name) for name in ("one", "two", "any")}
        config = service("plain.shop.svc.cluster.local", 80, at(edge.app)) + route("plain")
        for name, files in served.items():
            backend = await edge.mesh.backend(name, tls=serving(files, mutual=name != "any"))
            config += service(f"{name}.shop.svc.cluster.local", 80, at(backend)) + reached(name, files.ca)

        async def answers() -> dict[str, int | None]:
            url = f"http://127.0.0.1:{port}/"
            return {
                name: (await edge.mesh.get(url, host=f"{name}.test")).status_code
                for name in ("one", "two", "any", "plain")
            }

        async def come_to(reason: str, one: int | None, two: int) -> None:
            wanted = {"one": one, "two": two, "any": 200, "plain": 200}

            async def have() -> bool:
                found = await answers()
                if one is None:
                    found["one"] = None  # connections outlive the certificate that they began with
                return resolved(edge) == reason and found == wanted

            await eventually(have, what=f"{reason} with {wanted}")

        await edge.mesh.apply(config + gateway(port, "{name: own}"))
        await edge.mesh.envoy(EDGE)
        await come_to("InvalidClientCertificateRef", 503, 503)
        write_credential(edge.secrets, "own", edge.certificate("client", ca="one"))
        await come_to("ResolvedRefs", 200, 503)
        write_credential(edge.secrets, "own", edge.certificate("client", ca="two"))
        await come_to("ResolvedRefs", None, 200)
        (edge.secrets / "own" / "tls.key").write_text("garbled")
        await come_to("InvalidClientCertificateRef", 503, 503)
        write_credential(edge.secrets, "own", edge.certificate("client", ca="two"))
        await come_to("ResolvedRefs", 503, 200)
        shutil.rmtree(edge.secrets / "own")
        await come_to("InvalidClientCertificateRef", 503, 503)

        write_credential(edge.secrets.parent / "bank", "own", edge.certificate("client", ca="one"))
        foreign = gateway(port, "{name: own, namespace: bank}")
        await edge.mesh.apply(config + foreign)
        await come_to("RefNotPermitted", 503, 503)
        await edge.mesh.apply(config + foreign + GRANT)
        await come_to("ResolvedRefs", 200, 503)
        await edge.mesh.apply(config + foreign)
        await come_to("RefNotPermitted", 503, 503)
        await edge.mesh.apply(config + gateway(port, "{name: roots, kind: ConfigMap}"))
        await come_to("InvalidClientCertificateRef", 503, 503)
