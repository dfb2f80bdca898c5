"""``mesh-pilot iptables``: the rules by which traffic of a machine's applications goes through its Envoy.

Flags and variables are those of ``istio-iptables``; a variable ``MESH_PILOT_IPTABLES_<FLAG>`` wins over Istio's.
"""

from __future__ import annotations

import grp
import ipaddress
import pwd
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh_pilot.cli.lib.options import ListOption, SettingOption, one_line, variable_of
from mesh_pilot.cli.lib.suggestions import CommandGroup

if TYPE_CHECKING:
    from mesh_pilot.agent.interception.rules import RuleSet
    from mesh_pilot.agent.interception.settings import Address

_PROXY_UID = 1337
_FAMILY_PROBES = ((4, socket.AF_INET, "192.0.2.1"), (6, socket.AF_INET6, "2001:db8::1"))
"""Addresses that no host has: asking for a route to them sends nothing."""


def _option(short: str, name: str, *, istio: str = "", **attributes: Any) -> Callable[[str], Callable[[Any], Any]]:
    """The flag of a section of the help; ``istio``: the variable's name where it is not the flag's."""
    variables = [variable_of(name, "MESH_PILOT_IPTABLES_"), istio or variable_of(name, "")]
    names = [short, name] if short else [name]
    return lambda section: click.option(
        *names, envvar=variables, section=section, **{"cls": SettingOption, **attributes}
    )


_OPTIONS: Mapping[str, Sequence[Callable[[str], Callable[[Any], Any]]]] = {
    "Connections to this machine": (
        _option(
            "-b",
            "--istio-inbound-ports",
            cls=ListOption,
            default="*",
            help="Ports of this machine that others reach by Envoy: * or a list, such as 80,9000-9010; empty: none.",
        ),
        _option(
            "-d",
            "--istio-local-exclude-ports",
            cls=ListOption,
            help="With -b '*', ports that others reach directly. 15020, 15021 and 15090 always are."
            "  [default: 22 and Consul's 8300-8302]",
        ),
        _option(
            "-m",
            "--istio-inbound-interception-mode",
            type=click.Choice(["REDIRECT", "TPROXY"]),
            default="REDIRECT",
            help="TPROXY: the application sees the caller's address; Envoy then needs CAP_NET_ADMIN.",
        ),
        _option(
            "-z",
            "--inbound-capture-port",
            type=click.IntRange(1, 65535),
            default=15006,
            help="Envoy's port for inbound.",
        ),
        _option("-t", "--istio-inbound-tproxy-mark", type=click.IntRange(1), default=1337, help="Mark of TPROXY."),
        _option(
            "-r",
            "--istio-inbound-tproxy-route-table",
            type=click.IntRange(1, 252),
            default=133,
            help="Routing table of TPROXY.",
        ),
    ),
    "Connections of applications": (
        _option(
            "-i",
            "--istio-service-cidr",
            cls=ListOption,
            default="*",
            help="Addresses to which connections of applications go through Envoy: * or a list of ranges; empty: none.",
        ),
        _option(
            "-x", "--istio-service-exclude-cidr", cls=ListOption, default="", help="Ranges of addresses that do not."
        ),
        _option(
            "-q",
            "--istio-outbound-ports",
            cls=ListOption,
            default="",
            help="Ports to which they do, whatever the address is.",
        ),
        _option(
            "-o",
            "--istio-local-outbound-ports-exclude",
            cls=ListOption,
            help="Ports to which they do not.  [default: Consul's 8300-8302]",
        ),
        _option(
            "",
            "--istio-outbound-owner-groups",
            cls=ListOption,
            default="*",
            help="Groups whose connections are captured: * or a list, by name or number.",
        ),
        _option(
            "",
            "--istio-outbound-owner-groups-exclude",
            cls=ListOption,
            default="",
            help="Groups whose connections are not.",
        ),
        _option(
            "-k",
            "--kube-virt-interfaces",
            cls=ListOption,
            default="",
            help="Interfaces of virtual machines on this one, whose connections count as outbound.",
        ),
        _option("-p", "--envoy-port", type=click.IntRange(1, 65535), default=15001, help="Envoy's port for outbound."),
    ),
    "Connections of Envoy and the agent": (
        _option(
            "-u",
            "--proxy-uid",
            cls=ListOption,
            help="Users, by name or number, that Envoy and the agent run as; no other user may."
            "  [default: $ENVOY_USER, else istio-proxy if there is that user, else 1337]",
        ),
        _option(
            "-g",
            "--proxy-gid",
            cls=ListOption,
            help="Groups that they run as.  [default: for a user by name its own group; for a number the same]",
        ),
    ),
    "DNS": (
        _option(
            "",
            "--redirect-dns/--no-redirect-dns",
            istio="ISTIO_META_DNS_CAPTURE",
            default=False,
            help="DNS queries of applications to the name servers of resolv.conf go to the agent.",
        ),
        _option("", "--capture-all-dns/--no-capture-all-dns", default=False, help="Queries to any name server, too."),
        _option("", "--dns-port", type=click.IntRange(1, 65535), default=15053, help="The agent's port for DNS."),
        _option(
            "",
            "--resolv-conf",
            type=click.Path(path_type=Path),
            default="/etc/resolv.conf",
            help="File with the name servers.",
        ),
    ),
    "All": (
        _option(
            "-c",
            "--istio-exclude-interfaces",
            cls=ListOption,
            default="",
            help="Network interfaces that are left alone.",
        ),
        _option(
            "",
            "--ip-family",
            type=click.Choice(["auto", "ipv4", "ipv6", "dual"]),
            default="auto",
            help="What is captured; auto: IPv4 if this machine has it, else IPv6. dual: both, as Envoy's node says.",
        ),
        _option(
            "",
            "--drop-invalid/--no-drop-invalid",
            istio="INVALID_DROP",
            default=False,
            help="Drop packets that belong to no connection, instead of having it reset.",
        ),
        _option(
            "",
            "--backend",
            type=click.Choice(["auto", "nft", "iptables"]),
            default="auto",
            help="The tool; auto: the one already used, else nft, else iptables.",
        ),
    ),
}
"""The flags by sections of the help."""


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    for section, options in reversed([*_OPTIONS.items()]):
        for option in reversed(options):
            command = option(section)(command)
    return command


