"""What it costs to generate everything for one proxy, in this process: the cases that Istio benchmarks itself.

*Cold* is a world that nothing was generated from; *warm* the next proxy like the first; *edit* what is generated again
after one object changed. Source of the cases: Istio's ``pilot/pkg/xds`` benchmarks (names and numbers of objects).
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ParamSpec

import attrs
import click
from rich.console import Console
from rich.table import Table

from bench.wire import endpoints_name, listener_references
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.istio.reading import yaml
from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.model.config import ConfigError, Origin
from mesh_pilot.model.events import Synced, Upsert
from mesh_pilot.model.proxy import Proxy, parse_proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from mesh_pilot.world import World

P = ParamSpec("P")

SOURCE = "bench"
PROXY_IP = "10.0.0.1"
"""Where the first endpoint of the first service is, so that the proxy has something inbound."""


@attrs.frozen(kw_only=True)
class Generation:
    """One case."""

    name: str
    text: str
    """The whole configuration, as YAML."""
    edit: str
    """The object that is changed after the first generation, changed."""
    router: bool = False


@attrs.frozen(kw_only=True)
class Generated:
    name: str
    resources: int
    bytes: int
    calls: int
    cold_ms: float
    warm_ms: float
    """The best of five proxies."""
    edit_ms: float
    """Taking one change in and generating what it touched; the best of five."""
    edit_calls: int


def cases() -> Iterator[Generation]:
    """Every case, made when it is asked for."""
    makers: Mapping[str, Callable[[int], str]] = {
        "http": lambda n: _service(n),
        "tcp": lambda n: _service(n, protocol="TCP"),
        "auto": lambda n: _service(n, protocol=""),
        "tls": lambda n: _service(n) + _destination_rule(n, "tls: {mode: SIMPLE, sni: s.example.com}"),
        "virtualservice": lambda n: _service(n) + _virtual_service(n),
        "authorizationpolicy": lambda n: _authorization_policy(n) + _service(n),
        "telemetry": lambda n: _service(n) + (_TELEMETRY if n == 0 else ""),
    }
    for name, make in makers.items():
        edit = _service(0, protocol="TCP" if name == "tcp" else "" if name == "auto" else "HTTP", edit=1)
        if name == "authorizationpolicy":
            edit = _authorization_policy(0, edit=1)
        yield Generation(name=f"{name}, 100 services", text="".join(map(make, range(100))), edit=edit)
    for name, shared in (("gateways, 1,000 hosts", False), ("gateways, 1,000 paths", True)):
        text = "".join(_service(n) + _gateway_route(n, shared) for n in range(1000)) + _gateways(shared)
        yield Generation(name=name, text=text, edit=_gateway_route(0, shared, edit=1), router=True)
    for endpoints, services in ((1, 100), (10, 10), (100, 10), (1000, 1)):
        text = "".join(_service(n, endpoints=endpoints) for n in range(services))
        edit = _service(0, endpoints=endpoints, edit=1)
        yield Generation(name=f"endpoints {endpoints} x {services}", text=text, edit=edit)


def run_case(case: Generation) -> Generated:
    world = _world(case.text)
    gc.collect()
    catalog = WorldCatalog(world)
    before = _calls(world)
    began = time.perf_counter()
    resources, size = _everything(catalog, case.router, 0)
    cold = time.perf_counter() - began
    calls = _calls(world) - before
    warm = min(_timed(_everything, catalog, case.router, i) for i in range(1, 6))
    edits = []
    before = _calls(world)
    original = "---".join(case.text.split("---", 2)[:2])
    for text in (case.edit, original, case.edit, original, case.edit):
        edits.append(_timed(_edit, world, catalog, case.router, text))
    return Generated(
        name=case.name,
        resources=resources,
        bytes=size,
        calls=calls,
        cold_ms=cold * 1000,
        warm_ms=warm * 1000,
        edit_ms=min(edits) * 1000,
        edit_calls=(_calls(world) - before) // len(edits),
    )


def _timed(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    began = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - began


def _edit(world: World, catalog: WorldCatalog, router: bool, text: str) -> None:
    _apply(world, text)
    _everything(catalog, router, 0)


def _calls(world: World) -> int:
    return world.memo.statistics().computed


def _everything(catalog: WorldCatalog, router: bool, number: int) -> tuple[int, int]:
    """All that a proxy that has just come asks for: how many resources, and their bytes."""
    resources = catalog.open(_proxy(router, number))
    bodies = []
    for whole, type_url in ((CLUSTER, ENDPOINT), (LISTENER, ROUTE)):
        referrers, followers = resources.set(whole), resources.set(type_url)
        assert referrers is not None and followers is not None
        names: dict[str, None] = {}
        for resource in referrers.snapshot().entries.values():
            bodies.append(resource.body)
            if whole == CLUSTER:
                names[endpoints_name(resource.body)] = None
            else:
                names.update(dict.fromkeys(listener_references(resource.body).routes))
        found = [followers.get(name) for name in names if name]
        bodies += [resource.body for resource in found if resource is not None]
    resources.close()
    return len(bodies), sum(map(len, bodies))


def _proxy(router: bool, number: int) -> Proxy:
    kind, labels = ("router", {"istio": "ingressgateway"}) if router else ("sidecar", {"app": "s0"})
    metadata = {"NAMESPACE": "shop", "INSTANCE_IPS": PROXY_IP, "LABELS": labels}
    return parse_proxy(f"{kind}~{PROXY_IP}~proxy{number}.shop~shop.svc.cluster.local", metadata)


def _world(text: str) -> World:
    world = World()
    world.expect(SOURCE)
    _apply(world, text)
    return world


def _apply(world: World, text: str) -> None:
    origin = Origin(SOURCE, "bench.yaml")
    events = []
    for document in yaml.load(text, origin):
        if isinstance(document, ConfigError):
            raise document
        events.append(Upsert(SOURCE, decode_document(document, origin=origin, default_namespace="shop")))
    world.apply([*events, Synced(SOURCE)])


# -- the objects


def _object(kind: str, name: str, spec: str, *, group: str = "networking.istio.io/v1beta1") -> str:
    metadata = f'{{name: {name}, namespace: shop, creationTimestamp: "2024-03-01T00:00:00Z"}}'
    return f"---\napiVersion: {group}\nkind: {kind}\nmetadata: {metadata}\nspec:\n{spec}\n"


def _service(number: int, *, protocol: str = "HTTP", endpoints: int = 1, edit: int = 0) -> str:
    places = range(number * endpoints, (number + 1) * endpoints)
    lines = [f"10.{p >> 16}.{p >> 8 & 255}.{p & 255 or 1}" for p in places]
    if number == 0:
        lines[0] = PROXY_IP
    if edit:
        lines.append(f"10.77.0.{edit}")
    listed = "\n".join(f"  - {{address: {line}, labels: {{app: s{number}}}}}" for line in lines)
    port = f"{{number: 80, name: port, protocol: {protocol}}}" if protocol else "{number: 80, name: port}"
    spec = f"  hosts: [s{number}.shop.svc.cluster.local]\n  addresses: [240.0.{number >> 8}.{number & 255}]\n"
    spec += f"  location: MESH_INTERNAL\n  resolution: STATIC\n  ports: [{port}]\n  endpoints:\n{listed}"
    return _object("ServiceEntry", f"s{number}", spec)


def _virtual_service(number: int) -> str:
    host = f"s{number}.shop.svc.cluster.local"
    spec = f"  hosts: [{host}]\n  http:\n"
    spec += f"  - match: [{{headers: {{user: {{exact: test}}}}}}]\n    route: [{{destination: {{host: {host}}}}}]\n"
    spec += f"  - timeout: 5s\n    retries: {{attempts: 2}}\n    route: [{{destination: {{host: {host}}}}}]"
    return _object("VirtualService", f"s{number}", spec)


def _destination_rule(number: int, policy: str) -> str:
    spec = f"  host: s{number}.shop.svc.cluster.local\n  trafficPolicy: {{{policy}}}"
    return _object("DestinationRule", f"s{number}", spec)


def _authorization_policy(number: int, edit: int = 0) -> str:
    """A policy for the whole namespace: each proxy has them all."""
    source = f"{{namespaces: [ns{number + edit}]}}"
    spec = f"  rules:\n  - from: [{{source: {source}}}]\n    to: [{{operation: {{methods: [GET]}}}}]"
    return _object("AuthorizationPolicy", f"p{number}", spec, group="security.istio.io/v1beta1")


_TELEMETRY = _object(
    "Telemetry", "mesh", "  accessLogging: [{providers: [{name: envoy}]}]", group="telemetry.istio.io/v1alpha1"
)


def _gateway_route(number: int, shared: bool, edit: int = 0) -> str:
    host = "shared.example.com" if shared else f"s{number}.example.com"
    spec = f"  hosts: [{host}]\n  gateways: [{'shared' if shared else f'g{number}'}]\n  http:\n"
    spec += f"  - match: [{{uri: {{prefix: /s{number}}}}}]\n    timeout: {5 + edit}s\n"
    spec += f"    route: [{{destination: {{host: s{number}.shop.svc.cluster.local}}}}]"
    return _object("VirtualService", f"s{number}", spec)


def _gateways(shared: bool) -> str:
    def gateway(name: str, host: str) -> str:
        server = f"{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: [{host}]}}"
        return _object("Gateway", name, f"  selector: {{istio: ingressgateway}}\n  servers: [{server}]")

    if shared:
        return gateway("shared", "shared.example.com")
    return "".join(gateway(f"g{n}", f"s{n}.example.com") for n in range(1000))


# -- the command


@click.command("generate")
@click.option("--only", default="", help="Only cases whose name has this in it.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the results there.")
def command(only: str, json_file: Path | None) -> None:
    """Everything for one proxy, generated in this process: the cases that Istio benchmarks itself."""
    table = Table(title="generation for one proxy")
    table.add_column("case")
    for name in ("resources", "KB", "cold ms", "calls", "warm ms", "edit ms", "edit calls"):
        table.add_column(name, justify="right")
    done = []
    for case in cases():
        if only not in case.name:
            continue
        click.echo(case.name, err=True)
        g = run_case(case)
        done.append(g)
        cells = [f"{g.resources:,}", f"{g.bytes / 1000:,.0f}", f"{g.cold_ms:.1f}", f"{g.calls:,}"]
        table.add_row(g.name, *cells, f"{g.warm_ms:.2f}", f"{g.edit_ms:.2f}", str(g.edit_calls))
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)
    if json_file:
        json_file.write_text(json.dumps([attrs.asdict(g) for g in done], indent=1) + "\n", encoding="utf-8")
