"""The rules, a pure function of what is to be captured. Their order is Istio's (``istio-iptables``).

A packet passes the hooks ``PREROUTING`` (from outside, or looped back) and ``OUTPUT`` (from a process here), and there
the tables raw, mangle, nat. From each hook one rule leads into a chain of ours, so that what is ours is known by the
names of the chains.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import attrs

from mesh_pilot.agent.interception.settings import OUTBOUND_MARK, Address, Network, PortSpan, Redirection
from mesh_pilot.model.proxy import Interception

PREFIX = "ISTIO_"
LOOPBACK: Mapping[int, Network] = {4: ipaddress.ip_network("127.0.0.1/32"), 6: ipaddress.ip_network("::1/128")}
PASSTHROUGH: Mapping[int, Network] = {4: ipaddress.ip_network("127.0.0.6/32"), 6: ipaddress.ip_network("::6/128")}
"""The address from which Envoy connects to the application on behalf of others."""
DNS = PortSpan(53, 53)
UPSTREAM_ZONE = 1
"""Conntrack zone of the agent's queries to name servers."""
CLIENT_ZONE = 2
"""Conntrack zone of applications' queries: the same ports, but other connections."""


class PacketTable(StrEnum):
    RAW = "raw"
    MANGLE = "mangle"
    NAT = "nat"


class Hook(StrEnum):
    PREROUTING = "PREROUTING"
    OUTPUT = "OUTPUT"


class Action(StrEnum):
    """The fate of a packet that a rule applies to; the rule's ``value`` says more."""

    RETURN = "RETURN"
    ACCEPT = "ACCEPT"
    DROP = "DROP"
    JUMP = "JUMP"
    """Into the chain ``value``."""
    REDIRECT = "REDIRECT"
    """To the port ``value`` of this machine."""
    TPROXY = "TPROXY"
    """To the port ``value``, addresses unchanged, and ``set_mark``."""
    MARK = "MARK"
    SAVE_MARK = "SAVE_MARK"
    """The packet's mark becomes its connection's."""
    RESTORE_MARK = "RESTORE_MARK"
    ZONE = "ZONE"


@attrs.frozen
class Negated:
    """Anything but ``value``."""

    value: Network | PortSpan | int


@attrs.frozen(kw_only=True)
class PacketRule:
    """A rule applies to a packet if each thing that it names is so; None is not asked."""

    action: Action
    value: str | int = ""
    set_mark: int = 0
    family: int | None = None
    """4 or 6."""
    protocol: str | None = None
    source: Network | None = None
    destination: Network | Negated | None = None
    source_port: PortSpan | None = None
    port: PortSpan | Negated | None = None
    """The destination's; needs ``protocol``."""
    came_by: str | None = None
    """Network interface; a plus at its end stands for any rest."""
    leaves_by: str | None = None
    uid: int | None = None
    gid: int | None = None
    not_gids: tuple[int, ...] = ()
    mark: int | Negated | None = None
    connection_mark: int | None = None
    states: tuple[str, ...] = ()
    """States of the connection, in iptables' capitals."""
    opens: bool = False
    """True: only of packets that open a TCP connection (SYN without ACK); such a rule has no other protocol."""

    def matches(self) -> Iterator[tuple[str, Any, bool]]:
        """The things that it names next to the family: each with its value, and whether anything but that is meant."""
        for name in _MATCHED:
            value = getattr(self, name)
            if name == "not_gids":
                yield from ((name, gid, False) for gid in value)
            elif value is not None and value is not False and value != ():
                yield (name, value.value, True) if isinstance(value, Negated) else (name, value, False)


_MATCHED = (
    "source",
    "destination",
    "came_by",
    "leaves_by",
    "protocol",
    "source_port",
    "port",
    "uid",
    "gid",
    "not_gids",
    "mark",
    "connection_mark",
    "opens",
    "states",
)
"""The order in which the tools are told."""


