"""The known entries and services as a conversion sees them, with a note of each question."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from mesh_pilot.consul.mesh.entries import ChainTarget, ConfigEntry, SamenessGroup
from mesh_pilot.consul.mesh.values import ClientPort, EntryRef, MeshSettings, ServiceFacts, peer_host

Question = tuple[Hashable, ...]
"""A question of a conversion: for an entry, or the facts of a service."""

NO_FACTS = ServiceFacts()


class KnownEntries(Protocol):
    """All entries and services."""

    settings: MeshSettings

    def entry(self, ref: EntryRef) -> ConfigEntry | None: ...

    def facts(self, service: str) -> ServiceFacts | None: ...

    def names(self, kind: str) -> set[str]: ...


class EntryReader:
    """The answers for one conversion. State: the questions that it asked."""

    def __init__(self, known: KnownEntries) -> None:
        self._known = known
        self.settings = known.settings
        self.asked: set[Question] = set()

    def entry(self, kind: str, name: str) -> ConfigEntry | None:
        """An entry; None if there is none, or if it is to be ignored."""
        ref = EntryRef(kind, name)
        self.asked.add(("entry", ref))
        found = self._known.entry(ref)
        return None if found is None or found.is_ignored else found

    def namespace(self, service: str) -> str:
        return self._facts(service).namespace or self.settings.namespace

    def accounts(self, service: str) -> tuple[str, ...]:
        """The service accounts of a service; its own name where it does not say."""
        return self._facts(service).accounts or (service,)

    def ports(self, service: str) -> tuple[int, ...]:
        return self._facts(service).ports

    def client_ports(self, service: str) -> tuple[ClientPort, ...]:
        return self._facts(service).client_ports

    def has_http(self, service: str) -> bool:
        return self._facts(service).has_http

    def names(self, kind: str) -> set[str]:
        """The names of all entries of a kind."""
        self.asked.add(("names", kind))
        return self._known.names(kind)

    def host(self, target: ChainTarget) -> str:
        """The host of a target in the mesh."""
        settings = self.settings
        if target.peer:
            return peer_host(target.service, target.peer, settings.domain)
        if self.is_elsewhere(target):
            return f"{target.service}.service.{target.datacenter}.{settings.domain}".lower()
        return f"{target.service}.service.{settings.domain}".lower()

    def is_elsewhere(self, target: ChainTarget) -> bool:
        """True if a target is in another datacenter, or at a peer: its entries are not read."""
        return bool(target.peer) or target.datacenter not in ("", self.settings.datacenter)

    def group(self, name: str) -> SamenessGroup | None:
        """A sameness group; None if it does not exist."""
        found = self.entry("sameness-group", name)
        return found.group if found is not None else None

    def _facts(self, service: str) -> ServiceFacts:
        self.asked.add(("facts", service))
        return self._known.facts(service) or NO_FACTS
