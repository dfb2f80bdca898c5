"""The objects of a Kubernetes source: what was read of each, in which version, and which are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import Enum, auto

import attrs
import trio

from mesh_pilot.istio.meaning.revisions import in_revision
from mesh_pilot.kubernetes.apiserver import ApiResource, Object
from mesh_pilot.kubernetes.source.deletions import StandingKinds
from mesh_pilot.kubernetes.source.listening import reader_name
from mesh_pilot.kubernetes.source.mesh_maps import MESH, NETWORKS
from mesh_pilot.kubernetes.source.namespaces import NamespaceFilter
from mesh_pilot.kubernetes.source.readers import PREFIX, ConfigMapReader, ConfigReader, ObjectReader, SecretReader
from mesh_pilot.kubernetes.source.secret_accounts import SecretAccounts
from mesh_pilot.kubernetes.source.selection import ConfigSelection, ObjectObserver
from mesh_pilot.model.config import Origin
from mesh_pilot.model.events import Event, Item, Secret
from mesh_pilot.sources.base.published import InvalidObject, Key, Precedence, PublishedState

_AT_ONCE = 20
"""Objects that are read before other tasks get their turn."""

Send = Callable[[Sequence[Event]], Awaitable[None]]


class LeftOut(Enum):
    """Why an object is not read."""

    REVISION = auto()
    NAMESPACE = auto()


class SourceObjects:
    """The objects as they are known.

    State: `state`, what was published, by key; `versions`, of every object that was read, its version in Kubernetes and
    the fingerprint of what counts of it; `_left_out`, objects that are not read, and why; `_paths`, where each resource
    was last read; `_secrets`, as they were read, without the grants of accounts.
    """

    def __init__(
        self,
        source: str,
        server: str,
        selection: ConfigSelection,
        namespaces: NamespaceFilter,
        send: Send,
        observer: ObjectObserver | None,
        accounts: SecretAccounts | None,
    ) -> None:
        self._source = source
        self._server = server
        self._selection = selection
        self._namespaces = namespaces
        self._send = send
        self._observer = observer
        self._accounts = accounts
        readers: list[ObjectReader] = [ConfigReader(kind) for kind in selection.kinds.values()]
        if selection.secrets:
            readers += (SecretReader(), ConfigMapReader())
        self._readers = {reader.resource: reader for reader in readers}
        self.state = PublishedState[Key](source, Precedence.FIRST, describe=self.location)
        self.versions: dict[ApiResource, dict[Key, tuple[str, int | None]]] = {r: {} for r in self._readers}
        self._left_out: dict[Key, LeftOut] = {}
        self._paths: dict[str, str] = {}
        self._secrets: dict[Key, Secret] = {}

    def __repr__(self) -> str:
        return f"<SourceObjects of {self._source}: {len(self.state)}, {len(self._left_out)} left out>"

    @property
    def readers(self) -> Mapping[ApiResource, ObjectReader]:
        return self._readers

    def left_out(self) -> Mapping[LeftOut, int]:
        """The number of objects that are not read, by reason."""
        return Counter(self._left_out.values())

    async def leave_out(self, namespaces: Collection[str]) -> None:
        """Drop the objects of namespaces that are not read any more."""
        for versions in self.versions.values():
            for key in [key for key in versions if key[-2] in namespaces]:
                self._left_out[key] = LeftOut.NAMESPACE
                await self._drop(key, versions)

    async def take(
        self,
        resource: ApiResource,
        version: str,
        objects: Sequence[Object],
        there: bool | None,
        standing: StandingKinds | None,
    ) -> None:
        """Take in all the objects there are (without ``there``), or one that is there or not.

        ``standing`` tells a deletion from a loss.
        """
        reader, versions = self._readers[resource], self.versions[resource]
        if version:
            self._paths[reader.name] = f"{self._server}{resource.path(version)}"
        keys = set()
        for number, found in enumerate(objects):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            key = reader.key(found)
            keys.add(key)
            if there is False:
                self._left_out.pop(key, None)
                at = found["metadata"].get("resourceVersion", "")  # none: a list lacks it
                explicit = bool(at) and standing is not None and await standing.is_explicit(resource)
                await self._drop(key, versions, at, explicit=explicit)
            else:
                await self._read(reader, version, key, found)
        if there is None:
            for key in [key for key in versions if key not in keys]:
                await self._drop(key, versions)
            for key in [key for key in self._left_out if reader.name == reader_name(key) and key not in keys]:
                del self._left_out[key]

    async def _read(self, reader: ObjectReader, version: str, key: Key, found: Object) -> None:
        """Take in an object, unless it was read in this very version."""
        versions = self.versions[reader.resource]
        metadata = found["metadata"]
        at = metadata.get("resourceVersion", "")
        reason = self._reason_left_out(key, metadata)
        if reason is not None:
            self._left_out[key] = reason
            if key in versions:
                await self._drop(key, versions, at)
            return
        self._left_out.pop(key, None)
        known = versions.get(key)
        if known is not None and at and known[0] == at:
            return
        if self._observer is not None:
            self._observer.seen(key, reader.resource, version, found)
        mark = reader.fingerprint(found)
        if known is None or mark is None or known[1] != mark:
            reading = await reader.read(version, found, Origin(self._source, self.location(key)))
            cause = f"resourceVersion {at}" if at else ""
            if reading.problems:
                events = self.state.refuse(key, reading.problems, key=key)
            elif reading.item is not None:
                events = self.state.put(key, [self._granted(key, reading.item)], cause=cause)
            else:
                self._secrets.pop(key, None)
                events = self.state.drop(key, cause=cause)
            await self._send(events)
        versions[key] = (at, mark)

    async def _drop(
        self, key: Key, versions: dict[Key, tuple[str, int | None]], at: str = "", *, explicit: bool = False
    ) -> None:
        if versions.pop(key, None) is None:
            return
        self._secrets.pop(key, None)
        if self._observer is not None:
            self._observer.gone(key)
        await self._send(self.state.drop(key, cause=f"resourceVersion {at}" if at else "", explicit=explicit))

    def _granted(self, key: Key, item: Item) -> Item:
        """An item with the grants of the accounts that may read it; ``grant`` puts them right when they change."""
        if self._accounts is None or not isinstance(item, Secret) or not item.is_guarded:
            return item
        self._secrets[key] = item
        self._accounts.has_keys(item.namespace)
        return attrs.evolve(item, grants=(*item.grants, *self._accounts.grants(item.namespace)))

    async def grant(self, namespace: str) -> None:
        """Other accounts may read the Secrets of a namespace."""
        for key, secret in [*self._secrets.items()]:
            if secret.namespace == namespace:
                cause = "a service account may read it, or no longer"
                content = self.state.content(key)
                found = content.objects.get(key)
                problems = found.problems if isinstance(found, InvalidObject) else content.problems
                await self._send(self.state.put(key, [self._granted(key, secret)], problems, cause=cause))

    def _reason_left_out(self, key: Key, metadata: Mapping[str, object]) -> LeftOut | None:
        labels = metadata.get("labels")
        if key[0] == "config" and isinstance(labels, Mapping) and not in_revision(labels, self._selection.revision):
            return LeftOut.REVISION
        return None if self._namespaces.allows(key[-2]) else LeftOut.NAMESPACE

    def location(self, key: Key) -> str:
        """The place of an object, for people."""
        if len(key) == 1:
            assert self._selection.mesh is not None
            setting = MESH if key == ("mesh",) else NETWORKS
            return self._selection.mesh.origin(self._source, self._server, setting).location
        namespace, name = key[-2], key[-1].removeprefix(PREFIX)
        path = self._paths[reader_name(key)]
        return f"{path} {namespace}/{name}" if namespace else f"{path} {name}"
