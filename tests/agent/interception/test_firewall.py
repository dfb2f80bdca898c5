"""The rules with real packets: a machine with something at Envoy's ports that says what it was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.namespaces import ROOT, Machine, machines
from tests.support.troubles import is_quoted

pytestmark = pytest.mark.process

ENVOY = 1337
OUTBOUND, INBOUND, DNS = 15001, 15006, 15053
TOOLS = ("nft", "iptables")


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[Machine, Machine]]:
    """The machine with the rules, and one outside that is its router and name server."""
    with machines(2) as (vm, outside):
        vm.listen("tcp", 22, 53, 80, 8080, 8301, 15020, 15021, 15090, OUTBOUND, INBOUND, DNS)
        for host in ("127.0.0.1", "::1"):
            vm.listen("udp", DNS, host=host, uid=ENVOY)
        outside.run("ip", "address", "add", "10.99.0.1/32", "dev", "lo")
        outside.run("ip", "address", "add", "10.98.0.1/32", "dev", "lo")
        outside.run("ip", "-6", "address", "add", "fd99::1/128", "dev", "lo")
        vm.run("ip", "-6", "route", "add", "default", "via", outside.ipv6)
        outside.listen("tcp", 53, 80, 443, 8300)
        outside.listen("udp", 53, host=outside.ipv4)
        outside.listen("udp", 53, host="10.99.0.1")
        yield vm, outside


@pytest.fixture(params=TOOLS)
def backend(request: pytest.FixtureRequest, lab: tuple[Machine, Machine]) -> Iterator[str]:
    yield str(request.param)
    lab[0].mesh_pilot("iptables", "clean")


def apply(vm: Machine, backend: str, *flags: str, **variables: str) -> None:
    vm.mesh_pilot("iptables", "apply", "--backend", backend, *flags, **variables)


def reached(answer: dict[str, object]) -> object:
    """The port that answered, or why none did."""
    return answer.get("listener", answer.get("error"))


def test_an_application_reaches_envoy_which_knows_where_it_wanted_to_go(
    lab: tuple[Machine, Machine], backend: str
) -> None:
    vm, _outside = lab
    apply(vm, backend)
    answer = vm.ask("10.99.0.1", 443)
    assert (answer["listener"], answer["original"]) == (OUTBOUND, "10.99.0.1 443")


def test_envoy_and_the_agent_reach_others_directly_by_user_or_by_group(
    lab: tuple[Machine, Machine], backend: str
) -> None:
    vm, _outside = lab
    apply(vm, backend)
    assert reached(vm.ask("10.99.0.1", 443, uid=ENVOY, gid=5)) == 443
    assert reached(vm.ask("10.99.0.1", 443, uid=5, gid=ENVOY)) == 443
    apply(vm, backend, "-u", "4000", "-g", "4001")
    assert reached(vm.ask("10.99.0.1", 443, uid=ENVOY, gid=5)) == OUTBOUND
    assert reached(vm.ask("10.99.0.1", 443, uid=4000)) == 443
    assert reached(vm.ask("10.99.0.1", 443, gid=4001)) == 443


@pytest.mark.smoke
def test_others_reach_envoy_but_for_the_agents_ports_ssh_and_consul(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, outside = lab
    apply(vm, backend)
    answer = outside.ask(vm.ipv4, 8080)
    assert (answer["listener"], answer["original"]) == (INBOUND, f"{vm.ipv4} 8080")
    assert [reached(outside.ask(vm.ipv4, port)) for port in (22, 8301, 15020, 15021, 15090)] == [
        22,
        8301,
        15020,
        15021,
        15090,
    ]


def test_inbound_ports_can_be_listed_and_excluded(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, outside = lab
    apply(vm, backend, "-b", "8000-8100,15020")
    assert [reached(outside.ask(vm.ipv4, port)) for port in (80, 8080, 15020)] == [80, INBOUND, 15020]
    apply(vm, backend, "-d", "80")
    assert [reached(outside.ask(vm.ipv4, port)) for port in (80, 8080, 22)] == [80, INBOUND, INBOUND]
    apply(vm, backend, "-b", "")
    assert [reached(outside.ask(vm.ipv4, port)) for port in (80, 8080)] == [80, 8080]


def test_outbound_ranges_are_captured_or_excluded(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, _outside = lab
    apply(vm, backend, "-i", "10.99.0.0/16,fd99::/16")
    assert [reached(vm.ask(host, 80)) for host in ("10.99.0.1", "10.98.0.1")] == [OUTBOUND, 80]
    apply(vm, backend, "-x", "10.99.0.0/16")
    assert [reached(vm.ask(host, 80)) for host in ("10.99.0.1", "10.98.0.1")] == [80, OUTBOUND]
    apply(vm, backend, "-i", "", "-q", "443")
    assert [reached(vm.ask("10.99.0.1", port)) for port in (80, 443)] == [80, OUTBOUND]


def test_outbound_ports_are_excluded_consuls_by_default(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, _outside = lab
    apply(vm, backend)
    assert [reached(vm.ask("10.99.0.1", port)) for port in (80, 8300)] == [OUTBOUND, 8300]
    apply(vm, backend, "-o", "80")
    assert [reached(vm.ask("10.99.0.1", port)) for port in (80, 8300)] == [80, OUTBOUND]


def test_groups_are_captured_or_excluded(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, _outside = lab
    apply(vm, backend, "--istio-outbound-owner-groups", "500,501")
    assert [reached(vm.ask("10.99.0.1", 80, gid=gid)) for gid in (500, 501, 502)] == [OUTBOUND, OUTBOUND, 80]
    apply(vm, backend, "--istio-outbound-owner-groups-exclude", "500")
    assert [reached(vm.ask("10.99.0.1", 80, gid=gid)) for gid in (500, 501)] == [80, OUTBOUND]


def test_calls_to_oneself(lab: tuple[Machine, Machine], backend: str) -> None:
    """By loopback or own address: directly. Envoy's own, on behalf of the application that called its own service by
    name: back through Envoy; but what Envoy forwards to the application: directly."""
    vm, _outside = lab
    apply(vm, backend)
    assert reached(vm.ask("127.0.0.1", 8080)) == 8080
    assert reached(vm.ask(vm.ipv4, 8080)) == 8080
    assert reached(vm.ask("127.0.0.1", 8080, uid=ENVOY, gid=ENVOY)) == 8080
    assert reached(vm.ask(vm.ipv4, 8080, uid=ENVOY, gid=ENVOY)) == INBOUND
    assert reached(vm.ask(vm.ipv4, 8080, uid=ENVOY, gid=ENVOY, source="127.0.0.6")) == 8080


def test_an_interface_is_left_alone(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, outside = lab
    apply(vm, backend, "-c", "eth+")
    assert reached(vm.ask("10.99.0.1", 443)) == 443
    assert reached(outside.ask(vm.ipv4, 8080)) == 8080


def test_a_virtual_machines_connections_are_outbound(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, outside = lab
    apply(vm, backend, "-k", "eth0", "-i", f"{vm.ipv4}/32")
    assert reached(outside.ask(vm.ipv4, 8080)) == OUTBOUND


def test_queries_go_to_the_agent_and_the_agents_to_the_name_server(
    lab: tuple[Machine, Machine], backend: str, tmp_path: Path
) -> None:
    vm, outside = lab
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text(f"search mesh\nnameserver {outside.ipv4}\nnameserver {outside.ipv6}\n", encoding="utf-8")
    apply(vm, backend, "--redirect-dns", "--resolv-conf", str(resolv_conf))
    for protocol in ("udp", "tcp"):
        assert reached(vm.ask(outside.ipv4, 53, protocol=protocol)) == DNS
        assert reached(vm.ask(outside.ipv4, 53, protocol=protocol, uid=ENVOY)) == 53
    assert reached(vm.ask("10.99.0.1", 53, protocol="udp")) == 53
    apply(vm, backend, "--capture-all-dns")
    for protocol in ("udp", "tcp"):
        assert reached(vm.ask("10.99.0.1", 53, protocol=protocol)) == DNS
        assert reached(vm.ask("10.99.0.1", 53, protocol=protocol, uid=ENVOY)) == 53


def test_the_agent_asks_with_the_clients_port_number_and_both_get_their_answers(
    lab: tuple[Machine, Machine], backend: str
) -> None:
    """Conntrack keeps the two apart by zones: the same addresses and ports on both sides of the agent."""
    vm, outside = lab
    apply(vm, backend, "--capture-all-dns")
    for port in range(40_000, 40_010):
        source = f"{vm.ipv4} {port}"
        assert reached(vm.ask(outside.ipv4, 53, protocol="udp", source=source)) == DNS
        assert vm.ask(outside.ipv4, 53, protocol="udp", source=source, uid=ENVOY) == {"listener": 53, "peer": source}
        assert reached(vm.ask(outside.ipv4, 53, protocol="udp", source=source)) == DNS


def test_ipv6(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, outside = lab
    apply(vm, backend, "--ip-family", "ipv6")
    answer = vm.ask("fd99::1", 443)
    assert (answer["listener"], answer["original"]) == (OUTBOUND, "fd99::1 443")
    assert reached(vm.ask("fd99::1", 443, uid=ENVOY, gid=ENVOY)) == 443
    assert outside.ask(vm.ipv6, 8080)["original"] == f"{vm.ipv6} 8080"
    assert reached(outside.ask(vm.ipv6, 22)) == 22
    assert reached(vm.ask("::1", 8080)) == 8080
    assert reached(vm.ask(vm.ipv6, 8080, uid=ENVOY, gid=ENVOY)) == INBOUND
    assert reached(vm.ask("10.99.0.1", 443)) == 443, "IPv4 is not captured"
    assert "inet6 ::6/128" in everything(vm), "Envoy connects to the application from there"
    apply(vm, backend, "--ip-family", "dual")
    assert [vm.ask(host, 443)["original"] for host in ("10.99.0.1", "fd99::1")] == ["10.99.0.1 443", "fd99::1 443"]
    hosts = (vm.ipv4, vm.ipv6)
    assert [outside.ask(host, 8080)["original"] for host in hosts] == [f"{host} 8080" for host in hosts]


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_tproxy_keeps_the_callers_address_up_to_the_application(
    lab: tuple[Machine, Machine], backend: str, family: str
) -> None:
    vm, outside = lab
    apply(vm, backend, "-m", "TPROXY", "--ip-family", family)
    here, there = (vm.ipv4, outside.ipv4) if family == "ipv4" else (vm.ipv6, outside.ipv6)
    answer = outside.ask(here, 8080, source=f"{there} 41234")
    assert (answer["listener"], answer["local"], answer["peer"]) == (INBOUND, f"{here} 8080", f"{there} 41234")
    # Envoy connects to the application as the caller.
    answer = vm.ask(here, 8080, uid=ENVOY, gid=ENVOY, source=f"{there} 41235", mark=1337)
    assert (answer["listener"], answer["peer"]) == (8080, f"{there} 41235")
    assert reached(outside.ask(here, 22)) == 22
    assert reached(vm.ask(here, 8080)) == 8080, "a call to oneself"
    assert reached(vm.ask(here, 8080, uid=ENVOY, gid=ENVOY)) == INBOUND
    assert reached(vm.ask("10.99.0.1" if family == "ipv4" else "fd99::1", 443)) == OUTBOUND


def everything(vm: Machine) -> str:
    """All rules and routes of the machine, whoever's they are, without counters."""
    commands = (
        "nft --stateless list ruleset",
        "iptables-legacy-save",
        "ip6tables-legacy-save",
        "ip -4 rule",
        "ip -6 rule",
        "ip -6 address show dev lo",
        "ip -4 route show table all",
    )
    text = "".join(vm.run(*command.split(), check=False).stdout for command in commands)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("flags", [(), ("-m", "TPROXY", "--capture-all-dns")])
