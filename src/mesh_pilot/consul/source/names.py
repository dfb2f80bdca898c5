"""The names of a Consul service: its host in the mesh, and what else Consul's DNS calls it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mesh_pilot.consul.client.settings import DEFAULT_NAMESPACE, DEFAULT_PARTITION, ConsulSettings
from mesh_pilot.consul.mesh.values import peer_host
from mesh_pilot.consul.source.instance import ConsulInstance
from mesh_pilot.model.config import Problem
from mesh_pilot.model.service import Service

_NAME = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?")
MAX_HOST = 255
"""Characters of a host name."""


def is_name(name: str) -> bool:
    """True if a service's name can be part of a host name."""
    return _NAME.fullmatch(name) is not None and ".." not in name


def no_name(name: str) -> Problem:
    """The problem of a name that can't be part of a host name."""
    return Problem("Service", f"{name!r} can't stand in a host name: letters, digits, - and _ can")


def host_of(name: str, members: Sequence[ConsulInstance], settings: ConsulSettings) -> str:
    if settings.peer:
        return peer_host(name, settings.peer, settings.domain)
    datacenter = settings.datacenter or members[0].datacenter
    if settings.remote and datacenter:
        return f"{name}.service.{datacenter}.{settings.domain}".lower()
    return local_host(name, settings)


def local_host(name: str, settings: ConsulSettings) -> str:
    return f"{name}.service.{settings.domain}".lower()


def virtual_names(
    name: str, members: Sequence[ConsulInstance], virtual: frozenset[str], settings: ConsulSettings
) -> Iterable[str]:
    """The virtual names that Consul's DNS has: of services that have a virtual address or named ports there, and of
    those that are imported from a peer.

    Of the mesh's own datacenter: those of others are for proxies there.
    """
    if settings.peer:
        return (f"{name}.virtual.{settings.peer}.{settings.domain}".lower(),)
    ports = sorted({port for each in members for port in each.ports})
    if settings.remote or not (virtual or ports or any("virtual" in each.tagged for each in members)):
        return ()
    hosts = [f"{name}.virtual.{tenant}{settings.domain}".lower() for tenant in ("", *_tenants(members))]
    return [each for host in hosts for each in (host, *(f"{p}.{host}".lower() for p in ports if _LABEL.fullmatch(p)))]


def tenant_names(name: str, members: Sequence[ConsulInstance], settings: ConsulSettings) -> Iterable[str]:
    """The names of a service with its namespace and partition, where these are not the default ones."""
    if settings.peer:
        return ()
    return [f"{name}.service.{tenant}{settings.domain}".lower() for tenant in _tenants(members)]


def _tenants(members: Sequence[ConsulInstance]) -> Sequence[str]:
    """The parts of names that say namespace and partition: without those that are the default ones, and in full."""
    first = members[0]
    if not first.namespace and not first.partition:
        return ()
    namespace = f"{first.namespace or DEFAULT_NAMESPACE}.ns."
    partition = f"{first.partition or DEFAULT_PARTITION}.ap."
    short = (namespace if first.namespace else "") + (partition if first.partition else "")
    return short, f"{namespace}{partition}{first.datacenter}.dc."


def alias(host: str, service: Service) -> Service:
    return Service(
        host=host,
        namespace=service.namespace,
        registry=service.registry,
        declared_by_users=False,
        external_name=service.host,
    )
