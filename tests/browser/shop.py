"""A shop, as the pictures of the page show it: well, and with something wrong in each place of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from mesh_pilot.model.events import Endpoints, Event, Upsert
from mesh_pilot.model.service import Endpoint, Health, Port, Protocol, Service
from mesh_pilot.model.traffic import RowKind, TrafficRow
from mesh_pilot.traffic.table import SLOTS, ReportingProxy
from tests.support.manifests import manifest
from tests.support.traffic_counts import Planted, reporting, row

DOMAIN = "shop.mesh.internal"
REVIEWS = f"reviews.{DOMAIN}"
FRONT = "shop.example.com"
LATE = "api.example.com"
"""A host whose VirtualService names a Gateway that does not exist."""

COUNTS = {"web": 2, "cart": 2, "catalog": 3, "checkout": 2, "ratings": 1, "search": 2, "payments": 2, "ledger": 2}
"""Services with the number of their endpoints."""

SERVICE = """
hosts: [$name.shop.mesh.internal]
location: MESH_INTERNAL
resolution: STATIC
ports: [{number: 8080, name: http, protocol: HTTP}]
endpoints:
"""

WELL = (
    manifest(
        "ServiceEntry",
        "reviews",
        SERVICE
        + """\
- {address: 10.1.9.1, labels: {app: reviews, version: v1}, locality: eu/a, serviceAccount: reviews}
- {address: 10.1.9.2, labels: {app: reviews, version: v1}, locality: eu/b, serviceAccount: reviews}
- {address: 10.1.9.3, labels: {app: reviews, version: v2}, locality: eu/b, serviceAccount: reviews}
""",
        name="reviews",
    )
    + manifest(
        "DestinationRule",
        "reviews",
        """
host: reviews.shop.mesh.internal
subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
""",
    )
    + manifest(
        "VirtualService",
        "reviews",
        """
hosts: [reviews.shop.mesh.internal]
http:
- name: testers
  match: [{headers: {end-user: {exact: jason}}}]
  route: [{destination: {host: reviews.shop.mesh.internal, subset: v2}}]
  timeout: 5s
  retries: {attempts: 3}
- route:
  - {destination: {host: reviews.shop.mesh.internal, subset: v1}, weight: 90}
  - {destination: {host: reviews.shop.mesh.internal, subset: v2}, weight: 10}
""",
    )
    + manifest(
        "VirtualService",
        "cart",
        """
hosts: [cart.shop.mesh.internal]
http: [{timeout: 2s, route: [{destination: {host: cart.shop.mesh.internal}}]}]
""",
    )
    + manifest(
        "VirtualService",
        "front",
        """
hosts: [shop.example.com]
gateways: [edge]
http:
- match: [{uri: {prefix: /cart}}]
  route: [{destination: {host: cart.shop.mesh.internal}}]
- match: [{uri: {prefix: /pay}}]
  route: [{destination: {host: checkout.shop.mesh.internal}}]
- match: [{uri: {prefix: /api}}]
  rewrite: {uri: /}
  route: [{destination: {host: catalog.shop.mesh.internal}}]
- route:
  - {destination: {host: web.shop.mesh.internal}, weight: 95}
  - {destination: {host: search.shop.mesh.internal}, weight: 5}
""",
    )
    + manifest(
        "Gateway",
        "edge",
        """
selector: {app: edge}
servers:
- {port: {number: 80, name: http, protocol: HTTP}, hosts: [shop.example.com], tls: {httpsRedirect: true}}
- port: {number: 443, name: https, protocol: HTTPS}
  hosts: [shop.example.com]
  tls: {mode: SIMPLE, credentialName: shop}
""",
    )
    + manifest("PeerAuthentication", "ledger", "{selector: {matchLabels: {app: ledger}}, mtls: {mode: STRICT}}")
    + manifest(
        "AuthorizationPolicy",
        "payments",
        """
selector: {matchLabels: {app: payments}}
rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/checkout]}}]}]
""",
    )
)

FAULTS = (
    manifest("ServiceEntry", "mail", "{hosts: [mail.test], ports: [{number: many, name: http, protocol: HTTP}]}")
    + manifest(
        "VirtualService",
        "api",
        """
