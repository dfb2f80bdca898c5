"""A text means the proxies that it names most closely; one that means several is refused."""

from __future__ import annotations

import attrs
import pytest
from structlog.testing import capture_logs

from mesh_pilot.xds.ads.proxy_names import EqualNameLog, MeantProxies, SeveralProxies, meant_by, together
from tests.support.worlds import sidecar


def test_streams_of_one_proxy_are_one_proxy() -> None:
    one = attrs.evolve(sidecar("10.0.0.1"), peer="10.0.0.1")
    again = attrs.evolve(one)
    assert meant_by("client", [one, again]).only("client") is again
    with capture_logs() as logs:
        EqualNameLog().came(again, [one])
    assert logs == []


def test_one_node_id_from_two_machines_is_two_proxies_that_their_own_addresses_tell_apart() -> None:
    machines = [attrs.evolve(sidecar("10.0.2.15"), peer=peer) for peer in ("192.0.2.1", "192.0.2.2")]
    for text in (machines[0].id, "10.0.2.15", "client.default", "client"):
        with pytest.raises(SeveralProxies, match=r"connected from 192\.0\.2\.1"):
            meant_by(text, machines).only(text)
    assert meant_by("192.0.2.2", machines).only("") is machines[1]


def test_a_name_counts_before_an_address_and_a_full_name_before_a_short_one() -> None:
    other = sidecar("10.0.0.1", name="web", namespace="shop")
    named = sidecar("10.0.0.2", name="10.0.0", namespace="1")
    short = sidecar("10.0.0.3", name="web.shop", namespace="x")
    assert meant_by("10.0.0.1", [other, named]).only("") is named
    assert meant_by("web.shop", [short, other]).only("") is other


def test_what_workers_know_counts_together() -> None:
    one, two = sidecar("10.0.0.1", namespace="a"), sidecar("10.0.0.2", namespace="b")
    meant = [meant_by("client", [one]), meant_by("client", [two]), MeantProxies(connected=("x",))]
    assert together(meant).proxies == (one, two)
    assert together([meant_by("client.a", [one]), meant_by("client.a", [two])]).proxies == (one,)
    assert together([meant_by("y", [one]), meant_by("y", [two])]).connected == ("client.a", "client.b")
