"""The domains of clients: equal for clients that are alike, and cheap for those that come back in a herd."""

from __future__ import annotations

from mesh_pilot.model.proxy import parse_proxy
from mesh_pilot.quarantine.clients import domains_of


class Part:
    """A part of a scope that counts how often it was read."""

    reads = 0

    def __repr__(self) -> str:
        Part.reads += 1
        return "part"


def test_a_scope_is_read_once_for_all_of_its_clients() -> None:
    part = Part()
    found = set()
    for number in range(50):
        proxy = parse_proxy(f"sidecar~10.0.0.{number}~web-{number}.shop~shop.svc.cluster.local", {})
        own, scope, build = domains_of(proxy, number, ("shop", frozenset({part})))
        assert own == f"client {number}"
        found.add((scope, build))
    assert len(found) == 1
    assert Part.reads == 1


def test_other_scopes_are_other_domains() -> None:
    proxy = parse_proxy("sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local", {})
    assert domains_of(proxy, 1, ("shop", "a"))[1] != domains_of(proxy, 1, ("shop", "b"))[1]
