"""Secrets that objects of a dump name: folders of credentials, if private keys are to be copied at all."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping

from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.migration.base.reading import ForeignObject
from mesh_pilot.migration.base.record import CredentialFolder, MadeObject, MigrationRecord
from mesh_pilot.model.config import Config
from mesh_pilot.sources.files.secrets import PART_NAMES, make_credential

_NAMING = ("Gateway", "KubernetesGateway", "ListenerSet", "Ingress", "DestinationRule")
_FIELDS = frozenset(("credentialName", "credentialNames", "secretName"))
_REFERENCES = frozenset(("certificateRefs", "clientCertificateRef"))
_CA_SUFFIX = "-cacert"
_CA = "ca.crt"
_SAFE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Names of objects and namespaces: no path but that of a file's own name."""
_COPY = "give --secrets to copy private keys, or put the credential into a folder of --secrets-dir yourself"


class ClusterSecrets:
    """State: the Secrets and ConfigMaps of a dump, and the names that its other objects refer to."""

    def __init__(self, record: MigrationRecord, *, take: bool) -> None:
        self._record = record
        self._take = take
        self._secrets: list[ForeignObject] = []
        self._config_maps: list[ForeignObject] = []
        self._named: set[str] = set()
        self._authorities: set[tuple[str, str]] = set()
        """Namespaces and names of ConfigMaps with CA certificates."""

    def put(self, found: ForeignObject) -> None:
        """Take a Secret."""
        self._secrets.append(found)

    def put_config_map(self, found: ForeignObject) -> None:
        """Take a ConfigMap that does not hold the mesh's settings."""
        self._config_maps.append(found)

    def note(self, config: Config) -> None:
        """Note which credentials an object names."""
        if config.key.kind == "BackendTLSPolicy":
            for reference in to_json(config.spec).get("validation", {}).get("caCertificateRefs", ()):
                self._authorities.add((config.namespace, str(reference.get("name"))))
        elif config.key.kind in _NAMING:
            names = set(_names_in(to_json(config.spec)))
            self._named |= names | {f"{name}{_CA_SUFFIX}" for name in names}

    def finish(self) -> None:
        """Take what is named, and list the rest."""
        for secret in self._secrets:
            self._finish_secret(secret)
        for config_map in self._config_maps:
            namespace, name = _place(config_map)
            data = config_map.data.get("data")
            if not _is_safe(namespace, name):
                self._record.leave_object(config_map, "has no valid name", path="metadata")
                continue
            if (namespace, name) not in self._authorities or not isinstance(data, Mapping):
                reason = "no setting of the mesh is in it, and no object names it"
                self._record.leave_object(config_map, reason, is_needless=True)
                continue
            self._record.take("ConfigMap")
            document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
            self._record.add(MadeObject({**document, "data": {_CA: data.get(_CA)}}))
            for key in sorted(map(str, data.keys() - {_CA})):
                self._record.leave_object(config_map, f"only {_CA} is read", path=f"data[{key}]")

    def _finish_secret(self, secret: ForeignObject) -> None:
        namespace, name = _place(secret)
        if not _is_safe(namespace, name):
            self._record.leave_object(secret, "has no valid name", path="metadata")
            return
        if name not in self._named:
            kind = secret.data.get("type", "Opaque")
            reason = f"no object that is taken names this credential (of type {kind})"
            self._record.leave_object(secret, reason, is_needless=True)
            return
        if not self._take:
            self._record.leave_object(secret, "a private key is copied only if asked for", _COPY)
            return
        parts = dict(self._decoded(secret))
        if not parts:
            self._record.leave_object(secret, f"has none of the parts that a credential has: {', '.join(PART_NAMES)}")
            return
        _, problems = make_credential(name, namespace, parts)
        for problem in problems:
            self._record.leave_object(secret, f"{problem.path} {problem.reason}", "fix it", path="data")
        if problems:
            return
        self._record.take("Secret")
        self._record.credentials.append(CredentialFolder(namespace, name, dict(sorted(parts.items()))))

    def _decoded(self, secret: ForeignObject) -> Iterator[tuple[str, bytes]]:
        for field in ("data", "stringData"):
            values = secret.data.get(field)
            for part, value in values.items() if isinstance(values, Mapping) else ():
                if part not in PART_NAMES:
                    self._record.leave_object(secret, "is not part of a credential", path=f"{field}[{part}]")
                elif field == "stringData":
                    yield part, str(value).encode()
                else:
                    try:
                        yield part, base64.b64decode(str(value), validate=True)
                    except (binascii.Error, ValueError):
                        self._record.leave_object(secret, "is not base64", path=f"{field}[{part}]")


def _place(found: ForeignObject) -> tuple[str, str]:
    metadata = found.data["metadata"]
    assert isinstance(metadata, Mapping)
    return str(metadata.get("namespace") or "default"), str(metadata.get("name", ""))


def _is_safe(*names: str) -> bool:
    return all(_SAFE.fullmatch(name) for name in names)


def _names_in(value: object) -> Iterator[str]:
    """The names of credentials anywhere in a spec."""
    if isinstance(value, list):
        for item in value:
            yield from _names_in(item)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name in _FIELDS:
                yield from map(str, item if isinstance(item, list) else [item])
            elif name in _REFERENCES:
                references = item if isinstance(item, list) else [item]
                yield from (str(each.get("name")) for each in references if isinstance(each, Mapping))
            else:
                yield from _names_in(item)
