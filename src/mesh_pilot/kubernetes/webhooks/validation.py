"""Validation of Istio's objects: by the rules for files, in the API server's answer to whoever writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs

from mesh_pilot.base.reading import member
from mesh_pilot.istio.kinds import KINDS, Kind, KindError, lookup, reason_ignored
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.kubernetes.webhooks.admission import AdmissionAnswer, AdmissionRequest
from mesh_pilot.model.config import ConfigError, Origin, Problem, Severity

ALWAYS_REJECT = "internal.istio.io/webhook-always-reject"
"""Annotation of the object by which it is found out whether the webhook is asked at all."""

MAX_PROBLEMS = 20
"""Problems in one reason."""

_ORIGIN = Origin("webhook", "admission request")


class RefusalReason(StrEnum):
    """Why an object was not found good, as istiod's metrics say it."""

    UNSUPPORTED_OPERATION = "unsupported_operation"
    UNREADABLE = "yaml_decode_error"
    UNKNOWN_TYPE = "unknown_type"
    CONVERSION = "crd_conversion_error"
    INVALID = "invalid_resource"


@attrs.frozen
class Validated:
    """An answer, and the reason that is counted; None: the object is good."""

    answer: AdmissionAnswer
    refusal: RefusalReason | None = None
    resource: tuple[str, str, str] = ("", "", "")
    """Group, version and plural name of its kind; empty for a kind that is not read."""


def validate(request: AdmissionRequest) -> Validated:
    """True if an object may be written. What is deleted may always be, and what waits for its finalizers to go."""
    if request.operation not in ("CREATE", "UPDATE"):
        return Validated(AdmissionAnswer(), RefusalReason.UNSUPPORTED_OPERATION)
    found = request.object
    if not isinstance(found, dict):
        return _refused(request, 400, RefusalReason.UNREADABLE, (Problem("", "the request has no object"),))
    metadata = found.get("metadata")
    if isinstance(metadata, dict) and _annotation(metadata, ALWAYS_REJECT):
        reason = f"annotation {ALWAYS_REJECT} asks for it"
        return _refused(request, 422, RefusalReason.INVALID, (Problem("metadata.annotations", reason),))
    if request.operation == "UPDATE" and isinstance(metadata, dict) and metadata.get("deletionTimestamp"):
        return Validated(AdmissionAnswer(), resource=_resource(found))  # nothing may keep its finalizers from going
    try:
        document = _known_version(found)
    except KindError as error:
        return _refused(request, 400, RefusalReason.UNKNOWN_TYPE, (Problem("", str(error)),))
    if isinstance(metadata, dict):
        document = {**document, "metadata": _named(metadata, request)}
    try:
        config = decode(document, origin=_ORIGIN, default_namespace=request.namespace or "default")
    except ConfigError as error:
        return attrs.evolve(_refused(request, 422, RefusalReason.INVALID, error.problems), resource=_resource(document))
    return Validated(
        AdmissionAnswer(warnings=[str(problem) for problem in config.warnings]), resource=_resource(document)
    )


def _resource(document: Mapping[str, Any]) -> tuple[str, str, str]:
    try:
        kind = lookup(str(document.get("apiVersion")), str(document.get("kind")))
    except KindError:
        kind = None
    return (kind.group, str(document["apiVersion"]).rpartition("/")[2], kind.plural) if kind else ("", "", "")


def _known_version(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object in a version that we know: all of a kind's are alike, and a newer one is accepted.

    Raises KindError for what is not a kind that is read.
    """
    api_version, name = found.get("apiVersion"), found.get("kind")
    if not isinstance(api_version, str) or not isinstance(name, str):
        return found  # decode says what is missing
    try:
        kind = lookup(api_version, name)
    except KindError:
        kind = _of_any_version(api_version.rpartition("/")[0], name)
        if kind is None:
            raise
        return {**found, "apiVersion": kind.api_versions[-1]}
    if kind is None:
        reason = reason_ignored(api_version, name) or "the kind is not one of those that are read"
        raise KindError(f"{api_version} {name}: {reason}")
    return found


def _of_any_version(group: str, name: str) -> Kind | None:
    written = (kind for kind in KINDS.values() if kind.group == group)
    return next((kind for kind in written if getattr(kind, "written", kind.name) == name), None)


def _named(metadata: Mapping[str, Any], request: AdmissionRequest) -> Mapping[str, Any]:
    """The metadata, with the name that the API server makes of ``generateName`` later."""
    prefix = metadata.get("generateName")
    if not metadata.get("name") and isinstance(prefix, str) and prefix:
        return {**metadata, "name": request.name or f"{prefix}x"}
    return metadata


def _annotation(metadata: Mapping[str, Any], name: str) -> object:
    return member(metadata, "annotations", name)


def _refused(request: AdmissionRequest, code: int, refusal: RefusalReason, problems: tuple[Problem, ...]) -> Validated:
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    shown = [str(problem) for problem in errors[:MAX_PROBLEMS]]
    if len(errors) > len(shown):
        shown.append(f"and {len(errors) - len(shown)} more")
    message = f"{request.place}: {'; '.join(shown)}"
    causes = [(problem.path, problem.reason) for problem in errors[:MAX_PROBLEMS]]
    warnings = [str(problem) for problem in problems if problem.severity is Severity.WARNING]
    return Validated(
        AdmissionAnswer(allowed=False, code=code, message=message, causes=causes, warnings=warnings), refusal
    )
