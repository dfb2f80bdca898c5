"""Golden scenarios in-process: our translators' output for each proxy, against what a real Istio generated.

Run as a program: ``python -m tests.support.golden [SCENARIO...] [--only clusters,endpoints] [--max N] [--print NAME]``
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import yaml

from mesh_pilot.engine import ByName, Query
from mesh_pilot.envoy.catalog.generators import GeneratorKey, generators_of
from mesh_pilot.mesh.proxy.keys import ProxyKeys, proxy_facts, proxy_keys
from mesh_pilot.mesh.proxy.plans import ResourceQuery, merged_plan
from mesh_pilot.model.proxy import Proxy, parse_proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET
from mesh_pilot.model.service import Locality
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.world import World
from tests.golden import adsdump, xdsdiff
from tests.support.kube_objects import add_kubernetes
from tests.support.worlds import read, world_of

ROOT = Path(__file__).parent.parent / "golden"
ABSENT = xdsdiff.ABSENT
SECTIONS = {"clusters": CLUSTER, "endpoints": ENDPOINT, "listeners": LISTENER, "routes": ROUTE, "secrets": SECRET}


def scenarios() -> list[str]:
    """Every scenario, by its folder's name."""
    return sorted(p.parent.name for p in ROOT.glob("*/proxies.yaml"))


def load(scenario: str) -> World:
    """The World of a scenario."""
    folder = ROOT / scenario
    mesh = folder / "mesh.yaml"
    networks = folder / "networks.yaml"
    text = read(folder / "config.yaml")
    is_kubernetes = (folder / "kube").exists()
    world = world_of(
        "" if is_kubernetes else text,
        mesh=read(mesh if mesh.exists() else ROOT / "mesh.default.yaml"),
        networks=read(networks) if networks.exists() else "",
    )
    if is_kubernetes:
        add_kubernetes(world, text)
    return world


