"""Which services are aliases of others: Kubernetes' Services of type ExternalName that name a service of the mesh.

An alias may name another alias. One whose names go round in a circle, or lead out of the mesh, stands for itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import attrs

from mesh_pilot.model.service import Service, ServiceKey
from mesh_pilot.world.copying import Copied


class ServiceAliases(Copied):
    """Follows services as they change.

    State: `_names`, the host that each service with an external name has there; `_naming`, the reverse; `_hosts`, by
    host the services that have one; `_resolved`, the host that each alias stands for; `_aliases`, the reverse.
    """

    def __init__(self) -> None:
        self._names: dict[ServiceKey, str] = {}
        self._naming: defaultdict[str, set[ServiceKey]] = defaultdict(set)
        self._hosts: defaultdict[str, set[ServiceKey]] = defaultdict(set)
        self._resolved: dict[ServiceKey, str] = {}
        self._aliases: defaultdict[str, set[ServiceKey]] = defaultdict(set)

    def put(self, changed: Mapping[ServiceKey, Service | None], exists: Callable[[str], bool]) -> Iterable[str]:
        """Take services that changed. Returns the hosts whose services are other aliases now, or have other ones.

        ``exists`` is true for the host of a service, the changed ones included.
        """
        there = {key: service for key, service in changed.items() if service is not None}
        named = {key: service.external_name.removesuffix(".").lower() for key, service in there.items()}
        if not self._names and not any(named.values()):
            return ()
        affected: set[ServiceKey] = set()
        for key in changed:
            if self._set(key, named.get(key, "")):
                affected.add(key)
        affected |= self._leading_to({key.host.lower() for key in changed})
        hosts: set[str] = set()
        for key in affected:
            before, now = self._resolved.pop(key, ""), self._resolve(key, exists)
            if now:
                self._resolved[key] = now
            if before != now:
                self._aliases[before].discard(key)
                self._aliases[now].add(key)
                hosts |= {key.host, before, now}
        self._aliases.pop("", None)
        return sorted(hosts - {""})

    def apply(self, service: Service) -> Service:
        """The service as an alias, or with its aliases."""
        if target := self._resolved.get(service.key):
            return attrs.evolve(service, alias_of=target, ports=())
        if aliases := self._aliases.get(service.host):
            return attrs.evolve(service, aliases=tuple(sorted(aliases, key=lambda key: (key.namespace, key.host))))
        return service

    def _set(self, key: ServiceKey, name: str) -> bool:
        """Set the external name of a service. True if it has one, or had one."""
        before = self._names.pop(key, "")
        if before:
            self._naming[before].discard(key)
            self._hosts[key.host].discard(key)
        if name:
            self._names[key] = name
            self._naming[name].add(key)
            self._hosts[key.host].add(key)
        return bool(before or name)

    def _leading_to(self, hosts: set[str]) -> set[ServiceKey]:
        """The services whose external names lead to any of these hosts."""
        found: set[ServiceKey] = set()
        seen = set(hosts)
        while hosts:
            naming = {key for host in hosts for key in self._naming.get(host, ())}
            found |= naming
            hosts = {key.host for key in naming} - seen
            seen |= hosts
        return found

    def _resolve(self, key: ServiceKey, exists: Callable[[str], bool]) -> str:
        """The host of the service that an external name leads to; empty without one."""
        host = self._names.get(key, "")
        seen = {key.host}
        while host and (further := self._hosts.get(host)):
            if host in seen:
                return ""
            seen.add(host)
            host = self._names[min(further)]
        return host if host and exists(host) else ""
