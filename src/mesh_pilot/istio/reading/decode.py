"""One object, as plain data or bytes, to a validated `Config`.

All errors of an object are collected before it is refused; warnings stay with the config.

Rules run also where the spec has errors: users want all of them at once. A field that could not be decoded is absent
for the rules, so what they say of its path, or of a path above it, is left out: it would repeat the error, or be about
a value that the user did write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache

import attrs
import betterproto2

from mesh_pilot.base.reading import as_list
from mesh_pilot.istio.kinds import Kind, KindError, lookup
from mesh_pilot.istio.meaning.durations import describe
from mesh_pilot.istio.reading import scalars
from mesh_pilot.istio.reading.decode_fast import read_fast
from mesh_pilot.istio.reading.decode_json import read_message, unknown_reason
from mesh_pilot.istio.reading.decode_proto import parse_message
from mesh_pilot.istio.reading.problems import MAX_PATH, Problems, TooManyErrorsError, as_reported
from mesh_pilot.istio.reading.yaml import Document
from mesh_pilot.istio.rules.common import check_metadata
from mesh_pilot.istio.rules.context import Context
from mesh_pilot.model.config import EPOCH, Config, ConfigError, ConfigKey, Origin, Problem, Severity, worst_first

LineOf = Callable[[str], int]
"""The 1-based line of a field path; 0 for input without lines."""

_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
SERVER_METADATA = (
    "clusterName",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)
"""Metadata that Kubernetes writes, and that is ignored."""

_METADATA = ("name", "namespace", "labels", "annotations", "creationTimestamp", *SERVER_METADATA)
_KINDS_WITH_CONDITIONS = ("WorkloadEntry",)
"""The conditions of other kinds have no effect, and change often."""

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@attrs.frozen
class Metadata:
    """The metadata of an object."""

    name: str
    namespace: str = ""
    """Empty for cluster-scoped kinds."""
    created: datetime = EPOCH
    labels: Mapping[str, str] = attrs.field(factory=dict)
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    api_version: str = ""


def decode_document(document: Document, *, origin: Origin, default_namespace: str = "default") -> Config:
    """`decode` for a document of `yaml.load`: origin and problems get its lines."""
    return decode(
        document.data,
        origin=attrs.evolve(origin, line=document.line),
        default_namespace=default_namespace,
        line_of=document.line_of,
    )


def decode(
    document: Mapping[str, object],
    *,
    origin: Origin,
    default_namespace: str = "default",
    line_of: LineOf = lambda path: 0,
) -> Config:
    """The config that an object of plain data describes.

    Raises ConfigError with all its problems, also for a kind that is not Istio's (ask `kinds.lookup` first to skip
    those).
    """
    problems = Problems()
    key = None
    try:
        kind = _kind(document, problems)
        metadata = _metadata(document, kind, default_namespace, problems)
        key = ConfigKey(kind.name, metadata.namespace, metadata.name) if kind and metadata.name else None
        for name in document:
            if name not in _TOP:
                problems.append(Problem(str(name), unknown_reason("field", name, _TOP)))
        spec = _spec(kind, document.get("spec"), problems) if kind is not None else None
        if kind is not None and spec is not None and key is not None:
            conditions = _conditions(document, problems) if kind.name in _KINDS_WITH_CONDITIONS else {}
            config = _checked(kind, spec, metadata, key, problems, origin, line_of)
            return attrs.evolve(config, conditions=conditions) if conditions else config
    except TooManyErrorsError:
        pass
    raise ConfigError(origin, key, worst_first(as_reported(problems, line_of)))


def _spec(kind: Kind, data: object, problems: Problems) -> betterproto2.Message | None:
    """The spec that `data` describes, by the fast path if possible; None if `data` is not an object."""
    data = {} if data is None else data
    spec = read_fast(kind.message, data)
    return read_message(kind.message, data, "spec", problems) if spec is None else spec


def decode_binary(kind: Kind, body: bytes, metadata: Metadata, *, origin: Origin) -> Config:
    """The config whose spec is the encoded message `body` of the kind (as MCP sends it, inside an Any).

    Raises ConfigError with all its problems.
    """
    key = ConfigKey(kind.name, metadata.namespace, metadata.name)
    problems = Problems()
    try:
        _check_names(metadata, kind, problems)
        try:
            spec = parse_message(kind.message, body, "spec", problems)
        except ValueError as error:
            problems.append(Problem("spec", f"is not an encoded {kind.message_name}: {error}"))
        else:
            return _checked(kind, spec, metadata, key, problems, origin, _no_line)
    except TooManyErrorsError:
        pass
    raise ConfigError(origin, key, worst_first(as_reported(problems, _no_line)))


def _no_line(path: str) -> int:
    return 0


def _checked(
    kind: Kind,
    spec: betterproto2.Message,
    metadata: Metadata,
    key: ConfigKey,
    problems: Problems,
    origin: Origin,
    line_of: LineOf,
) -> Config:
    """Validate a decoded spec. Raises ConfigError, and TooManyErrorsError for the caller to report."""
    context = Context(metadata.name, metadata.namespace, metadata.labels, metadata.annotations)
    # A field that could not be decoded is absent now; rules that miss it would only repeat its error.
    unread = _with_parents(p.path for p in problems if p.severity is Severity.ERROR) if problems.errors else ()
    problems.take(check_metadata(spec, context))
    problems.take(p for p in kind.validate(spec, context) if p.path not in unread)
    found = as_reported(problems, line_of)
    if problems.errors:
        raise ConfigError(origin, key, worst_first(found))
    return Config(
        key=key,
        spec=spec,
        created=metadata.created,
        labels=metadata.labels,
        annotations=metadata.annotations,
        api_version=metadata.api_version or kind.api_versions[0],
        origin=origin,
        warnings=found,
    )


def _with_parents(paths: Iterable[str]) -> set[str]:
    """Field paths and all their parents."""
    found: set[str] = set()
    for path in paths:
        if len(path) > MAX_PATH:
            found.add(path)  # from a map key that long; no rule reports on its parents
            continue
        while path and path not in found:
            found.add(path)
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return found


def _kind(document: Mapping[str, object], problems: Problems) -> Kind | None:
    api_version, name = document.get("apiVersion"), document.get("kind")
    for field, value in (("apiVersion", api_version), ("kind", name)):
        if not isinstance(value, str) or not value:
            problems.append(Problem(field, "is missing" if value is None else "must be a non-empty string"))
    if not isinstance(api_version, str) or not isinstance(name, str) or not api_version or not name:
        return None
    try:
        kind = lookup(api_version, name)
    except KindError as error:
        problems.append(Problem("apiVersion", str(error)))
        return None
    if kind is None:
        problems.append(Problem("apiVersion", f"{api_version} {name} is not an Istio kind"))
    return kind


def _metadata(
    document: Mapping[str, object], kind: Kind | None, default_namespace: str, problems: Problems
) -> Metadata:
    data = document.get("metadata")
    if not isinstance(data, Mapping):
        reason = "is missing" if data is None else f"expected an object, got {describe(data)}"
        problems.append(Problem("metadata", reason))
        return Metadata("")
    for name in data:
        if name not in _METADATA:
            problems.append(Problem(f"metadata.{name}", unknown_reason("field", name, _METADATA[:5])))
    metadata = Metadata(
        name=_text(data, "name", problems),
        namespace="" if kind and kind.cluster_scoped else _text(data, "namespace", problems) or default_namespace,
        created=_created(data, problems),
        labels=_strings(data, "labels", problems),
        annotations=_strings(data, "annotations", problems),
        api_version=str(document.get("apiVersion", "")),
    )
    if data.get("name") in (None, ""):
        problems.append(Problem("metadata.name", "is missing"))
    _check_names(metadata, kind, problems)
    return metadata


def _check_names(metadata: Metadata, kind: Kind | None, problems: Problems) -> None:
    if metadata.name and (len(metadata.name) > 253 or not _SUBDOMAIN.fullmatch(metadata.name)):
        reason = (
            f'"{metadata.name}" is not a valid name: lower case letters, digits, "-" and ".", '
            "starting and ending with a letter or digit, at most 253"
        )
        problems.append(Problem("metadata.name", reason))
    cluster_scoped = kind is not None and kind.cluster_scoped
    if not cluster_scoped and (len(metadata.namespace) > 63 or not _LABEL.fullmatch(metadata.namespace)):
        reason = (
            f'"{metadata.namespace}" is not a valid namespace: lower case letters, digits and "-", '
            "starting and ending with a letter or digit, at most 63"
        )
        problems.append(Problem("metadata.namespace", reason))


def _text(data: Mapping[str, object], name: str, problems: Problems) -> str:
    value = data.get(name)
    if value is None:
        return ""
    try:
        return scalars.read_string(value)
    except ValueError as error:
        problems.append(Problem(f"metadata.{name}", str(error)))
        return ""


def _created(data: Mapping[str, object], problems: Problems) -> datetime:
    value = data.get("creationTimestamp")
    if value is None:
        return EPOCH
    try:
        return _known_timestamp(value) if type(value) is str else scalars.read_timestamp(value)
    except ValueError as error:
        problems.append(Problem("metadata.creationTimestamp", str(error)))
        return EPOCH


_known_timestamp = lru_cache(maxsize=1024)(scalars.read_timestamp)
"""Objects that a program wrote at once have one time."""


def _conditions(document: Mapping[str, object], problems: Problems) -> Mapping[str, str]:
    """The status of each condition by its type. A malformed condition is a warning and has no effect."""
    conditions: dict[str, str] = {}
    for index, condition in enumerate(as_list(document, "status", "conditions")):
        match condition:
            case {"type": str(name), "status": str() | bool() as value}:
                conditions[name] = str(value)
            case _:
                reason = "is not a condition with a type and a status; it has no effect"
                problems.append(Problem(f"status.conditions[{index}]", reason, Severity.WARNING))
    return conditions


def _strings(data: Mapping[str, object], name: str, problems: Problems) -> Mapping[str, str]:
    value = data.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.append(Problem(f"metadata.{name}", f"expected an object, got {describe(value)}"))
        return {}
    strings = {}
    for key, item in value.items():
        try:
            strings[scalars.read_string(str(key))] = scalars.read_string(item)
        except ValueError as error:
            problems.append(Problem(f"metadata.{name}[{key}]", str(error)))
    return strings
