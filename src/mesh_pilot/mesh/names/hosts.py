"""Names by which clients reach a service: its host, and the short forms that resolve for them.

Short forms are those in the namespaces of a cluster's DNS, or by the labels shared with the client's own domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mesh_pilot.model.service import Service

CLUSTER_SERVICES = ".svc."
"""Separates the namespace from the mesh's domain in names of cluster services."""


def host_port(host: str, port: int | str) -> str:
    """``host:port``; IPv6 addresses in brackets."""
    return f"{in_brackets(host)}:{port}"


def in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def service_names(
    service: Service, dns_domain: str, aliases: Iterable[str] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(all names, those of them that are short forms) of a service and of these aliases, without its addresses."""
    every = [names_of(host, dns_domain) for host in (service.host, *aliases)]
    names, short = (tuple(name for each in every for name in each[first:]) for first in (0, 1))
    if service.headless:
        names += tuple(f"*.{name}" for name in names)
    return names, short


def names_of(host: str, dns_domain: str) -> tuple[str, ...]:
    """A host, and its short forms."""
    return (host, *_short_forms(host, dns_domain))


def _short_forms(host: str, dns_domain: str) -> Iterator[str]:
    proxy_namespace, in_cluster, mesh_domain = dns_domain.partition(CLUSTER_SERVICES)
    if in_cluster:
        name, dot, rest = host.partition(".")
        namespace, found, domain = rest.partition(CLUSTER_SERVICES)
        # A host of another domain must not take the names of the mesh's own services.
        if not dot or not found or domain != mesh_domain:
            return
        if namespace == proxy_namespace:
            yield name
            yield f"{name}.{namespace}.svc"
            yield f"{name}.{namespace}"
        else:
            yield f"{name}.{namespace}"
            yield f"{name}.{namespace}.svc"
        return
    own, shared = _split_labels(host.split("."), dns_domain.split("."))
    if own and shared:
        yield ".".join(own)
        if len(own) == 2:
            yield ".".join((*own, shared[0]))


def _split_labels(host: list[str], domain: list[str]) -> tuple[list[str], list[str]]:
    """A host's labels: those that only it has, and those at its end that it shares with the domain."""
    common = 0
    while common < min(len(host), len(domain)) and host[-1 - common] == domain[-1 - common]:
        common += 1
    start = len(host) - common
    return host[:start], host[start:]
