"""Connections that are open when rules come, change and go: they live on, whoever opened them, idle or busy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.namespaces import Machine, machines

pytestmark = pytest.mark.process

ENVOY = 1337
OUTBOUND, INBOUND = 15001, 15006
APPLICATION, SERVER = 8080, 443


@pytest.fixture
def lab() -> Iterator[tuple[Machine, Machine]]:
    """A machine to redirect, and one outside. Nothing has tracked connections in their namespaces yet."""
    with machines(2) as (vm, outside):
        vm.listen("echo", APPLICATION, 15020, OUTBOUND, INBOUND)
        outside.listen("echo", SERVER, 15012)
        yield vm, outside


def opened(vm: Machine, outside: Machine, family: str) -> list[tuple[Machine, str]]:
    """Connections in both directions, idle ones and busy ones, of applications and of the proxy."""
    here, there = (vm.ipv4, outside.ipv4) if family == "ipv4" else (vm.ipv6, outside.ipv6)
    found = []
    for busy in (False, True):
        kind = "busy" if busy else "idle"
        assert vm.open(f"out {kind}", there, SERVER, busy=busy) == SERVER
        assert vm.open(f"proxy {kind}", there, 15012, uid=ENVOY, busy=busy) == 15012
        assert outside.open(f"in {kind}", here, APPLICATION, busy=busy) == APPLICATION
        assert vm.open(f"self {kind}", here, APPLICATION, busy=busy) == APPLICATION
        found += [(vm, f"out {kind}"), (vm, f"proxy {kind}"), (outside, f"in {kind}"), (vm, f"self {kind}")]
    return found


def check_alive(connections: list[tuple[Machine, str]]) -> None:
    """Each carries more than before, in spite of whatever has happened since."""
    for machine, name in connections:
        before = machine.exchange(name)
        after = machine.exchange(name)
        assert (before["error"], after["error"]) == ("", ""), f"{name}: {before} {after}"
        assert after["exchanged"] > before["exchanged"], name


@pytest.mark.parametrize(
    ("backend", "family", "flags"),
    [
        ("nft", "ipv4", ()),
        ("iptables", "ipv6", ()),
        ("nft", "ipv6", ("-m", "TPROXY")),
        ("iptables", "ipv4", ("-m", "TPROXY")),
        ("nft", "ipv4", ("--redirect-dns", "--drop-invalid")),
    ],
)
def test_open_connections_live_on_when_rules_are_applied_changed_and_removed(
    lab: tuple[Machine, Machine], backend: str, family: str, flags: tuple[str, ...]
) -> None:
    vm, outside = lab
    here, there = (vm.ipv4, outside.ipv4) if family == "ipv4" else (vm.ipv6, outside.ipv6)
    connections = opened(vm, outside, family)
    vm.mesh_pilot("iptables", "apply", "--backend", backend, "--ip-family", family, *flags)
    check_alive(connections)
    # What begins from now on goes through Envoy, and other settings do not end that either.
    assert vm.open("new out", there, SERVER) == OUTBOUND
    assert outside.open("new in", here, APPLICATION) == INBOUND
    through_envoy = [(vm, "new out"), (outside, "new in")]
    vm.mesh_pilot("iptables", "apply", "--backend", backend, "--ip-family", family, "-d", "22", *flags)
    check_alive([*connections, *through_envoy])
    vm.mesh_pilot("iptables", "clean")
    check_alive(connections)
    assert vm.open("last out", there, SERVER) == SERVER
    assert outside.open("last in", here, APPLICATION) == APPLICATION


def test_what_is_open_lives_on_when_the_other_tool_takes_over(lab: tuple[Machine, Machine]) -> None:
    vm, outside = lab
    connections = opened(vm, outside, "ipv4")
    for backend in ("nft", "iptables", "nft"):
        vm.mesh_pilot("iptables", "apply", "--backend", backend)
        assert vm.open(f"out by {backend}", outside.ipv4, SERVER) == OUTBOUND
        connections.append((vm, f"out by {backend}"))
        check_alive(connections)
