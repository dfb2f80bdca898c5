"""Dumps of a Kubernetes cluster with Istio: its objects as files, cleaned of what a server put there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mesh_pilot.base.reading import as_object, member
from mesh_pilot.istio.kinds import Api, Kind, KindError, group_of, lookup
from mesh_pilot.istio.reading.decode import SERVER_METADATA, decode
from mesh_pilot.istio.reading.mesh import decode_mesh, decode_networks
from mesh_pilot.istio.reading.yaml import load
from mesh_pilot.migration.base.left import left_kind
from mesh_pilot.migration.base.reading import ForeignObject
from mesh_pilot.migration.base.record import MadeObject, MigrationRecord, Spec
from mesh_pilot.migration.kubernetes.secrets import ClusterSecrets
from mesh_pilot.migration.kubernetes.services import ClusterServices
from mesh_pilot.model.config import Config, ConfigError, Origin, Problem, Severity

_KEPT = ("name", "namespace", "labels", "annotations", "creationTimestamp")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_OF_GROUP = "istio.io/autoRegistrationGroup"
_OWN_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_WAYPOINT_CLASSES = ("istio-waypoint",)
_MEND = "fix it and migrate again, or write the object yourself"
_SETTINGS = ("mesh", "meshNetworks")
"""The keys of Istio's ConfigMap that are read."""


@attrs.frozen(kw_only=True)
class ClusterOptions:
    """Choices of a migration from Kubernetes."""

    domain: str = "cluster.local"
    """The suffix of the host names of Services."""
    services: bool = True
    """Services become ServiceEntries."""
    secrets: bool = False
    """Private keys are copied."""


def migrate_kubernetes(found: Iterable[ForeignObject], record: MigrationRecord, options: ClusterOptions) -> None:
    """Take the objects of a cluster."""
    services = ClusterServices(record, options.domain)
    secrets = ClusterSecrets(record, take=options.secrets)
    config_maps: list[ForeignObject] = []
    operators: list[ForeignObject] = []
    for each in found:
        api_version, kind = each.data.get("apiVersion"), each.data.get("kind")
        if not isinstance(api_version, str) or not isinstance(kind, str) or not api_version or not kind:
            record.leave_object(each, "has no apiVersion and kind: it is not an object of Kubernetes")
            continue
        if not isinstance(each.data.get("metadata"), Mapping):
            record.leave_object(each, "has no metadata")
            continue
        group = group_of(api_version)
        # Secrets and settings wait for the end: which of them are needed depends on the objects that name them.
        if (group, kind) == ("", "Secret"):
            secrets.put(each)
        elif (group, kind) == ("", "ConfigMap"):
            config_maps.append(each)
        elif services.reads(group, kind):
            if options.services:
                services.put(kind, each)
            else:
                record.leave_object(each, "services are not taken: --no-services", is_needless=True)
        elif (group, kind) in (("install.istio.io", "IstioOperator"), ("sailoperator.io", "Istio")):
            operators.append(each)
        else:
            config = _take(each, api_version, kind, group, record)
            if config is not None:
                secrets.note(config)
                services.note(config)
    _settings(config_maps, operators, record, secrets)
    secrets.finish()
    services.finish()
    if record.dropped:
        record.change("all objects", f"what a server wrote is left out: {', '.join(sorted(record.dropped))}")


def _take(found: ForeignObject, api_version: str, kind: str, group: str, record: MigrationRecord) -> Config | None:
    """Take one object of a kind that files may hold; list another one."""
    try:
        known = lookup(api_version, kind)
    except KindError as error:
        record.leave_object(found, str(error), "write it as the kind that is meant", path="apiVersion")
        return None
    if known is None:
        left = left_kind(group, kind)
        record.leave_object(found, left.reason, left.do, is_needless=left.needless)
        return None
    if (reason := _needless_reason(found, known)) is not None:
        record.leave_object(found, reason, is_needless=True)
        return None
    cleaned, dropped = cleaned_object(found.data, known)
    try:
        config = decode(cleaned, origin=Origin("migration"))
    except ConfigError as error:
        for problem in error.problems:
            if problem.severity is Severity.ERROR:
                record.leave_object(found, f"{problem.reason}; the object is not taken", _MEND, path=problem.path)
        return None
    for problem in (*config.warnings, *_waypoints(known, cleaned)):
        record.leave_object(found, problem.reason, path=problem.path)
    if not known.cluster_scoped:
        cleaned["metadata"].setdefault("namespace", config.namespace)
    first = record.add(MadeObject(cleaned))
    if first is None:
        record.take(kind)
    elif first.document == cleaned:
        record.leave_object(found, "is there twice, and the same", is_needless=True)
        return None
    else:
        record.leave_object(found, "is there twice, and not the same: the first one is taken", "keep one of them")
        return None
    record.dropped |= dropped
    return config


