"""Each route of each virtual host of the golden scenarios has its place: as many origins as routes, in their order."""

from __future__ import annotations

import attrs
import pytest
from envoy.config.route.v3.route_components_pb2 import VirtualHost

from mesh_pilot.engine.snapshots import Snapshot
from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.envoy.routes.virtual_host import catch_all_resource, encoded_virtual_host, host_resource
from mesh_pilot.explain.inspection.why.request import parse_request
from mesh_pilot.explain.inspection.why.story import explain
from mesh_pilot.explain.plan.past_world import resources_of
from mesh_pilot.mesh.listeners.gateway_servers import merged_servers, target_ports
from mesh_pilot.mesh.proxy.keys import proxy_facts, proxy_keys
from mesh_pilot.mesh.virtual_hosts.gateway_tables import planned_gateway_hosts
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import parse_table, planned_hosts
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE, VIRTUAL_HOST
from mesh_pilot.ops.explain.attribution import Attribution
from mesh_pilot.ops.explain.plane_evidence import PlaneEvidence
from mesh_pilot.xds.ads.status import TypeDump
from tests.support.golden import load, proxies, proxy_of
from tests.support.manifests import routes, service
from tests.support.worlds import sidecar, world_of

SCENARIOS = (
    *("vs-delegate", "vs-match-attributes", "vs-match-source", "vs-match-uri", "vs-hosts-and-scope", "vs-mirror-cors"),
    *(
        "gw-http-hosts",
        "gw-mesh-and-edge",
        "gw-https-redirect",
        "sc-egress-ports",
        "svc-sniffing",
        "vs-odd-destinations",
    ),
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_route_has_the_field_that_declares_it(scenario: str) -> None:
    world = load(scenario)
    found = 0
    for entry in proxies(scenario):
        proxy = proxy_of(entry)
        if proxy.is_grpc:
            continue
        view = world.view
        keys = proxy_keys(view, proxy_facts(proxy))
        attribution = Attribution(view, keys)
        tables = resources_of(world, proxy)[ROUTE]
        servers = merged_servers(view, keys.scope, target_ports(view, keys.workload)).tables
        for name in tables:
            if proxy.type is NodeType.ROUTER:
                hosts = planned_gateway_hosts(view, keys.scope, servers[name]) if name in servers else ()
            else:
                table = parse_table(name)
                hosts = planned_hosts(view, keys.scope, table) if table is not None else ()
            for host in hosts:
                encoded = VirtualHost.FromString(encoded_virtual_host(view, host)).routes
                origins = attribution.origins(host)
                assert len(origins) == len(encoded)
                for route, deciders in zip(encoded, origins, strict=True):
                    assert deciders, (name, host.name, route.name)
                    config = view.config(deciders[0].key) if deciders[0].key is not None else None
                    if config is None or not deciders[0].field:
                        continue
                    found += 1
                    rule = config.spec.http[int(deciders[0].field.partition("[")[2].partition("]")[0])]
                    # The name of a route is that of its rule, after the rule's that delegates to it.
                    assert rule.name in route.name
                    number = deciders[0].field.partition(".match[")[2].removesuffix("]")
                    match = rule.match[int(number)] if number else None
                    if match is not None and match.uri is not None and match.uri.exact is not None:
                        assert route.match.path == match.uri.exact
    assert found > 0 or not scenario.startswith(("vs-", "gw-"))


def test_virtual_hosts_that_are_resources_of_their_own_have_the_same_places() -> None:
    spec = """
        - match: [{uri: {prefix: /a}}]
          route: [{destination: {host: a.test}}]
        - directResponse: {status: 200}
    """
    world = world_of(service("a.test", 9080, {"address": "10.0.0.1"}, name="a") + routes("a.test", spec, name="a"))
    proxy = attrs.evolve(sidecar(namespace="shop", VIRTUAL_HOSTS="split"), incremental=True)
    opened = WorldCatalog(world).open(proxy)
    view, scope = opened.view, opened.target.scope
    table = parse_table("9080")
    assert scope.split and table is not None
    hosts = [host_resource(view, "9080", planned) for planned in planned_hosts(view, scope, table)]
    tables = opened.set(ROUTE)
    assert tables is not None
    found = [(ROUTE, tables.select(frozenset({"9080"}))), *((url, _all(opened, url)) for url in (CLUSTER, LISTENER))]
    dumps = [TypeDump(url, "1", True, tuple(snapshot.entries.values())) for url, snapshot in found]
    dumps.append(TypeDump(VIRTUAL_HOST, "1", True, (*hosts, catch_all_resource(view, "9080", scope.sidecar))))

    def fields(request: str) -> list[str]:
        answer = explain(PlaneEvidence(dumps, {}), parse_request(request))
        steps = Attribution(view, opened.target).steps(answer)
        return [each.field for step, deciders in steps if step.step == "route" for each in deciders]

    assert fields("a.test:9080/a/b") == ["spec.http[0].match[0]"]
    assert fields("a.test:9080/") == ["spec.http[1]", "spec.http[0].match[0]"]
    assert fields("b.test:9080/") == ["outboundTrafficPolicy"]


@pytest.mark.parametrize("protocol", ["", "TCP"], ids=["undeclared", "tcp"])
def test_a_connection_that_reaches_another_service_has_the_conflict_beside_it(protocol: str) -> None:
    one, two = (
        service(f"{name}.test", 9080, {"address": "10.0.0.1"}, name=name, protocol=protocol) for name in ("one", "two")
    )
    proxy = sidecar(namespace="shop", INTERCEPTION_MODE="NONE")
    opened = WorldCatalog(world_of(one + two)).open(proxy)
    dumps = [TypeDump(url, "1", True, tuple(_all(opened, url).entries.values())) for url in (CLUSTER, LISTENER)]
    attribution = Attribution(opened.view, opened.target)

    def notes(request: str) -> list[str]:
        answer = explain(PlaneEvidence(dumps, {}), parse_request(request))
        assert "outbound|9080||one.test" in answer.outcome + str(answer.result)
        return list(attribution.conflicts(answer))

    (note,) = notes("tcp://two.test:9080")
    assert note.startswith("two.test has a conflict at the listener 127.0.0.1_9080, where one.test came first: ")
    assert notes("tcp://one.test:9080") == []


def _all(opened: WorldResources, type_url: str) -> Snapshot:
    resources = opened.set(type_url)
    assert resources is not None
    return resources.snapshot()
