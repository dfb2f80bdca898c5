"""Readers of single objects of an API server: which items they give, or what is wrong with them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

import attrs

from mesh_pilot.base.offload import has_many_values, offload
from mesh_pilot.base.reading import member
from mesh_pilot.istio.kinds import Api, Kind
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.istio.reading.yaml import Document
from mesh_pilot.istio.reading.yaml_marked import Marks
from mesh_pilot.kubernetes.apiserver import ApiResource, Object
from mesh_pilot.kubernetes.source.mesh_maps import CONFIG_MAPS
from mesh_pilot.model.config import ConfigError, Origin, Problem
from mesh_pilot.model.events import Item, Secret
from mesh_pilot.sources.base.published import InvalidObject, Key, ValidObject
from mesh_pilot.sources.files.secrets import (
    CERTIFICATE_PARTS,
    DOCKER_CONFIG,
    DOCKER_TYPE,
    make_credential,
    read_secret_object,
)

PREFIX = "configmap/"
"""The prefix of the names of credentials that are ConfigMaps."""


@attrs.frozen
class Reading:
    """The outcome of reading an object: an item, or problems, or nothing that is of use here."""

    item: Item | None = None
    problems: tuple[Problem, ...] = ()


class ObjectReader(Protocol):
    """The reader of the objects of one resource."""

    name: str
    """The name of the kind, or of the collection of items, in keys."""
    resource: ApiResource
    field_selector: str
    metadata_only: bool
    """True if nothing but ``metadata`` counts."""
    is_optional: bool
    """True if the start does not wait for objects that we may not read."""

    def key(self, found: Object) -> Key:
        """The key of the item that an object gives."""

    async def read(self, version: str, found: Object, origin: Origin) -> Reading:
        """An object in a version of the API."""

    def fingerprint(self, found: Object) -> int | None:
        """A number that stays if nothing that is read changes; None: it can't be told without reading."""


class ConfigReader:
    """The reader of one of the kinds that Istio knows."""

    field_selector = ""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.name = kind.name
        self.resource = resource_of(kind)
        self.metadata_only = kind.name in LABELS_ONLY
        self.is_optional = kind.api is not Api.ISTIO

    def key(self, found: Object) -> Key:
        metadata = found["metadata"]
        namespace = "" if self.kind.cluster_scoped else str(metadata.get("namespace", "default"))
        return ("config", self.kind.name, namespace, str(metadata.get("name", "")))

    async def read(self, version: str, found: Object, origin: Origin) -> Reading:
        resource = self.resource
        document = {
            "apiVersion": resource.api_version(version),
            "kind": resource.kind,
            "metadata": found["metadata"],
        }
        if self.metadata_only:
            document["spec"] = {}
        document |= {part: found[part] for part in ("spec", "status") if part in found}
        try:
            config = await offload(has_many_values(document), partial(decode, document, origin=origin))
        except ConfigError as error:
            return Reading(problems=error.problems)
        return Reading(config)

    def fingerprint(self, found: Object) -> int | None:
        """The fingerprint of what counts: a spec changes with its generation; most kinds' status has no effect."""
        metadata = found["metadata"]
        if self.kind.name in WITH_STATUS or not metadata.get("generation") or not metadata.get("uid"):
            return None
        try:
            marks = [sorted((metadata.get(part) or {}).items()) for part in ("labels", "annotations")]
            return hash((metadata["uid"], metadata["generation"], repr(marks)))
        except (AttributeError, TypeError):
            return None


LABELS_ONLY = ("Namespace",)
"""The kinds of which only metadata is read."""

WITH_STATUS = ("WorkloadEntry",)
"""The kinds whose status has an effect."""


class SecretReader:
    """The reader of credentials: the TLS and generic Secrets that Istio's ``credentialName`` can name.

    Secrets of other types are not asked for, and those without a certificate are not held.
    """

    name = "secret"
    resource = ApiResource("", ("v1",), "secrets", "Secret")
    metadata_only = is_optional = False
    field_selector = ",".join(
        f"type!={each}"
        for each in (
            "helm.sh/release.v1",
            "kubernetes.io/service-account-token",
            "kubernetes.io/dockercfg",
            "kubernetes.io/basic-auth",
            "kubernetes.io/ssh-auth",
            "bootstrap.kubernetes.io/token",
        )
    )

    def key(self, found: Object) -> Key:
        metadata = found["metadata"]
        return ("secret", str(metadata.get("namespace", "default")), str(metadata.get("name", "")))

    async def read(self, version: str, found: Object, origin: Origin) -> Reading:
        data = found.get("data")
        if not isinstance(data, Mapping) or not any(part in data for part in (*CERTIFICATE_PARTS, DOCKER_CONFIG)):
            return Reading()
        type_name = DOCKER_TYPE if DOCKER_CONFIG in data else "Opaque"
        document = Document({**found, "type": type_name}, 0, _no_marks)
        parsed = read_secret_object(document, "default")
        match parsed:
            case ValidObject(item=Secret() as item):
                return Reading(attrs.evolve(item, is_guarded=True))
            case InvalidObject(problems=problems) if type_name != DOCKER_TYPE:  # most of those are not for us
                return Reading(problems=problems)
            case _:
                return Reading()

    def fingerprint(self, found: Object) -> int | None:
        return None


class ConfigMapReader:
    """The reader of CA certificates that policies name in ConfigMaps; the others are not held."""

    name = "config-map"
    resource = CONFIG_MAPS
    field_selector = "metadata.name!=kube-root-ca.crt,metadata.name!=istio-ca-root-cert"
    metadata_only = False
    is_optional = True

    def key(self, found: Object) -> Key:
        metadata = found["metadata"]
        return ("secret", str(metadata.get("namespace", "default")), f"{PREFIX}{metadata.get('name', '')}")

    async def read(self, version: str, found: Object, origin: Origin) -> Reading:
        text = member(found, "data", "ca.crt")
        if not isinstance(text, str):
            return Reading()
        _, namespace, name = self.key(found)
        secret, problems = make_credential(name, namespace, {"ca.crt": text.encode()})
        return Reading(problems=problems) if problems else Reading(secret)

    def fingerprint(self, found: Object) -> int | None:
        return None


def resource_of(kind: Kind) -> ApiResource:
    """A kind as API servers have it."""
    return ApiResource(kind.group, kind.versions, kind.plural, kind.written, kind.cluster_scoped)


def _no_marks() -> Marks:
    return Marks(0, {})