def cleaned_object(data: Mapping[str, Any], kind: Kind) -> tuple[Spec, set[str]]:
    """An object without what a server put there, and the fields that it had of these."""
    metadata = data["metadata"]
    kept = {name: metadata[name] for name in _KEPT if metadata.get(name) not in (None, {}, "")}
    dropped = {name for name in metadata if name not in _KEPT}
    unknown = {name for name in dropped if name not in SERVER_METADATA}
    kept |= {name: metadata[name] for name in sorted(unknown)}
    dropped -= unknown
    if isinstance(annotations := kept.get("annotations"), Mapping) and _LAST_APPLIED in annotations:
        dropped.add("last-applied-configuration")
        kept["annotations"] = {name: value for name, value in annotations.items() if name != _LAST_APPLIED}
        if not kept["annotations"]:
            del kept["annotations"]
    if kind.cluster_scoped:
        kept.pop("namespace", None)
    rest = {name: value for name, value in data.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    dropped |= {"status"} if data.get("status") else set()
    if kind.name == "Namespace":
        rest.pop("spec", None)
        kept.pop("creationTimestamp", None)  # of namespaces it decides nothing
    return {"apiVersion": data["apiVersion"], "kind": data["kind"], "metadata": kept, **rest}, dropped


def _needless_reason(found: ForeignObject, kind: Kind) -> str | None:
    """Why an object of a kind that files may hold is not needed; None if it is."""
    annotations, labels = as_object(found.data, "metadata", "annotations"), as_object(found.data, "metadata", "labels")
    if kind.name == "WorkloadEntry" and _OF_GROUP in annotations:
        return "a proxy registered itself, and does so here again"
    class_name = member(found.data, "spec", "gatewayClassName")
    if kind.name == "KubernetesGateway" and class_name in _WAYPOINT_CLASSES:
        return "there is no ambient mode, and no waypoint"
    if kind.name == "Namespace" and not labels.keys() - {_OWN_NAMESPACE_LABEL}:
        return "it has no label that anything could select by"
    return None


def _waypoints(kind: Kind, data: Spec) -> Iterable[Problem]:
    """Patches of an EnvoyFilter that are for waypoints."""
    if kind.name != "EnvoyFilter" or kind.api is not Api.ISTIO:
        return
    for index, patch in enumerate((data.get("spec") or {}).get("configPatches") or ()):
        if (patch.get("match") or {}).get("context") == "WAYPOINT":
            reason = "has no effect: there is no ambient mode, and no waypoint"
            yield Problem(f"spec.configPatches[{index}].match.context", reason)


# -- settings of the mesh


def _settings(
    config_maps: list[ForeignObject], operators: list[ForeignObject], record: MigrationRecord, secrets: ClusterSecrets
) -> None:
    """Take the mesh config and the networks out of Istio's ConfigMap, else out of an operator's object."""
    for each in sorted(config_maps, key=lambda found: _name(found) != "istio"):
        data = each.data.get("data")
        texts = data if isinstance(data, Mapping) and _name(each).startswith("istio") else {}
        wanted = [name for name in _SETTINGS if isinstance(texts.get(name), str)]
        if not wanted:
            secrets.put_config_map(each)
            continue
        record.take("ConfigMap")
        for name in wanted:
            _take_settings(each, name, str(texts[name]), record)
    for each in operators:
        settings = _member(_member(each.data.get("spec"), "values"), "meshConfig") or _member(
            each.data.get("spec"), "meshConfig"
        )
        if not settings or record.mesh is not None:
            left = left_kind(group_of(str(each.data["apiVersion"])), str(each.data["kind"]))
            record.leave_object(each, left.reason, "" if record.mesh is not None else left.do)
            continue
        record.take(str(each.data["kind"]))
        record.leave_object(each, "only its meshConfig is taken: nothing is installed here", path="spec")
        _put_settings(each, "mesh", settings, "spec.meshConfig", record)


def _take_settings(found: ForeignObject, name: str, text: str, record: MigrationRecord) -> None:
    path = f"data.{name}"
    documents = list(load(text, Origin("migration", name)))
    if not documents:
        return
    (first, *others) = documents
    if isinstance(first, ConfigError) or others:
        reason = first.problems[0].reason if isinstance(first, ConfigError) else "is more than one document"
        record.leave_object(found, reason, _MEND, path=path)
        return
    if first.data != {"networks": {}}:
        _put_settings(found, name, dict(first.data), path, record)


def _put_settings(found: ForeignObject, name: str, settings: Spec, path: str, record: MigrationRecord) -> None:
    if getattr(record, "mesh" if name == "mesh" else "networks") is not None:
        reason = "the settings of another revision are taken"
        record.leave_object(found, reason, "run a control plane for each revision, with its own settings", path=path)
        return
    warnings: list[Problem] = []
    try:
        decode_settings = decode_mesh if name == "mesh" else decode_networks
        decode_settings(settings, origin=Origin("migration"), warnings=warnings)
    except ConfigError as error:
        for problem in error.problems:
            if problem.severity is Severity.ERROR:
                reason = f"{problem.reason}; the settings are not taken"
                record.leave_object(found, reason, _MEND, path=f"{path}: {problem.path}")
        return
    for problem in warnings:
        record.leave_object(found, problem.reason, path=f"{path}: {problem.path}")
    if name == "mesh":
        record.mesh = settings
    else:
        record.networks = settings


def _name(found: ForeignObject) -> str:
    return str(_member(found.data, "metadata").get("name", ""))


def _member(data: object, name: str) -> Spec:
    return dict(as_object(data, name))