def proxies(scenario: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(read(ROOT / scenario / "proxies.yaml"))
    return found


@attrs.frozen
class Node:
    """What a proxy says of itself, as in Envoy's ``core.v3.Node``."""

    id: str
    cluster: str
    metadata: dict[str, Any]
    locality: str
    """``region/zone/subzone``, or empty."""


def node_of(entry: dict[str, Any]) -> Node:
    """The node of a proxy of ``proxies.yaml``, as its agent would present it."""
    namespace, ip = entry.get("namespace", "default"), entry["ip"]
    name = entry.get("id-name", entry["name"])
    kind = entry.get("node_type", "sidecar")
    domain = entry.get("domain", f"{namespace}.svc.cluster.local")
    metadata: dict[str, Any] = {"PILOT_SAN": ["istiod.istio-system.svc"]}
    if not entry.get("bare"):
        metadata |= {
            "CLUSTER_ID": "Kubernetes",
            "ISTIO_VERSION": "1.29.1",
            "NAMESPACE": namespace,
            "INSTANCE_IPS": ip,
            "NAME": name,
            "MESH_ID": "cluster.local",
            "LABELS": {},
        }
    if entry.get("labels"):
        metadata["LABELS"] = dict(entry["labels"])
    for key, value in (entry.get("metadata") or {}).items():
        if value is None:
            metadata.pop(key, None)
        else:
            metadata[key] = value
    return Node(
        f"{kind}~{ip}~{name}.{namespace}~{domain}",
        entry.get("cluster", f"{metadata.get('LABELS', {}).get('app', name)}.{namespace}"),
        metadata,
        entry.get("locality", ""),
    )


def proxy_of(entry: dict[str, Any]) -> Proxy:
    """A proxy of ``proxies.yaml`` whose certificate proves its namespace."""
    node = node_of(entry)
    proxy = parse_proxy(node.id, node.metadata, locality=Locality.parse(node.locality), cluster=node.cluster)
    return attrs.evolve(proxy, identity=str(Identity("cluster.local", entry.get("namespace", "default"), "default")))


class Dump:
    """What one proxy is sent, as the document that the comparison reads."""

    def __init__(self, world: World, proxy: Proxy, wanted: Iterable[str] = SECTIONS, asked: Iterable[str] = ()) -> None:
        """``asked``: names of the listeners that a proxyless gRPC client asks for."""
        self.world = world
        self.asked = tuple(asked)
        self.wanted = set(wanted)
        self.failures: list[str] = []
        self.target: ProxyKeys = proxy_keys(world.view, proxy_facts(proxy))
        self.routes: set[str] = set()
        """Route tables to ask for besides those that our listeners name (for a look at routes alone)."""
        self.document: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        self.expander = adsdump.Expander()

    def run(self) -> dict[str, dict[str, Any]]:
        if self.asked:
            self._type("listeners", self.asked)
            self._type("routes", sorted(self.expander.routes))
            self._type("clusters", sorted(set(_clusters_of(self.document["routes"]))))
            self._type("endpoints", self._eds())
        else:
            self._type("clusters")
            self._type("endpoints", self._eds())
            self._type("listeners")
            self._type("routes", sorted(self.expander.routes | self.routes))
        return {k: v for k, v in self.document.items() if k in self.wanted}

    def _eds(self) -> list[str]:
        return [n for n, c in self.document["clusters"].items() if c.get("type") == "EDS"]

    def _type(self, section: str, names: Iterable[str] = ()) -> None:
        for part in generators_of(self.target)[SECTIONS[section]]:
            self._part(section, part, names)

    def _part(self, section: str, part: GeneratorKey, names: Iterable[str] = ()) -> None:
        """All resources of a plan, or those of these names."""
        _, query = part

        def run() -> None:
            view = self.world.view
            by_name = {n: query.query(n) for n in names} if isinstance(query, ByName) else {}
            plan = merged_plan(view, query.get(view)) if isinstance(query, Query) else by_name
            for name, call in plan.items():
                self._guard(section, name, lambda c=call, n=name: self._put(section, n, c))

        self._guard(section, query.derived.name, run)

    def _put(self, section: str, name: str, call: ResourceQuery) -> None:
        resource = call.get(self.world.view)
        if resource is None:
            return
        assert resource.name == name, f"{resource.name} under the name {name}"
        message = adsdump.find_class(SECTIONS[section])()
        message.ParseFromString(resource.body)
        self.document[section][name] = self.expander.msg(message)

    def _guard(self, section: str, name: str, run: Callable[[], None]) -> None:
        if (
            not self.asked
            and section not in self.wanted
            and section != "clusters"
            and not (section == "listeners" and "routes" in self.wanted and len(self.wanted) > 1)
        ):
            return
        try:
            run()
        except Exception:
            self.failures.append(f"{section} {name}: {traceback.format_exc()}")


def _clusters_of(routes: Any) -> Iterator[str]:
    """The clusters that a document of route tables names."""
    if isinstance(routes, dict):
        if isinstance(routes.get("cluster"), str):
            yield routes["cluster"]
        yield from (part["name"] for part in routes.get("weighted_clusters", {}).get("clusters", ()))
        routes = list(routes.values())
    if isinstance(routes, list):
        for part in routes:
            yield from _clusters_of(part)


@attrs.frozen
class Difference:
    """One place in which a resource of ours differs from Istio's."""

    resource: str
    """Section and name, such as ``clusters outbound|80||a.example.com``."""
    path: str
    """Where in the resource; empty for all of it."""
    istio: Any
    """Istio's value, ``xdsdiff.ABSENT`` where it has none."""
    ours: Any
    line: str
    """For people."""


def expected(scenario: str, entry: dict[str, Any]) -> dict[str, Any]:
    """What Istio sent one proxy of a scenario."""
    found: dict[str, Any] = json.loads(read(ROOT / scenario / "expect" / f"{entry['name']}.json"))
    return found


def documents(
    scenario: str, entry: dict[str, Any], world: World, wanted: Iterable[str] = SECTIONS
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """(Istio's, ours, what translators raised) for one proxy of a scenario."""
    adsdump.load_all_protos()
    only = set(wanted)
    expect = expected(scenario, entry)
    dump = Dump(world, proxy_of(entry), only, entry.get("grpc", ()))
    if only == {"routes"}:
        dump.routes = set(expect["routes"])
    actual = json.loads(json.dumps(dump.run()))
    return {k: v for k, v in expect.items() if k in only}, actual, dump.failures


def compared(expect: dict[str, Any], actual: dict[str, Any]) -> Iterator[tuple[str, list[Difference]]]:
    """Each resource of either document, and in what it differs."""
    for section, name, found in xdsdiff.differences(expect, actual):
        resource = f"{section} {name}"
        yield (
            resource,
            [
                Difference(resource, path, istio, ours, xdsdiff.told(sign, path, istio, ours))
                for sign, path, istio, ours in found
            ],
        )


def differences(scenario: str, entry: dict[str, Any], world: World) -> list[Difference]:
    """Everything in which one proxy's resources differ. Raises AssertionError if a translator raised."""
    expect, actual, failures = documents(scenario, entry, world)
    assert not failures, "\n".join(failures)
    return [difference for _, found in compared(expect, actual) for difference in found]


def rows(found: dict[str, list[Difference]]) -> list[dict[str, Any]]:
    """Differences by proxy in the form of ``differences.yaml``; what several have in common stands once."""
    places: dict[tuple[str, str, str, str], None] = {}
    values: dict[tuple[str, str], dict[str, Any]] = {}
    for proxy, differences_ in found.items():
        for d in differences_:
            sides = {side: value for side, value in (("istio", d.istio), ("ours", d.ours)) if value is not ABSENT}
            key = (re.sub(r"\[\d+\]", "[*]", d.path), json.dumps(sides, sort_keys=True))
            values[key] = sides
            places[(*key, proxy, d.resource)] = None
    by_sides: dict[tuple[Any, ...], list[str]] = {}
    for path, text, proxy, resource in places:
        by_sides.setdefault((path, text, proxy), []).append(resource)
    merged: dict[tuple[Any, ...], list[str]] = {}
    for (path, text, proxy), resources in by_sides.items():
        merged.setdefault((path, text, tuple(resources)), []).append(proxy)
    return [
        {"proxy": _one(proxies_), "resource": _one(resources), **({"path": path} if path else {}), **values[path, text]}
        for (path, text, resources), proxies_ in merged.items()
    ]


def _one(names: Sequence[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


def compare(
    scenario: str, entry: dict[str, Any], world: World, wanted: Iterable[str] = SECTIONS, limit: int | None = None
) -> tuple[int, int, str]:
    """(equal, total, report) for one proxy of a scenario."""
    expect, actual, failures = documents(scenario, entry, world, wanted)
    out = io.StringIO()
    equal, total = xdsdiff.compare(expect, actual, only=sorted(wanted), maxn=limit, out=out)
    return equal, total, out.getvalue() + "\n".join(failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="*")
    parser.add_argument("--only", default="clusters,endpoints,listeners,routes")
    parser.add_argument("--max", type=int, default=8)
    parser.add_argument("--print", help="print our version of the resource with this name")
    parser.add_argument("--rows", action="store_true", help="print what differs as rows for differences.yaml")
    parser.add_argument(
        "--diff-only", action="store_true", help="list the scenarios that are not whole, without details"
    )
    args = parser.parse_args()
    wanted = args.only.split(",")
    equal = total = whole = 0
    names = args.scenario or scenarios()
    if args.rows:
        for scenario in names:
            world = load(scenario)
            found = rows({entry["name"]: differences(scenario, entry, world) for entry in proxies(scenario)})
            if found:
                entry = {"scenario": scenario, "cause": "", "differs": found}
                print(yaml.safe_dump([entry], sort_keys=False, default_flow_style=None, width=120))
        return 0
    for scenario in names:
        got = all_of = 0
        report = ""
        try:
            world = load(scenario)
            for entry in proxies(scenario):
                n, m, text = compare(scenario, entry, world, wanted, args.max)
                got, all_of = got + n, all_of + m
                if n < m or "Traceback" in text:
                    report += f"  [{entry['name']}]\n" + "".join(f"    {line}\n" for line in text.splitlines())
                if args.print:
                    dump = Dump(world, proxy_of(entry), asked=entry.get("grpc", ()))
                    dump.run()
                    for section, held in dump.document.items():
                        if args.print in held:
                            print(section, json.dumps(held[args.print], indent=1))
        except Exception:
            report += traceback.format_exc()
        equal, total, whole = equal + got, total + all_of, whole + (got == all_of and not report)
        print(f"{'ok  ' if got == all_of and not report else 'DIFF'} {scenario:32} {got} of {all_of}")
        if args.max and not args.diff_only:
            print(report, end="")
    print(f"{equal} of {total} resources equal, {whole} of {len(names)} scenarios whole")
    return 0 if equal == total else 1


if __name__ == "__main__":
    sys.exit(main())