@click.group("iptables", cls=CommandGroup)
def command() -> None:
    """Lead the traffic of this machine's applications through its Envoy.

    By default all TCP connections from and to this machine are captured, except those of the proxy's user, SSH,
    and what Consul's servers and agents say to each other.
    """


def _note(text: str) -> None:
    click.echo(f"mesh-pilot: {text}", err=True)


@command.command("apply", context_settings={"show_default": True})
@_with_options
def apply_command(backend: str, **flags: Any) -> None:
    """Put the rules in force, in place of those before. All of them, or none."""
    from mesh_pilot.agent.interception import firewall
    from mesh_pilot.agent.interception.settings import InterceptionError

    with one_line(InterceptionError):
        used = firewall.apply(firewall.FirewallTool(backend), _rules(**flags), note=_note)
    _note(f"the rules are in force ({used.name})")


@command.command("clean")
def clean_command() -> None:
    """Remove the rules, and nothing else."""
    from mesh_pilot.agent.interception import firewall
    from mesh_pilot.agent.interception.settings import InterceptionError

    with one_line(InterceptionError):
        removed = firewall.clean(note=_note)
    if not removed:
        _note("there were no rules to remove")


@command.command("show", context_settings={"show_default": True})
@_with_options
def show_command(backend: str, **flags: Any) -> None:
    """Print the rules that apply would put in force. Needs no rights."""
    from mesh_pilot.agent.interception import firewall
    from mesh_pilot.agent.interception.settings import InterceptionError

    with one_line(InterceptionError):
        click.echo(firewall.shown(firewall.FirewallTool(backend), _rules(**flags)), nl=False)