def test_applied_twice_is_as_applied_once_and_other_settings_replace(
    lab: tuple[Machine, Machine], backend: str, flags: tuple[str, ...]
) -> None:
    vm, _ = lab
    apply(vm, backend, *flags)
    once = everything(vm)
    apply(vm, backend, *flags)
    assert everything(vm) == once
    apply(vm, backend, "-b", "80", "--ip-family", "ipv6", "--drop-invalid")
    apply(vm, backend, *flags)
    assert everything(vm) == once


def test_rules_of_the_other_tool_are_replaced(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, _ = lab
    apply(vm, backend)
    once = everything(vm)
    apply(vm, next(tool for tool in TOOLS if tool != backend), "-b", "80")
    vm.mesh_pilot("iptables", "apply", "-b", "81")
    assert "tcp dport 81" in everything(vm) and "tcp dport 80" not in everything(vm)
    apply(vm, backend)
    tables = {line for line in everything(vm).splitlines() if "ISTIO" in line}
    assert tables == {line for line in once.splitlines() if "ISTIO" in line}


def test_clean_removes_ours_and_nothing_else(lab: tuple[Machine, Machine], backend: str) -> None:
    vm, _ = lab
    foreign = """\
add table inet theirs
add chain inet theirs OUT { type filter hook output priority 0; }
add rule inet theirs OUT tcp dport 9 accept
"""
    vm.run("nft", "-f", "-", input=foreign)
    vm.run("iptables", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "--dport", "9", "-j", "ACCEPT")
    vm.run("ip", "rule", "add", "pref", "77", "fwmark", "7", "lookup", "133")
    for text in ("OUTPUT", "PREROUTING"):
        vm.run("iptables", "-t", "mangle", "-A", text, "-p", "tcp", "--dport", "9", "-j", "ACCEPT")
        vm.run("iptables", "-t", "raw", "-A", text, "-p", "tcp", "--dport", "9", "-j", "ACCEPT")
        vm.run("iptables", "-t", "nat", "-A", text, "-p", "tcp", "--dport", "9", "-j", "ACCEPT")
    before = everything(vm)
    apply(vm, backend, "-m", "TPROXY", "--capture-all-dns")
    assert everything(vm) != before
    done = vm.mesh_pilot("iptables", "clean")
    assert f"rules of {backend} are removed" in done.stderr
    assert everything(vm) == before
    done = vm.mesh_pilot("iptables", "clean")
    assert "there were no rules" in done.stderr
    assert everything(vm) == before
    vm.run("nft", "flush", "ruleset")
    vm.run("ip", "rule", "del", "pref", "77")


def test_rules_of_the_legacy_iptables_are_found_and_removed(lab: tuple[Machine, Machine]) -> None:
    vm, _outside = lab
    text = vm.mesh_pilot("iptables", "show", "--backend", "iptables").stdout
    vm.run("iptables-legacy-restore", "--noflush", input=text)
    assert reached(vm.ask("10.99.0.1", 443)) == OUTBOUND
    vm.mesh_pilot("iptables", "clean")
    assert reached(vm.ask("10.99.0.1", 443)) == 443
    assert "ISTIO" not in everything(vm)


def test_a_failure_in_the_middle_leaves_what_was_in_force(lab: tuple[Machine, Machine], tmp_path: Path) -> None:
    vm, _outside = lab
    apply(vm, "iptables", "-b", "80")
    before = everything(vm)
    broken = tmp_path / "ip6tables-restore"
    broken.write_text(
        '#!/bin/sh\ncase "$*" in *--test*) exit 0;; esac\necho "ip6tables-restore: line 3 failed" >&2; exit 1\n'
    )
    broken.chmod(0o755)
    done = vm.mesh_pilot(
        "iptables", "apply", "--backend", "iptables", "-m", "TPROXY", "--ip-family", "ipv6",
        check=False, PATH=f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "mesh-pilot: ip6tables-restore: line 3 failed\n"
    assert sorted(everything(vm).splitlines()) == sorted(before.splitlines())
    vm.mesh_pilot("iptables", "clean")


def test_without_rights_nothing_is_changed_but_show_works(lab: tuple[Machine, Machine]) -> None:
    vm, _outside = lab
    before = everything(vm)
    for words in (("apply",), ("clean",)):
        done = vm.run(
            "setpriv", "--bounding-set", "-net_admin", sys.executable, "-m", "mesh_pilot.cli", "iptables", *words,
            check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1 and is_quoted(done.stderr.rstrip())
    assert everything(vm) == before


@pytest.mark.parametrize(
    ("backend", "advice"),
    [
        ("nft", "there is no nft on this machine: install the package nftables"),
        ("iptables", "there is no iptables-save on this machine: install the package iptables"),
        ("auto", "neither nft nor iptables-restore is on this machine: install the package nftables"),
    ],
)
def test_a_tool_that_is_not_there_is_named_with_its_package(
    lab: tuple[Machine, Machine], backend: str, advice: str, tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        "from mesh_pilot.agent.interception import firewall, tools\n"
        "tools.find = firewall.find = lambda name: None\n"
        "from mesh_pilot.cli import main\n"
        "main()\n"
    )
    done = lab[0].run(
        sys.executable, "-c", script, "iptables", "apply", "--backend", backend,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"mesh-pilot: {advice}\n")
