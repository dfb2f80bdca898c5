"""The names of the mesh, as a client of this machine may spell them.

Rules are those of Istio's DNS proxy: a full host name; for services of a cluster ``name.namespace.svc``,
``name.namespace`` and, in the client's own namespace, ``name``; each with a search domain appended; else the longest
wildcard host. No CNAME says which: the answer is under the name that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network

import attrs
import structlog
from dns.exception import DNSException
from dns.rdata import Rdata

from mesh_pilot.agent.dns.messages import address_data
from mesh_pilot.agent.relay.subscriptions import NameRow

log = structlog.get_logger(scope="agent.dns")

AUTOMATIC = (ip_network("241.0.0.0/8"), ip_network("240.240.0.0/16"), ip_network("2001:2::/48"))
"""The ranges from which control planes, ours and Istio's, give services addresses: no name server knows them."""
_REVERSE_4, _REVERSE_6 = ".in-addr.arpa", ".ip6.arpa"


@attrs.frozen
class MeshName:
    """A host of the mesh, as it was found."""

    host: str
    row: NameRow


class MeshNames:
    """An index of a name table. Made again when the table or the search domains change."""

    def __init__(
        self, rows: Mapping[str, NameRow], namespace: str = "", domain: str = "", search: Sequence[str] = ()
    ) -> None:
        """``namespace`` and ``domain`` (``cluster.local``) are those of the client."""
        self._suffixes = tuple(f".{each.strip('.').lower()}" for each in search if each.strip("."))
        self._hosts: dict[str, MeshName] = {}
        self._reverse: dict[str, list[str]] | None = None
        self._data: dict[str, tuple[Rdata, ...]] = {}
        cluster = f".svc.{domain}".lower()
        short: dict[str, MeshName] = {}
        for host, row in rows.items():
            name = MeshName(host.rstrip(".").lower(), row)
            self._hosts[name.host] = name
            if domain and row.short_name and row.namespace and name.host.endswith(cluster):
                first, second = row.short_name.lower(), row.namespace.lower()
                short[f"{first}.{second}"] = short[f"{first}.{second}.svc"] = name
                if row.namespace == namespace:
                    short[first] = name
        for spelling, name in short.items():
            self._hosts.setdefault(spelling, name)
        self._has_wildcards = any(host.startswith("*.") for host in self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def find(self, name: str) -> MeshName | None:
        """The host that a name, in lower case, means; None if the mesh does not have it."""
        spellings = [name, *(name.removesuffix(s) for s in self._suffixes if name.endswith(s) and name != s[1:])]
        for spelling in spellings:
            if found := self._hosts.get(spelling):
                return found
        if not self._has_wildcards:
            return None
        for spelling in spellings:
            for parent in _parents(spelling):
                if found := self._hosts.get(f"*.{parent}"):
                    return found
        return None

    def find_service(self, name: str) -> tuple[MeshName, tuple[int, ...]] | None:
        """The host and ports of a service, in lower case: ``_http._tcp.reviews.shop.svc.cluster.local``, or its host.

        None if the mesh does not have it, or it has no such port.
        """
        if not name.startswith("_"):
            found = self.find(name)
            return (found, tuple(number for number, _ in found.row.ports)) if found and found.row.ports else None
        port, _, rest = name[1:].partition(".")
        protocol, _, host = rest.partition(".")
        found = self.find(host) if protocol in ("_tcp", "_udp") else None
        numbers = tuple(number for number, each in found.row.ports if each.lower() == port) if found else ()
        return (found, numbers) if found and numbers else None

    def data_of(self, name: MeshName) -> tuple[Rdata, ...]:
        """The data of its A and AAAA records."""
        data = self._data.get(name.host)
        if data is None:
            data = self._data[name.host] = tuple(_data(name))
        return data

    def hosts_of(self, reverse_name: str) -> tuple[str, ...] | None:
        """The hosts of the automatic address that a name below ``in-addr.arpa`` or ``ip6.arpa`` spells.

        None for all other addresses: they have names that only name servers know.
        """
        address = _reversed_address(reverse_name)
        if address is None or not any(ip_address(address) in network for network in AUTOMATIC):
            return None
        if self._reverse is None:
            self._reverse = {}
            for name in dict.fromkeys(self._hosts.values()):
                for each in name.row.addresses:
                    self._reverse.setdefault(each, []).append(name.host)
        return tuple(self._reverse.get(address, ()))


def _data(name: MeshName) -> Iterator[Rdata]:
    for address in name.row.addresses:
        try:
            yield address_data(address)
        except DNSException:
            log.warning("invalid address in the name table; it is left out", host=name.host, address=address)


def _parents(name: str) -> Iterator[str]:
    while (dot := name.find(".")) >= 0:
        name = name[dot + 1 :]
        if name:
            yield name


def _reversed_address(name: str) -> str | None:
    if name.endswith(_REVERSE_4):
        text = ".".join(reversed(name.removesuffix(_REVERSE_4).split(".")))
    elif name.endswith(_REVERSE_6):
        digits = "".join(reversed(name.removesuffix(_REVERSE_6).split(".")))
        text = ":".join(digits[at : at + 4] for at in range(0, len(digits), 4))
    else:
        return None
    try:
        return str(ip_address(text))
    except ValueError:
        return None
