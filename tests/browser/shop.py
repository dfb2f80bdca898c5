"""A shop, as the pictures of the page show it: well, and with something wrong in each place of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.model.events import Endpoints, Event, Upsert
from mesh_pilot.model.service import Endpoint, Health, Port, Protocol, Service
from tests.support.manifests import manifest

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
