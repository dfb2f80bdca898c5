"""The result of a migration, and the record that it is written into: every foreign object is taken, or listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from mesh_pilot.istio.reading.problems import MAX_PATH, MAX_REASON, printable
from mesh_pilot.migration.base.reading import ForeignObject

Spec = dict[str, Any]
"""An object, or a part of one, as in YAML."""


@attrs.frozen
class Untaken:
    """An object, or a field of one, that the result lacks."""

    where: str
    """``dump.yaml:12``, or the name in a registry."""
    object: str
    """``Deployment/shop/web``; empty if it has no name."""
    field: str
    """Empty: the object as a whole."""
    reason: str
    do: str = ""
    """Advice; empty: nothing needs to be done."""
    is_needless: bool = False
    """True: nothing of the mesh is lost with it."""

    def __str__(self) -> str:
        text = ": ".join(filter(None, (self.where, self.object, self.field, self.reason)))
        return f"{text}; {self.do}" if self.do else text


class MigrationChange(NamedTuple):
    """A thing that is said otherwise in the result."""

    object: str
    text: str


@attrs.frozen
class MadeObject:
    """An object of the result."""

    document: Spec = attrs.field(hash=False)
    made_from: tuple[str, ...] = ()
    """The foreign objects that it was made from; empty: it is a foreign object itself, cleaned."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The kind with its group, namespace and name."""
        metadata = self.document["metadata"]
        group = str(self.document["apiVersion"]).rpartition("/")[0]
        return f"{self.document['kind']}.{group}", str(metadata.get("namespace", "")), str(metadata["name"])


@attrs.frozen
class CredentialFolder:
    """A credential, as a folder of secrets holds it."""

    namespace: str
    name: str
    parts: Mapping[str, bytes] = attrs.field(repr=False, hash=False)
    """PEM by the name of the file."""


@attrs.frozen
class Migration:
    """The result of a migration."""

    system: str
    """The kind of mesh that was read: ``kubernetes``, ``consul`` or ``kuma``."""
    taken: Mapping[str, int] = attrs.field(hash=False)
    """Foreign objects that were taken, by kind."""
    objects: tuple[MadeObject, ...]
    untaken: tuple[Untaken, ...]
    changes: tuple[MigrationChange, ...]
    mesh: Spec | None = attrs.field(default=None, hash=False)
    """A MeshConfig."""
    networks: Spec | None = attrs.field(default=None, hash=False)
    """MeshNetworks."""
    credentials: tuple[CredentialFolder, ...] = ()


class MigrationRecord:
    """State: everything that a migration has found and made so far. Of two objects of a name the first one counts."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self.mesh: Spec | None = None
        self.networks: Spec | None = None
        self.credentials: list[CredentialFolder] = []
        self.dropped: set[str] = set()
        """Fields that a server wrote, and that are left out of every object."""
        self._objects: dict[tuple[str, str, str], MadeObject] = {}
        self._untaken: dict[Untaken, None] = {}
        self._changes: dict[MigrationChange, None] = {}

    def take(self, kind: str) -> None:
        """Count a foreign object that was taken."""
        self.taken[kind] += 1

    def add(self, made: MadeObject) -> MadeObject | None:
        """Add an object. Returns the one that has its name already, if any; then nothing is added."""
        found = self._objects.setdefault(made.key, made)
        return None if found is made else found

    def leave(
        self, where: str, object: str, field: str, reason: str, do: str = "", *, is_needless: bool = False
    ) -> None:
        """List what is not taken."""
        texts = (printable(field, MAX_PATH), printable(reason, MAX_REASON), printable(do, MAX_REASON))
        self._untaken[Untaken(where, object, *texts, is_needless)] = None

    def leave_object(
        self, found: ForeignObject, reason: str, do: str = "", *, path: str = "", is_needless: bool = False
    ) -> None:
        """The same of a foreign object, or of a field of it."""
        self.leave(found.where_of(path), found.name, path, reason, do, is_needless=is_needless)

    def change(self, object: str, text: str) -> None:
        """List what is said otherwise than before."""
        self._changes[MigrationChange(object, text)] = None

    def result(self, system: str) -> Migration:
        return Migration(
            system=system,
            taken={kind: count for kind, count in sorted(self.taken.items()) if count},
            objects=tuple(made for _, made in sorted(self._objects.items())),
            untaken=tuple(self._untaken),
            changes=tuple(self._changes),
            mesh=self.mesh,
            networks=self.networks,
            credentials=tuple(self.credentials),
        )


def document(
    api_version: str, kind: str, namespace: str, name: str, spec: Spec, labels: Mapping[str, str] | None = None
) -> Spec:
    """An object as files have it."""
    metadata: Spec = {"name": name, **({"namespace": namespace} if namespace else {})}
    if labels:
        metadata["labels"] = dict(sorted(labels.items()))
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def names_of(found: Sequence[ForeignObject]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.name for each in found))
