"""Hosts that a Sidecar excludes: ``~namespace/host``, and ``~/host`` for all namespaces."""

from __future__ import annotations

import pytest

from tests.support.listeners import listeners
from tests.support.routing import config, service, table, virtual_service
from tests.support.upstreams import outbound
from tests.support.worlds import sidecar, world_of

SERVICES = (
    service("a.test")
    + service("c.test")
    + service("c.test", namespace="far")
    + service("b.test", namespace="far")
    + service("x.wild.test", namespace="far")
)


def reached(*hosts: str, more: str = "", egress: str = "") -> set[str]:
    """The services that have a cluster."""
    listed = ", ".join(f"'{host}'" for host in hosts)
    world = world_of(SERVICES + more + config("Sidecar", "s", f"{{egress: [{{{egress}hosts: [{listed}]}}]}}"))
    return {n.rpartition("|")[2] for n in outbound(world, sidecar(namespace="shop")) if n.startswith("outbound|")}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["*/*", "~/c.test"], {"a.test", "b.test", "x.wild.test"}),
        (["~/c.test", "*/*"], {"a.test", "b.test", "x.wild.test"}),
        (["*/*", "~/*.wild.test"], {"a.test", "b.test", "c.test"}),
        (["*/*", "~far/*"], {"a.test", "c.test"}),
        (["*/*", "~./*", "~/b.test"], {"c.test", "x.wild.test"}),
        (["./*", "~/c.test"], {"a.test"}),
        (["~/*"], set()),
        (["*/*", "~/*"], set()),
    ],
)
def test_what_is_excluded_is_not_imported(hosts: list[str], expected: set[str]) -> None:
    assert reached(*hosts) == expected


def test_a_virtual_service_of_an_excluded_host_does_not_bring_it_back() -> None:
    rule = virtual_service("c", "{hosts: [c.test], http: [{route: [{destination: {host: c.test}}]}]}")
    assert reached("*/*", "~/c.test", more=rule) == {"a.test", "b.test", "x.wild.test"}
    both = rule.replace("hosts: [c.test]", "hosts: [c.test, a.test]")
    assert reached("*/*", "~/c.test", more=both) >= {"c.test"}, "a.test is routed to it"


def test_an_egress_listener_with_a_port_excludes_too() -> None:
    port = "port: {number: 80, name: http, protocol: HTTP}, "
    assert reached("*/*", "~/c.test", egress=port) == {"a.test", "b.test", "x.wild.test"}


def test_neither_route_nor_listener_is_for_an_excluded_host() -> None:
    raw = service("c.test", ports="90 tcp TCP", addresses="10.9.0.1")
    text = config("Sidecar", "s", "{egress: [{hosts: ['*/*', '~/c.test']}]}")
    proxy = sidecar(namespace="shop")
    assert "c.test:80" not in table(world_of(SERVICES + text), proxy=proxy)
    assert "10.9.0.1_90" not in listeners(world_of(raw + text), proxy)