def _rules(**flags: Any) -> RuleSet:
    """The rules for the values of the flags. Raises InterceptionError."""
    from mesh_pilot.agent.interception import settings
    from mesh_pilot.agent.interception.rules import build
    from mesh_pilot.model.proxy import Interception

    inbound, excluded = flags["istio_inbound_ports"].strip(), flags["istio_local_exclude_ports"]
    if excluded is None:
        excluded = settings.INBOUND_EXCLUSIONS if inbound == settings.ALL else ""
    outbound_excluded = flags["istio_local_outbound_ports_exclude"]
    outbound = flags["istio_service_cidr"].strip()
    groups = flags["istio_outbound_owner_groups"].strip()
    uids, gids = _proxy(flags["proxy_uid"], flags["proxy_gid"])
    versions = _versions(flags["ip_family"])
    has_dns = flags["redirect_dns"] or flags["capture_all_dns"]
    servers = _dns_servers(flags["resolv_conf"], everything=flags["capture_all_dns"]) if has_dns else ()
    return build(
        settings.Redirection(
            proxy_uids=uids,
            proxy_gids=gids,
            outbound_port=flags["envoy_port"],
            inbound_port=flags["inbound_capture_port"],
            mode=Interception(flags["istio_inbound_interception_mode"]),
            inbound_ports=None if inbound == settings.ALL else settings.ports(inbound),
            inbound_excluded=settings.ports(f"{settings.AGENT_PORTS},{excluded}"),
            outbound_networks=None if outbound == settings.ALL else settings.networks(outbound),
            outbound_networks_excluded=settings.networks(flags["istio_service_exclude_cidr"]),
            outbound_ports=settings.ports(flags["istio_outbound_ports"]),
            outbound_ports_excluded=settings.ports(
                settings.CONSUL_PORTS if outbound_excluded is None else outbound_excluded
            ),
            groups=None if groups == settings.ALL else tuple(_gid(each) for each in settings.words(groups)),
            groups_excluded=tuple(_gid(each) for each in settings.words(flags["istio_outbound_owner_groups_exclude"])),
            interfaces_excluded=settings.interfaces(flags["istio_exclude_interfaces"]),
            internal_interfaces=settings.interfaces(flags["kube_virt_interfaces"]),
            dns_port=flags["dns_port"] if has_dns else 0,
            dns_servers=servers,
            drop_invalid=flags["drop_invalid"],
            mark=flags["istio_inbound_tproxy_mark"],
            route_table=flags["istio_inbound_tproxy_route_table"],
            ipv4=4 in versions,
            ipv6=6 in versions,
        )
    )


def _proxy(users: str | None, groups: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Users and groups of the proxy, by number. Raises InterceptionError."""
    import os

    from mesh_pilot.agent.interception.settings import words

    if users is None:
        name = os.environ.get("ENVOY_USER")
        try:
            pwd.getpwnam("istio-proxy")
            users = name or "istio-proxy"
        except KeyError:
            users = name or str(_PROXY_UID)
    uids, own_groups = [], []
    for user in words(users):
        uid, gid = _uid(user)
        uids.append(uid)
        own_groups += [] if gid is None else [gid]
    if 0 in uids:
        _note("the proxy's user is root: connections of every process of root's go past Envoy")
    gids = own_groups if groups is None else [_gid(group) for group in words(groups)]
    return tuple(dict.fromkeys(uids)), tuple(dict.fromkeys(gids))


def _uid(user: str) -> tuple[int, int | None]:
    """The number of a user, and of the group that is its alone."""
    from mesh_pilot.agent.interception.settings import InterceptionError

    if user.isdecimal():
        return int(user), int(user)
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise InterceptionError(f"there is no user {user!r} on this machine: make it, or name another by -u") from None
    try:
        own = grp.getgrgid(entry.pw_gid).gr_name == user
    except KeyError:
        own = False
    return entry.pw_uid, entry.pw_gid if own else None


def _gid(group: str) -> int:
    from mesh_pilot.agent.interception.settings import InterceptionError

    if group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise InterceptionError(f"there is no group {group!r} on this machine: make it, or name another") from None


def _versions(family: str) -> tuple[int, ...]:
    """4, 6, or both."""
    if family != "auto":
        return {"ipv4": (4,), "ipv6": (6,), "dual": (4, 6)}[family]
    for version, kind, somewhere in _FAMILY_PROBES:
        try:
            with socket.socket(kind, socket.SOCK_DGRAM) as probe:
                probe.connect((somewhere, 53))
                if not ipaddress.ip_address(probe.getsockname()[0]).is_loopback:
                    return (version,)
        except OSError:
            continue
    return (4,)


def _dns_servers(path: Path, *, everything: bool) -> tuple[Address, ...] | None:
    """The name servers of resolv.conf; None with ``everything``. Raises InterceptionError."""
    from mesh_pilot.agent.interception.settings import InterceptionError

    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError as error:
        if everything:
            return None
        raise InterceptionError(f"{path}: {error.strerror}; give --resolv-conf, or --capture-all-dns") from None
    servers = []
    for words in lines:
        if words[:1] == ["nameserver"] and len(words) > 1:
            try:
                servers.append(ipaddress.ip_address(words[1].partition("%")[0]))
            except ValueError:
                _note(f"{path}: name server {words[1]!r} is not an IP address, and ignored")
    if everything:
        if any(server.is_loopback for server in servers):
            _note(
                f"{path} names a server on this machine, whose own queries are captured with --capture-all-dns: they go"
                " round in a circle unless the agent is told other name servers"
            )
        return None
    if not servers:
        raise InterceptionError(f"{path} names no name server whose queries could be captured: give --capture-all-dns")
    return tuple(dict.fromkeys(servers))
