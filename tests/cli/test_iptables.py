"""``mesh-pilot iptables show``: flags, Istio's variables, users by name, and mistakes."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mesh_pilot.cli.proxy.iptables import command

SYN = "tcp flags & (fin | syn | rst | ack) == syn"
"""Of packets that open a connection."""


def show(*flags: str, tool: str = "nft", **variables: str) -> Result:
    environment = {"ENVOY_USER": "", **variables}
    return CliRunner().invoke(command, ["show", "--backend", tool, *flags], env=environment)


def rules(*flags: str, tool: str = "nft", **variables: str) -> list[str]:
    done = show(*flags, tool=tool, **variables)
    assert done.exit_code == 0, done.output
    return [line.strip() for line in done.stdout.splitlines()]


def test_istios_variables_are_honoured_ours_win_and_flags_win_over_both() -> None:
    found = rules(
        ISTIO_INBOUND_PORTS="80,9000:9010",
        ISTIO_LOCAL_EXCLUDE_PORTS="9001",
        ISTIO_SERVICE_CIDR="10.0.0.0/8",
        ISTIO_SERVICE_EXCLUDE_CIDR="10.1.0.0/16",
        ISTIO_OUTBOUND_PORTS="443",
        ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE="25",
        ISTIO_EXCLUDE_INTERFACES="docker0",
        ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE="44",
        ENVOY_PORT="16001",
        INBOUND_CAPTURE_PORT="16006",
        PROXY_UID="77",
        PROXY_GID="78",
    )
    assert "tcp dport 9000-9010 jump nat_ISTIO_IN_REDIRECT" in found
    assert "tcp dport 9001 return" in found and "tcp dport 22 return" not in found
    assert "ip daddr 10.1.0.0/16 return" in found
    assert "ip daddr 10.0.0.0/8 jump nat_ISTIO_REDIRECT" in found
    assert "tcp dport 443 jump nat_ISTIO_REDIRECT" in found
    assert "tcp dport 25 return" in found
    assert 'iifname "docker0" return' in found
    assert "meta skgid 44 return" in found
    assert f"meta l4proto tcp {SYN} redirect to :16001" in found
    assert f"meta l4proto tcp {SYN} redirect to :16006" in found
    assert "meta skuid 77 return" in found and "meta skgid 78 return" in found
    assert "meta skuid 6 return" in rules(PROXY_UID="5", MESH_PILOT_IPTABLES_PROXY_UID="6")
    assert "meta skuid 7 return" in rules("-u", "7", PROXY_UID="5", MESH_PILOT_IPTABLES_PROXY_UID="6")


def test_a_mark_and_its_routes_are_shown_for_tproxy() -> None:
    found = rules("-r", "200", ISTIO_INBOUND_INTERCEPTION_MODE="TPROXY", ISTIO_INBOUND_TPROXY_MARK="99")
    assert f"ip daddr != 127.0.0.1/32 meta l4proto tcp {SYN} tproxy ip to :15006 meta mark set 99 accept" in found
    assert found[-2:] == [
        "# ip -4 route replace local 0.0.0.0/0 dev lo table 200",
        "# ip -4 rule add pref 15006 fwmark 0x63 lookup 200",
    ]


def test_dns_is_captured_where_the_agents_variable_says_so(tmp_path: Path) -> None:
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("# of DHCP\nnameserver 10.0.0.2\nnameserver fe80::1%eth0\nnameserver nonsense\n")
    found = rules("--resolv-conf", str(resolv_conf), ISTIO_META_DNS_CAPTURE="true")
    assert "ip daddr 10.0.0.2/32 udp dport 53 redirect to :15053" in found
    assert "udp dport 53 redirect to :15053" in rules(ISTIO_META_DNS_CAPTURE="true", CAPTURE_ALL_DNS="true")
    assert not any("15053" in line for line in rules())


def test_a_circle_of_name_servers_is_warned_of(tmp_path: Path) -> None:
    resolv_conf = tmp_path / "resolv.conf"
    resolv_conf.write_text("nameserver 127.0.0.53\n")
    assert "round in a circle" in show("--capture-all-dns", "--resolv-conf", str(resolv_conf)).stderr
    assert show("--redirect-dns", "--resolv-conf", str(resolv_conf)).stderr == ""


def test_the_proxys_user_may_be_named() -> None:
    user = pwd.getpwuid(os.getuid())
    assert f"meta skuid {user.pw_uid} return" in rules("-u", user.pw_name)
    assert f"meta skuid {user.pw_uid} return" in rules(ENVOY_USER=user.pw_name)
    assert "every process of root's" in show("-u", "0").stderr


def test_the_text_for_iptables_is_what_its_restore_reads() -> None:
    found = rules(tool="iptables")
    assert found[0] == "# iptables-restore --noflush"
    assert found.count("COMMIT") == 1
    assert "-A ISTIO_REDIRECT -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j REDIRECT --to-ports 15001" in found


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-b", "http"], "'http' is not a port: write 80, 8000-8100 or several with commas between"),
        (["-i", "10.0.0.0/33"], "'10.0.0.0/33' is not a range of addresses"),
        (["-u", "no-such-user"], "there is no user 'no-such-user' on this machine: make it, or name another by -u"),
        (["-g", "no-such-group"], "there is no group 'no-such-group' on this machine"),
        (["-c", "lo"], "'lo' is not a network interface that can be excluded"),
        (["-p", "15006"], "outbound, inbound and DNS need a port each"),
        (["--redirect-dns", "--resolv-conf", "/nowhere"], "/nowhere: No such file or directory; give --resolv-conf"),
        (["--redirect-dns", "--resolv-conf", "/dev/null"], "names no name server whose queries could be captured"),
    ],
)
def test_a_mistake_is_one_line_with_what_to_do(flags: list[str], message: str) -> None:
    done = show(*flags)
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ") and message in done.stderr and done.stderr.count("\n") == 1
