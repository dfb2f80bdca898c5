"""What the API says of gateways: the way from a port to a service, and the certificate on it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.certificates import write_certificates
from tests.support.credentials import write_credential
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

GATEWAYS = """\
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["./*.test"], tls: {httpsRedirect: true}}
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: [reviews.test], tls: {mode: SIMPLE, credentialName: web}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: late, namespace: shop}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 8443, name: https, protocol: HTTPS}, hosts: ["*"], tls: {mode: SIMPLE, credentialName: gone}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: front, namespace: shop}
spec:
  hosts: [reviews.test, other.example]
  gateways: [edge]
  http:
  - match: [{uri: {prefix: /api}}]
    route: [{destination: {host: reviews.test}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: foreign, namespace: elsewhere}
spec:
  hosts: [reviews.test]
  gateways: [shop/edge]
  http: [{route: [{destination: {host: reviews.test}}]}]
"""


async def test_a_gateway_tells_the_way_from_a_port_to_a_service_and_its_certificate(tmp_path: Path) -> None:
    config, secrets = tmp_path / "config", tmp_path / "secrets"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE + "---\n" + GATEWAYS)
    write_credential(secrets / "shop", "web", write_certificates(tmp_path, "web", dns=("reviews.test",)))
    async with (
        running_plane(config, secrets_dir=secrets) as plane,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):

        async def get(path: str) -> Any:
            return (await client.get(f"http://{plane.addresses.http}/api/v1{path}")).json()

        found = await get("/gateways")
        assert [(each["name"], each["severity"]) for each in found["items"]] == [("late", "error"), ("edge", "warning")]
        assert found["items"][0]["why"] == "port 8443: the credential gone is not known in namespace shop"
        assert found["items"][1]["why"] == "no connected proxy serves it"

        edge = await get("/gateways/shop/edge")
        plain, secure = edge["servers"]
        assert (plain["server"]["redirects"], plain["server"]["tls"]) == (True, "")
        assert (secure["server"]["tls"], secure["server"]["routes"]) == ("SIMPLE", 2)
        assert secure["server"]["leads_to"] == [{"namespace": "shop", "host": "reviews.test"}]
        certificate = secure["server"]["certificates"][0]
        assert (certificate["name"], certificate["problem"]) == ("web", "")
        assert datetime.fromisoformat(certificate["expires"]).tzinfo is not None
        trees = {each["object"]: each for each in secure["virtual_services"]}
        assert trees["VirtualService/shop/front"]["hosts"] == ["reviews.test"], "of its hosts, those of the server"
        rule = trees["VirtualService/shop/front"]["http"][0]
        assert rule["match"] == ["path begins with /api"]
        assert (rule["to"][0]["host"], rule["to"][0]["healthy"]) == ("reviews.test", 1)
        assert [each["object"] for each in plain["virtual_services"]] == ["VirtualService/shop/front"], (
            "./ lets in the gateway's own namespace alone"
        )
        missing = await client.get(f"http://{plane.addresses.http}/api/v1/gateways/shop/none")
        assert (missing.status_code, missing.json()["error"]) == (404, "no gateway none in namespace shop")


async def test_a_service_tells_its_use_and_the_gateways_that_lead_to_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SERVICE + "---\n" + GATEWAYS)
    async with running_plane(tmp_path) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        base = f"http://{plane.addresses.http}/api/v1/services"
        row = (await client.get(base)).json()["items"][0]
        assert {name: row[name] for name in ("host", "clients", "routes", "mtls")} == {
            "host": "reviews.test",
            "clients": 0,
            "routes": 2,
            "mtls": "",
        }
        assert (await client.get(f"{base}/shop/reviews.test")).json()["called_by"] == []
        routes = (await client.get(f"{base}/shop/reviews.test/routes")).json()
        assert [(each["gateway"], each["object"]) for each in routes["gateways"]] == [
            ("shop/edge", "VirtualService/elsewhere/foreign"),
            ("shop/edge", "VirtualService/shop/front"),
        ]


async def test_a_gateway_whose_newest_version_is_refused_is_not_said_to_be_well(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GATEWAYS)
    async with running_plane(tmp_path) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        (tmp_path / "a.yaml").write_text(GATEWAYS.replace("number: 8443", "number: many"))

        async def late() -> dict[str, Any]:
            reply = await client.get(f"http://{plane.addresses.http}/api/v1/gateways?q=late")
            (row,) = reply.json()["items"]
            return {**row}

        async def is_refused() -> bool:
            return bool((await late())["state"] == "refused")

        await eventually(is_refused)
        assert "expected a whole number" in (await late())["why"]