@attrs.frozen
class PacketChain:
    table: PacketTable
    name: str
    rules: tuple[PacketRule, ...]
    hook: Hook | None = None
    """Where all packets enter it; None: only by jumps."""


@attrs.frozen
class RuleSet:
    """All rules, and the routing that they need."""

    chains: tuple[PacketChain, ...]
    families: tuple[int, ...]
    mark: int = 0
    """Packets with it are for this machine (TPROXY); 0: none."""
    route_table: int = 0


class _Builder:
    """Collects the rules of each chain in order. Chains with no rule are left out, with the jumps to them."""

    def __init__(self, wanted: Redirection) -> None:
        self.wanted = wanted
        self._chains: dict[tuple[PacketTable, str], list[PacketRule]] = {}
        self._owners: list[Mapping[str, Any]] = [
            *({"uid": uid} for uid in wanted.proxy_uids),
            *({"gid": gid} for gid in wanted.proxy_gids),
        ]

    def add(self, table: PacketTable, chain: str, *rules: PacketRule) -> None:
        self._chains.setdefault((table, PREFIX + chain), []).extend(rules)

    def finished(self) -> RuleSet:
        hooks = {PREFIX + hook: hook for hook in Hook}
        order = list(PacketTable)
        chains = [
            PacketChain(table, name, tuple(rules), hooks.get(name)) for (table, name), rules in self._chains.items()
        ]
        wanted = self.wanted
        tproxy = wanted.mode is Interception.TPROXY and wanted.inbound_ports != ()
        return RuleSet(
            tuple(sorted(chains, key=lambda chain: (order.index(chain.table), chain.name))),
            tuple(wanted.families),
            wanted.mark if tproxy else 0,
            wanted.route_table if tproxy else 0,
        )

    def interfaces(self) -> None:
        """Before all else: interfaces that are left alone, and those of virtual machines on this one."""
        wanted, nat = self.wanted, PacketTable.NAT
        tables = [nat, *([PacketTable.MANGLE] if wanted.mode is Interception.TPROXY else [])]
        for table in tables:
            for name in wanted.interfaces_excluded:
                self.add(table, Hook.PREROUTING, _passed_by(came_by=name))
                self.add(table, Hook.OUTPUT, _passed_by(leaves_by=name))
        for name in wanted.internal_interfaces:
            for network in wanted.outbound_networks_excluded:
                self.add(nat, Hook.PREROUTING, _passed_by(came_by=name, family=network.version, destination=network))
            for target in _targets(wanted.outbound_networks):
                self.add(nat, Hook.PREROUTING, _to_envoy(came_by=name, **target))
            self.add(nat, Hook.PREROUTING, _passed_by(came_by=name))

    def redirects(self) -> None:
        """The two ways into Envoy.

        Only for connections that begin. Where nothing has tracked connections before, the first packet after ``apply``
        of one that is open is "new" to the kernel, too; Envoy, which knows no such connection, would reset it.
        """
        for chain, port in (("REDIRECT", self.wanted.outbound_port), ("IN_REDIRECT", self.wanted.inbound_port)):
            self.add(PacketTable.NAT, chain, PacketRule(action=Action.REDIRECT, value=port, protocol="tcp", opens=True))

    def inbound(self) -> None:
        wanted = self.wanted
        if wanted.drop_invalid:
            self.add(PacketTable.MANGLE, Hook.PREROUTING, PacketRule(action=Action.DROP, states=("INVALID",)))
        if wanted.inbound_ports == ():
            return
        tproxy = wanted.mode is Interception.TPROXY
        table = PacketTable.MANGLE if tproxy else PacketTable.NAT
        if tproxy:
            self._tproxy()
        self.add(table, Hook.PREROUTING, _jump("INBOUND", protocol="tcp"))
        for span in wanted.inbound_excluded:
            self.add(table, "INBOUND", _passed_by(protocol="tcp", port=span))
        spans: tuple[PortSpan | None, ...] = (None,) if wanted.inbound_ports is None else wanted.inbound_ports
        for port in spans:
            if tproxy:
                known = ("RELATED", "ESTABLISHED")
                self.add(table, "INBOUND", _jump("DIVERT", protocol="tcp", port=port, states=known))
                self.add(table, "INBOUND", _jump("TPROXY", protocol="tcp", port=port))
            else:
                self.add(table, "INBOUND", _jump("IN_REDIRECT", protocol="tcp", port=port))

    def _tproxy(self) -> None:
        """The way that keeps addresses: Envoy connects to the application with the caller's address, and a mark."""
        mangle, mark = PacketTable.MANGLE, self.wanted.mark
        self.add(mangle, "DIVERT", PacketRule(action=Action.MARK, set_mark=mark), PacketRule(action=Action.ACCEPT))
        for version, loopback in LOOPBACK.items():
            into = PacketRule(
                action=Action.TPROXY,
                value=self.wanted.inbound_port,
                set_mark=mark,
                family=version,
                protocol="tcp",
                destination=Negated(loopback),
                opens=True,
            )
            self.add(mangle, "TPROXY", into)
        self.add(mangle, Hook.PREROUTING, PacketRule(action=Action.SAVE_MARK, protocol="tcp", mark=mark))
        self.add(mangle, Hook.OUTPUT, _passed_by(protocol="tcp", leaves_by="lo", mark=mark))
        for owner in self._owners:
            for version, loopback in LOOPBACK.items():
                own = PacketRule(
                    action=Action.MARK,
                    set_mark=OUTBOUND_MARK,
                    family=version,
                    protocol="tcp",
                    leaves_by="lo",
                    destination=Negated(loopback),
                    **owner,
                )
                self.add(mangle, Hook.OUTPUT, own)
        # The application's answers find the way back to Envoy.
        self.add(mangle, Hook.OUTPUT, PacketRule(action=Action.RESTORE_MARK, protocol="tcp", connection_mark=mark))
        self.add(mangle, "INBOUND", _passed_by(protocol="tcp", mark=mark))
        for version, source in PASSTHROUGH.items():
            back = _passed_by(family=version, protocol="tcp", source=source, came_by="lo")
            self.add(mangle, "INBOUND", back)
        local = _passed_by(protocol="tcp", came_by="lo", mark=Negated(OUTBOUND_MARK))
        self.add(mangle, "INBOUND", local)

    def outbound(self) -> None:
        wanted, nat = self.wanted, PacketTable.NAT
        self.add(nat, Hook.OUTPUT, _jump("OUTBOUND", protocol="tcp"))
        for span in wanted.outbound_ports_excluded:
            self.add(nat, "OUTBOUND", _passed_by(protocol="tcp", port=span))
        for version, source in PASSTHROUGH.items():
            back = _passed_by(family=version, leaves_by="lo", source=source)
            self.add(nat, "OUTBOUND", back)
        if wanted.mode is Interception.TPROXY:
            # Envoy that connects to the application with the caller's address.
            own = _passed_by(protocol="tcp", leaves_by="lo", mark=wanted.mark)
            self.add(nat, "OUTBOUND", own)
        # The application that calls its own service by name: through Envoy's client side, then through its server side.
        not_dns: Mapping[str, Any] = {"protocol": "tcp", "port": Negated(DNS) if wanted.dns_port else None}
        for owner in self._owners:
            for version, loopback in LOOPBACK.items():
                itself: Mapping[str, Any] = {"family": version, "leaves_by": "lo", "destination": Negated(loopback)}
                self.add(nat, "OUTBOUND", _jump("IN_REDIRECT", **itself, **owner, **not_dns))
        for owner in self._owners:
            self.add(nat, "OUTBOUND", _passed_by(**owner))
        # The application that calls itself by its address. A local name server may be among what follows, though.
        for version in (4, 6):
            if not any(network.is_loopback for network in _of(version, wanted.outbound_networks or ())):
                self.add(nat, "OUTBOUND", _passed_by(family=version, leaves_by="lo", **not_dns))
        for rule in self._groups():
            self.add(nat, "OUTBOUND", rule)
        for server in self._dns_servers():
            into = PacketRule(
                action=Action.REDIRECT, value=wanted.dns_port, protocol="tcp", port=DNS, opens=True, **server
            )
            self.add(nat, "OUTBOUND", into)
        for version, loopback in LOOPBACK.items():
            self.add(nat, "OUTBOUND", _passed_by(family=version, destination=loopback))
        for network in wanted.outbound_networks_excluded:
            excluded = _passed_by(family=network.version, destination=network)
            self.add(nat, "OUTBOUND", excluded)
        for span in wanted.outbound_ports:
            self.add(nat, "OUTBOUND", _to_envoy(protocol="tcp", port=span))
        for target in _targets(wanted.outbound_networks):
            self.add(nat, "OUTBOUND", _to_envoy(**target))

    def _groups(self) -> Iterable[PacketRule]:
        if self.wanted.groups is not None:
            yield _passed_by(not_gids=self.wanted.groups)
        for gid in self.wanted.groups_excluded:
            yield _passed_by(gid=gid)

    def _dns_servers(self) -> list[Mapping[str, Any]]:
        servers = self.wanted.dns_servers
        if not self.wanted.dns_port:
            return []
        return [{}] if servers is None else [_destination(server) for server in servers]

    def dns(self) -> None:
        """Queries over UDP; those over TCP are among the outbound connections."""
        wanted, nat, raw = self.wanted, PacketTable.NAT, PacketTable.RAW
        if not wanted.dns_port:
            return
        udp: Mapping[str, Any] = {"protocol": "udp", "port": DNS}
        agent = PortSpan(wanted.dns_port, wanted.dns_port)
        self.add(nat, Hook.OUTPUT, _jump("DNS", **udp))
        for owner in self._owners:
            self.add(nat, "DNS", _passed_by(**owner))
            query = PacketRule(action=Action.ZONE, value=UPSTREAM_ZONE, **udp, **owner)
            answer = PacketRule(action=Action.ZONE, value=CLIENT_ZONE, protocol="udp", source_port=agent, **owner)
            self.add(raw, Hook.OUTPUT, query, answer)
        for rule in self._groups():
            self.add(nat, "DNS", rule)
        for server in self._dns_servers():
            into = PacketRule(action=Action.REDIRECT, value=wanted.dns_port, **udp, **server)
            self.add(nat, "DNS", into)
        for server in self._dns_servers():
            self.add(raw, Hook.OUTPUT, PacketRule(action=Action.ZONE, value=CLIENT_ZONE, **udp, **server))
            not_ours = {"source": server["destination"], "family": server["family"]} if server else {}
            back = PacketRule(action=Action.ZONE, value=UPSTREAM_ZONE, protocol="udp", source_port=DNS, **not_ours)
            self.add(raw, Hook.PREROUTING, back)


def _passed_by(**matches: Any) -> PacketRule:
    """A rule by which the rest of its chain does not apply."""
    return PacketRule(action=Action.RETURN, **matches)


def _jump(chain: str, **matches: Any) -> PacketRule:
    return PacketRule(action=Action.JUMP, value=PREFIX + chain, **matches)


def _to_envoy(**matches: Any) -> PacketRule:
    return _jump("REDIRECT", **matches)


def _of(version: int, networks: Iterable[Network]) -> list[Network]:
    return [network for network in networks if network.version == version]


def _targets(networks: Iterable[Network] | None) -> list[Mapping[str, Any]]:
    if networks is None:
        return [{}]
    return [{"family": network.version, "destination": network} for network in networks]


def _destination(server: Address) -> Mapping[str, Any]:
    return {"family": server.version, "destination": ipaddress.ip_network(server)}


def build(wanted: Redirection) -> RuleSet:
    """All rules for what is wanted."""
    builder = _Builder(wanted)
    builder.interfaces()
    builder.redirects()
    builder.inbound()
    builder.outbound()
    builder.dns()
    return builder.finished()