hosts: [api.example.com]
gateways: [egde]
http: [{route: [{destination: {host: catalog.shop.mesh.internal}}]}]
""",
    )
    + manifest(
        "VirtualService",
        "search",
        """
hosts: [search.shop.mesh.internal]
http: [{route: [{destination: {host: search.shop.mesh.internal, subset: v2}}]}]
""",
    )
)
"""An object that validation refuses, a host whose gateway does not exist, and a route to a subset that does not."""


LEGACY = manifest("ServiceEntry", "legacy", SERVICE + "- {address: 10.1.99.1, labels: {app: legacy}}\n", name="legacy")
"""A service that old proxies refuse."""

REFUSAL = (
    b"legacy.shop.mesh.internal",
    "Error adding/updating cluster(s) outbound|8080||legacy.shop.mesh.internal: unsupported field in this build",
)


def objects() -> str:
    """The objects of a shop that is well."""
    return WELL + "".join(_services())


def _services() -> Iterator[str]:
    for number, (name, count) in enumerate(COUNTS.items(), 1):
        endpoints = (
            f"- {{address: 10.1.{number}.{at}, labels: {{app: {name}}}, locality: eu/a, serviceAccount: {name}}}\n"
            for at in range(1, count + 1)
        )
        yield manifest("ServiceEntry", name, SERVICE + "".join(endpoints), name=name)


def registry(*, is_ill: bool = False) -> Sequence[Event]:
    """What a registry gives: three services; where it is ill, one is down, and one has no endpoint."""
    events: list[Event] = []
    for number, name in enumerate(("billing", "invoices", "mailer"), 1):
        service = Service(f"{name}.service.consul", "default", (Port(8080, "http", Protocol.HTTP),), registry="Consul")
        health = Health.UNHEALTHY if is_ill and name == "billing" else Health.HEALTHY
        count = 0 if is_ill and name == "mailer" else 2
        endpoints = tuple(
            Endpoint(f"10.3.{number}.{at}", 8080, "http", labels={"app": name}, health=health)
            for at in range(1, count + 1)
        )
        events += [Upsert("consul", service), Upsert("consul", Endpoints(service.key, endpoints))]
    return events


CALLS = {
    "edge": {"web": 240, "cart": 60, "checkout": 30, "catalog": 90},
    "web": {"catalog": 320, "search": 70, "reviews": 150},
    "catalog": {"reviews": 210, "search": 20},
    "reviews": {"ratings": 180},
    "cart": {"catalog": 40, "billing.service.consul": 10},
    "checkout": {"cart": 30, "payments": 30, "mailer.service.consul": 5},
    "payments": {"ledger": 25, "billing.service.consul": 30},
}
"""Requests in ten seconds, by caller and called."""


def plant(planted: Planted, *, is_ill: bool = False) -> None:
    """Ten minutes of the shop's calls; where it is ill, calls of the ledger fail since a minute."""
    for slots, share in ((SLOTS - 6, 0), (6, 0.2 if is_ill else 0)):
        rows = {caller: [*_rows(callees, share)] for caller, callees in CALLS.items()}
        rows["payments"].append(row("inbound_0.0.0.0_8080;", RowKind.LISTENER, allowed=27, denied=3))
        for name in COUNTS:
            arrived = sum(callees.get(name, 0) for callees in CALLS.values())
            rows.setdefault(name, []).append(row("inbound|8080||", requests=arrived + 5 * (name == "search")))
        planted.plant(*((_proxy(name), own) for name, own in rows.items()), slots=slots)


def _proxy(name: str) -> ReportingProxy:
    number = [*COUNTS].index(name) + 1 if name in COUNTS else 9
    found = reporting(f"{name}-1.shop", name, f"10.1.{number}.1")
    return attrs.evolve(found, node=found.node.replace("sidecar~", "router~")) if name == "edge" else found


def _rows(callees: Mapping[str, int], share: float) -> Iterator[TrafficRow]:
    for name, requests in callees.items():
        host = name if "." in name else f"{name}.{DOMAIN}"
        errors = round(requests * share) if name == "ledger" else requests // 100
        yield row(f"outbound|8080||{host}", requests=requests, errors=errors, in_flight=requests // 50)
