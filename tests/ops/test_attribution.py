"""Each route of each virtual host of the golden scenarios has its place: as many origins as routes, in their order."""

from __future__ import annotations

import pytest
from envoy.config.route.v3.route_components_pb2 import VirtualHost

from mesh_pilot.envoy.routes.virtual_host import encoded_virtual_host
from mesh_pilot.mesh.gateway_servers import merged_servers, target_ports
from mesh_pilot.mesh.proxy.scope import proxy_facts, proxy_keys
from mesh_pilot.mesh.virtual_hosts.gateway_tables import planned_gateway_hosts
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import parse_table, planned_hosts
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.resource import ROUTE
from mesh_pilot.ops.explain.attribution import Attribution
from mesh_pilot.plan.past_world import resources_of
from tests.support.golden import load, proxies, proxy_of

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
                routes = VirtualHost.FromString(encoded_virtual_host(view, host)).routes
                origins = attribution.origins(host)
                assert len(origins) == len(routes)
                for route, deciders in zip(routes, origins, strict=True):
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
