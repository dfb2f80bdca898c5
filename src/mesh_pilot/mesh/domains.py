"""Domains: the names by which clients reach a service, as the ``domains`` of its virtual host.

Rules as in Pilot: the full name, the short forms that resolve for the client (in the namespaces of a cluster's DNS,
or by what it shares with the client's own domain), and the service's addresses; each with and without the port.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.model.service import UNSPECIFIED, Resolution, Service

SERVICES = ".svc."
"""Parts the namespace from the mesh's domain in names of cluster services."""


def host_port(host: str, port: int | str) -> str:
    """``host:port``; IPv6 addresses in brackets."""
    return f"{in_brackets(host)}:{port}"


def in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def service_names(service: Service, dns_domain: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(all names, those of them that are short forms) of a service, without its addresses."""
    short = tuple(_short_forms(service.host, dns_domain))
    names = (service.host, *short)
    if service.resolution is Resolution.PASSTHROUGH and service.registry == "Kubernetes":
        # A headless service: its pods have names of their own below it.
        names += tuple(f"*.{name}" for name in names)
    return names, short


def service_addresses(service: Service, scope: OutboundScope) -> tuple[str, ...]:
    """The service's virtual addresses that a request can name as its host."""
    found = [a for a in service.addresses if a != UNSPECIFIED and "/" not in a]
    if not service.addresses and scope.auto_addresses and service.auto_address:
        found.append(service.auto_address)
    return tuple(found)


class Claims:
    """Domains given out so far: within a route table each may stand once, in whatever case."""

    def __init__(self, known: Collection[str]) -> None:
        """``known``: names that some service has itself; they are not another's short form, in whatever case."""
        self._known = frozenset(name.lower() for name in known)
        self._taken: set[str] = set()

    def take(self, names: Iterable[str], short: Collection[str], port: int, *, bare: bool) -> tuple[str, ...]:
        """The domains for these names that are still free: with the port, and (``bare``) without.

        ``short`` are those of the names that are short forms.
        """
        free: list[str] = []
        for name in names:
            wanted = (in_brackets(name), host_port(name, port)) if bare else (host_port(name, port),)
            for domain in wanted:
                lower = domain.lower()
                if lower in self._taken or (name in short and lower in self._known):
                    continue
                self._taken.add(lower)
                free.append(domain)
        return tuple(free)


def _short_forms(host: str, dns_domain: str) -> Iterator[str]:
    proxy_namespace, in_cluster, _ = dns_domain.partition(SERVICES)
    if in_cluster:
        name, dot, rest = host.partition(".")
        namespace, found, _ = rest.partition(SERVICES)
        if not dot or not found:
            return
        if namespace == proxy_namespace:
            yield name
            yield f"{name}.{namespace}.svc"
            yield f"{name}.{namespace}"
        else:
            yield f"{name}.{namespace}"
            yield f"{name}.{namespace}.svc"
        return
    own, shared = _parted(host.split("."), dns_domain.split("."))
    if own and shared:
        yield ".".join(own)
        if len(own) == 2:
            yield ".".join((*own, shared[0]))


def _parted(host: list[str], domain: list[str]) -> tuple[list[str], list[str]]:
    """A host's labels parted into its own and those at its end that the domain has too."""
    common = 0
    while common < min(len(host), len(domain)) and host[-1 - common] == domain[-1 - common]:
        common += 1
    at = len(host) - common
    return host[:at], host[at:]
