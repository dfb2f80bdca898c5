"""The traffic that is captured: values without I/O, read from the text of Istio's flags."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import TypeAlias

import attrs

from mesh_pilot.model.proxy import Interception

Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"
Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

ALL = "*"
AGENT_PORTS = "15020,15021,15090,15092"
"""Merged metrics, readiness and Envoy's metrics, which are never captured: they answer in plaintext."""
CONSUL_PORTS = "8300-8302"
"""Raft, and gossip over TCP in the LAN and the WAN: servers and agents have their own TLS."""
INBOUND_EXCLUSIONS = f"22,{CONSUL_PORTS}"
"""Ports that are not captured besides when all inbound ports are and no exclusion is given."""


class InterceptionError(Exception):
    """A reason why no rules can be made or applied: one line for users, with what to do."""


@attrs.frozen(order=True)
class PortSpan:
    """Ports from ``first`` to ``last``, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def __contains__(self, port: int) -> bool:
        return self.first <= port <= self.last

    @classmethod
    def parse(cls, text: str) -> PortSpan:
        """Read ``80`` or ``8000-8100`` (``8000:8100``). Raises InterceptionError."""
        found = re.fullmatch(r"(\d{1,5})(?:[-:](\d{1,5}))?", text)
        if found is not None:
            first, last = int(found[1]), int(found[2] or found[1])
            if 0 < first <= last < 65536:
                return cls(first, last)
        raise InterceptionError(f"{text!r} is not a port: write 80, 8000-8100 or several with commas between")


def words(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part for part in (part.strip() for part in text.split(",")) if part]


def ports(text: str) -> tuple[PortSpan, ...]:
    """Ports and ranges of a list with commas, sorted, each once. Raises InterceptionError."""
    return tuple(sorted({PortSpan.parse(part) for part in words(text)}))


def networks(text: str) -> tuple[Network, ...]:
    """Networks of a list with commas, each once; an address is a network of one. Raises InterceptionError."""
    found: dict[Network, None] = {}
    for part in words(text):
        try:
            found[ipaddress.ip_network(part, strict=False)] = None
        except ValueError:
            raise InterceptionError(
                f"{part!r} is not a range of addresses: write 10.0.0.0/8 or fd00::/8, several with commas between"
            ) from None
    return tuple(found)


def interfaces(text: str) -> tuple[str, ...]:
    """Names of network interfaces of a list with commas. Raises InterceptionError."""
    for part in words(text):
        if not re.fullmatch(r"[A-Za-z0-9_.@:-]{1,15}\+?", part) or part == "lo":
            raise InterceptionError(
                f"{part!r} is not a network interface that can be excluded: see `ip link`; eth+ stands for every eth"
            )
    return tuple(dict.fromkeys(words(text)))


@attrs.frozen
class Redirection:
    """The traffic that goes through Envoy. None as ports or networks: all; an empty tuple: none."""

    proxy_uids: tuple[int, ...] = (1337,)
    """Users whose connections are Envoy's and the agent's: captured only on the way back to this machine."""
    proxy_gids: tuple[int, ...] = (1337,)
    outbound_port: int = 15001
    inbound_port: int = 15006
    mode: Interception = Interception.REDIRECT
    inbound_ports: tuple[PortSpan, ...] | None = None
    inbound_excluded: tuple[PortSpan, ...] = ports(f"{AGENT_PORTS},{INBOUND_EXCLUSIONS}")
    outbound_networks: tuple[Network, ...] | None = None
    outbound_networks_excluded: tuple[Network, ...] = ()
    outbound_ports: tuple[PortSpan, ...] = ()
    """Captured whatever their network is."""
    outbound_ports_excluded: tuple[PortSpan, ...] = ports(CONSUL_PORTS)
    groups: tuple[int, ...] | None = None
    """Groups whose connections are captured."""
    groups_excluded: tuple[int, ...] = ()
    interfaces_excluded: tuple[str, ...] = ()
    internal_interfaces: tuple[str, ...] = ()
    """Interfaces of virtual machines on this one, whose connections count as outbound."""
    dns_port: int = 0
    """The agent's port for DNS; 0: DNS is not captured."""
    dns_servers: tuple[Address, ...] | None = None
    """The name servers whose queries are captured."""
    drop_invalid: bool = False
    """Drop packets that belong to no connection, which would reset one."""
    mark: int = 1337
    """The mark of packets between Envoy and the application, with TPROXY."""
    route_table: int = 133
    """The table with the route for those packets."""
    ipv4: bool = True
    ipv6: bool = False

    def __attrs_post_init__(self) -> None:
        if self.mode not in (Interception.REDIRECT, Interception.TPROXY):
            raise InterceptionError(f"the mode {self.mode} needs no rules: choose REDIRECT or TPROXY")
        if not self.proxy_uids and not self.proxy_gids:
            raise InterceptionError("neither user nor group of the proxy is known: its own traffic would go round")
        if len({self.outbound_port, self.inbound_port, self.dns_port}) < 3:
            raise InterceptionError("outbound, inbound and DNS need a port each")
        if not self.ipv4 and not self.ipv6:
            raise InterceptionError("neither IPv4 nor IPv6 is to be captured")
        if self.mark == OUTBOUND_MARK:
            raise InterceptionError(f"the mark {OUTBOUND_MARK} is taken: choose another")

    @property
    def families(self) -> Sequence[int]:
        return [version for version, wanted in ((4, self.ipv4), (6, self.ipv6)) if wanted]


OUTBOUND_MARK = 1338
"""With TPROXY: of Envoy's packets to its own machine, which are not captured as inbound again."""
