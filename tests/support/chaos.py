"""Random meshes: a folder of valid and invalid Istio objects that all refer to each other, edited at random.

    mess = Mess(random.Random(1), ports, gateway_ports, endpoints)
    mess.edit()         # new, changed and deleted files
    mess.files          # file name -> content, None for a deleted one

One service, ``CONTROL``, is left alone by whatever is valid, so that requests to it must never fail.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Spec = dict[str, Any]

NAMESPACES = ("shop", "other")
HOSTS = tuple(f"s{n}.chaos.test" for n in range(5))
CONTROL = "control.fixed.test"

_GROUP = {
    "PeerAuthentication": "security.istio.io/v1",
    "EnvoyFilter": "networking.istio.io/v1alpha3",
}

POLICIES: tuple[Spec, ...] = (
    {"loadBalancer": {"simple": "RANDOM"}},
    {"loadBalancer": {"simple": "LEAST_REQUEST"}},
    {"loadBalancer": {"simple": "PASSTHROUGH"}},
    {"loadBalancer": {"consistentHash": {"httpHeaderName": "x-user"}}},
    {"loadBalancer": {"consistentHash": {"useSourceIp": True, "maglev": {}}}},
    {"connectionPool": {"tcp": {"maxConnections": 7, "connectTimeout": "3s"}, "http": {"h2UpgradePolicy": "UPGRADE"}}},
    {"outlierDetection": {"consecutive5xxErrors": 3, "interval": "5s"}},
    {"tls": {"mode": "SIMPLE", "sni": "x.test"}},
    {"tls": {"mode": "ISTIO_MUTUAL"}},
    {"tls": {"mode": "DISABLE"}},
)

FILTERS: tuple[Spec, ...] = (
    {
        "applyTo": "CLUSTER",
        "match": {"context": "SIDECAR_OUTBOUND"},
        "patch": {"operation": "MERGE", "value": {"connect_timeout": "4s"}},
    },
    {
        "applyTo": "CLUSTER",
        "match": {"context": "ANY"},
        "patch": {
            "operation": "ADD",
            "value": {"name": "added", "type": "STATIC", "connect_timeout": "1s"},
        },
    },
    {
        "applyTo": "HTTP_FILTER",
        "match": {"listener": {"filterChain": {"filter": {"name": "envoy.filters.network.http_connection_manager"}}}},
        "patch": {
            "operation": "INSERT_FIRST",
            "value": {
                "name": "envoy.filters.http.lua",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
                    "default_source_code": {"inline_string": "function envoy_on_request(handle) end"},
                },
            },
        },
    },
    {
        "applyTo": "VIRTUAL_HOST",
        "match": {"context": "ANY"},
        "patch": {"operation": "MERGE", "value": {"include_request_attempt_count": False}},
    },
    {"applyTo": "CLUSTER", "patch": {"operation": "MERGE", "value": {"no_such_field": 1}}},
)

WRONG = (
    "kind: [",
    "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: x}\nspec: {hosts: 7}",
    "apiVersion: networking.istio.io/v1\nkind: NoSuchKind\nmetadata: {name: x}\nspec: {}",
    "\x00\x01 not YAML at all",
    "",
)


class Mess:
    """A folder's content. State: the files, and what the last edit did."""

    def __init__(
        self, pick: random.Random, ports: Sequence[int], gateway_ports: Sequence[int], endpoints: Sequence[int]
    ) -> None:
        """``ports`` are those of services, ``endpoints`` those of HTTP servers on the loopback."""
        self.pick = pick
        self.ports = ports
        self.gateway_ports = gateway_ports
        self.endpoints = endpoints
        self.files: dict[str, str | None] = {}
        self.history: list[str] = []
        self._makers: tuple[Callable[[], tuple[str, str, str, Spec]], ...] = (
            *[self._entry] * 4,
            *[self._routes] * 4,
            *[self._rule] * 3,
            *[self._gateway] * 2,
            self._sidecar,
            self._peers,
            self._filter,
            self._workload,
        )

    def edit(self) -> Mapping[str, str | None]:
        """Change one to six files; returns those with their content, None for a deleted one."""
        changed: dict[str, str | None] = {}
        for _ in range(self.pick.choice((1, 1, 1, 2, 3, 6))):
            kind, namespace, name, spec = self.pick.choice(self._makers)()
            file = f"{kind}-{namespace}-{name}.yaml".lower()
            there = [f for f, text in self.files.items() if text is not None]
            what = self.pick.random()
            if what < 0.25 and there:
                file = self.pick.choice(there)
                changed[file] = None
            elif what < 0.32:
                changed[file] = self.pick.choice(WRONG)
            else:
                changed[file] = manifest(kind, namespace, name, spec)
        self.files.update(changed)
        self.history.append(json.dumps(changed))
        return changed

    # -- objects

    def _some(self, options: Sequence[Any], most: int = 3) -> list[Any]:
        return self.pick.sample(options, self.pick.randint(1, min(most, len(options))))

    def _maybe(self, chance: float = 0.5) -> bool:
        return self.pick.random() < chance

    def _entry(self) -> tuple[str, str, str, Spec]:
        pick = self.pick
        host = pick.choice((*HOSTS, "*.wild.chaos.test"))
        resolution = pick.choice(("STATIC", "STATIC", "STATIC", "DNS", "DNS_ROUND_ROBIN", "NONE"))
        if host.startswith("*"):
            resolution = "NONE"
        protocols = ("HTTP", "HTTP", "HTTP", "HTTP2", "GRPC", "TCP", "TLS", "HTTPS", "MONGO")
        spec: Spec = {
            "hosts": [host],
            "location": pick.choice(("MESH_INTERNAL", "MESH_EXTERNAL")),
            "resolution": resolution,
            "ports": [
                {"number": port, "name": f"p{number}", "protocol": pick.choice(protocols)}
                for number, port in enumerate(self._some(self.ports, 2))
            ],
        }
        if resolution != "NONE":
            if resolution == "STATIC" and self._maybe(0.2):
                spec["workloadSelector"] = {"labels": {"app": pick.choice(("web", "vm"))}}
            else:
                spec["endpoints"] = [
                    self._endpoint(resolution, n)
                    for n in range(1 if resolution == "DNS_ROUND_ROBIN" else pick.randint(1, 3))
                ]
        if self._maybe(0.3):
            spec["addresses"] = [f"240.7.7.{pick.randint(1, 3)}"]
        if self._maybe(0.2):
            spec["exportTo"] = [pick.choice((".", "*", "other"))]
        return "ServiceEntry", pick.choice(NAMESPACES), host.split(".")[0].replace("*", "wild"), spec

    def _endpoint(self, resolution: str, number: int) -> Spec:
        pick = self.pick
        address = "127.0.0.1" if resolution == "STATIC" else "localhost"
        found: Spec = {
            "address": address if resolution == "STATIC" or number == 0 else f"host{number}.invalid",
            "ports": {"p0": pick.choice(self.endpoints)},
            "labels": {"version": pick.choice(("v1", "v2"))},
        }
        if self._maybe(0.3):
            found["weight"] = pick.randint(1, 5)
        if self._maybe(0.3):
            found["locality"] = pick.choice(("r1/z1", "r2/z2"))
        return found

    def _workload(self) -> tuple[str, str, str, Spec]:
        name = self.pick.choice(("vm1", "vm2"))
        labels = {"app": "vm", "version": self.pick.choice(("v1", "v2"))}
        address = f"127.0.1.{self.pick.randint(1, 3)}"
        return "WorkloadEntry", self.pick.choice(NAMESPACES), name, {"address": address, "labels": labels}

    def _destination(self) -> Spec:
        found: Spec = {"host": self.pick.choice((*HOSTS, "nobody.chaos.test"))}
        if self._maybe():
            found["subset"] = self.pick.choice(("v1", "v2", "v3"))
        if self._maybe(0.3):
            found["port"] = {"number": self.pick.choice(self.ports)}
        return found

    def _routes(self) -> tuple[str, str, str, Spec]:
        pick = self.pick
        spec: Spec = {"hosts": self._some((*HOSTS, "*.chaos.test", "*.wild.chaos.test"), 2)}
        if self._maybe():
            spec["gateways"] = self._some(("mesh", "shop/gw0", "shop/gw1", "other/gw0"), 2)
        kind = pick.random()
        if kind < 0.7:
            spec["http"] = [self._http() for _ in range(pick.randint(1, 3))]
        elif kind < 0.85:
            spec["tcp"] = [{"route": [{"destination": self._destination()}]}]
        else:
            port, sni = pick.choice(self.ports), pick.choice(spec["hosts"])
            spec["tls"] = [
                {"match": [{"port": port, "sniHosts": [sni]}], "route": [{"destination": self._destination()}]}
            ]
        return "VirtualService", pick.choice(NAMESPACES), pick.choice(("a", "b", "c", "d")), spec

    def _http(self) -> Spec:
        pick = self.pick
        found: Spec = {}
        if self._maybe(0.6):
            found["match"] = [
                pick.choice(
                    (
                        {"uri": {"prefix": "/a"}},
                        {"uri": {"regex": "/[a-z]+"}, "ignoreUriCase": True},
                        {"headers": {"x-user": {"exact": "me"}}},
                        {"port": pick.choice(self.ports)},
                        {"sourceLabels": {"app": "web"}},
                        {"gateways": ["shop/gw0"]},
                    )
                )
            ]
        extra = pick.choice(
            (
                {"timeout": "2s"},
                {"retries": {"attempts": 2, "retryOn": "5xx"}},
                {"fault": {"abort": {"httpStatus": 418, "percentage": {"value": 10}}}},
                {"mirror": self._destination()},
                {"corsPolicy": {"allowOrigins": [{"exact": "https://x.test"}]}},
                {"headers": {"request": {"set": {"x-seen": "1"}}}},
                {},
            )
        )
        action = pick.random()
        if action < 0.1:
            return {**found, "redirect": {"uri": "/elsewhere"}}
        if action < 0.2:
            return {**found, "directResponse": {"status": 418, "body": {"string": "tea"}}}
        first = pick.randint(1, 99)
        route = [{"destination": self._destination(), "weight": first}]
        if self._maybe():
            route.append({"destination": self._destination(), "weight": 100 - first})
        return {**found, **extra, "route": route}

    def _rule(self) -> tuple[str, str, str, Spec]:
        pick = self.pick
        host = pick.choice((*HOSTS, "*.chaos.test", "*.wild.chaos.test"))
        spec: Spec = {"host": host}
        if self._maybe(0.7):
            spec["trafficPolicy"] = pick.choice(POLICIES)
        if self._maybe(0.7):
            spec["subsets"] = [{"name": v, "labels": {"version": v}} for v in self._some(("v1", "v2", "v3"))]
            if self._maybe(0.3):
                spec["subsets"][0]["trafficPolicy"] = pick.choice(POLICIES)
        if self._maybe(0.2):
            spec["exportTo"] = [pick.choice((".", "*"))]
        return "DestinationRule", pick.choice(NAMESPACES), pick.choice(("a", "b", "c", "d")), spec

    def _gateway(self) -> tuple[str, str, str, Spec]:
        pick = self.pick
        servers = []
        for number, port in enumerate(self._some(self.gateway_ports)):
            protocol = pick.choice(("HTTP", "HTTP", "HTTP", "TCP", "TLS", "HTTPS"))
            server: Spec = {
                "port": {"number": port, "name": f"n{number}", "protocol": protocol},
                "hosts": self._some(("*", *HOSTS, "*.chaos.test"), 2),
            }
            if protocol in ("TLS", "HTTPS"):
                mode = pick.choice(("PASSTHROUGH", "ISTIO_MUTUAL"))
                server["tls"] = {"mode": mode}
            servers.append(server)
        spec = {"selector": {"istio": "edge"}, "servers": servers}
        return "Gateway", pick.choice(NAMESPACES), pick.choice(("gw0", "gw1")), spec

    def _sidecar(self) -> tuple[str, str, str, Spec]:
        pick = self.pick
        hosts = [f"*/{CONTROL}", *self._some(("./*", "*/*", f"*/{HOSTS[0]}", "other/*", "*/*.wild.chaos.test"), 2)]
        egress: list[Spec] = [{"hosts": hosts}]
        if self._maybe(0.3):
            port = pick.choice(self.ports)
            egress.insert(0, {"port": {"number": port, "name": "e", "protocol": "HTTP"}, "hosts": ["*/*"]})
        spec: Spec = {"egress": egress}
        if self._maybe(0.4):
            spec["outboundTrafficPolicy"] = {"mode": pick.choice(("REGISTRY_ONLY", "ALLOW_ANY"))}
        if self._maybe():
            spec["workloadSelector"] = {"labels": {"app": pick.choice(("web", "none"))}}
            if self._maybe(0.3):
                port = {"number": 9080, "name": "i", "protocol": pick.choice(("HTTP", "TCP"))}
                spec["ingress"] = [{"port": port, "defaultEndpoint": f"127.0.0.1:{pick.choice(self.endpoints)}"}]
            return "Sidecar", "shop", "web", spec
        return "Sidecar", pick.choice(("shop", "istio-system")), "default", spec

    def _peers(self) -> tuple[str, str, str, Spec]:
        spec: Spec = {"mtls": {"mode": self.pick.choice(("STRICT", "PERMISSIVE", "DISABLE"))}}
        if self._maybe(0.3):
            spec["selector"] = {"matchLabels": {"app": "web"}}
            return "PeerAuthentication", "shop", "web", spec
        return "PeerAuthentication", self.pick.choice(("shop", "istio-system")), "default", spec

    def _filter(self) -> tuple[str, str, str, Spec]:
        spec: Spec = {"configPatches": [self.pick.choice(FILTERS)]}
        if self._maybe(0.3):
            spec["workloadSelector"] = {"labels": {"app": "web"}}
        return "EnvoyFilter", self.pick.choice(("shop", "istio-system")), self.pick.choice(("a", "b")), spec


def manifest(kind: str, namespace: str, name: str, spec: Spec) -> str:
    return json.dumps(
        {
            "apiVersion": _GROUP.get(kind, "networking.istio.io/v1"),
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        },
        indent=1,
    )
