"""The Gateway API: what the conditions of its objects say, and parents that do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mesh_pilot.analysis import codes
from mesh_pilot.analysis.findings import AnalysisMessage
from mesh_pilot.analysis.survey import Survey, found
from mesh_pilot.config.kinds import written_kind
from mesh_pilot.gateway_api.values import GROUP, KUBERNETES_GATEWAY, Json
from mesh_pilot.model.config import Config, ConfigKey

_ROUTES = ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute")
_PARENTS = {"Gateway": KUBERNETES_GATEWAY, "ListenerSet": "ListenerSet"}
_OF_SERVICES = frozenset(("BackendNotFound", "TargetNotFound", "NoMatchingParent"))
_OF_SECRETS = frozenset(("InvalidCertificateRef", "InvalidCACertificateRef", "InvalidClientCertificateRef"))
_FOLLOWS = frozenset(("ListenersNotValid", "NoValidCACertificate"))
"""Reasons that only repeat what another condition says in full."""


def statuses(survey: Survey) -> Iterator[AnalysisMessage]:
    """Objects whose conditions say that something is wrong."""
    picture = survey.picture
    for key, status in picture.statuses.items():
        config = picture.find(*key)
        if config is None:
            continue
        for prefix, path, conditions in _conditions(config, status):
            yield from _failed(survey, config, prefix, path, conditions)


def _conditions(config: Config, status: Json) -> Iterator[tuple[str, str, Iterable[Json]]]:
    """The lists of conditions of a status, each with what it is about in words, and the field."""
    yield "", "", status.get("conditions", ())
    listeners = [listener.name for listener in getattr(config.spec, "listeners", ())]
    for listener in status.get("listeners", ()):
        index = listeners.index(listener["name"]) if listener["name"] in listeners else 0
        yield f"listener {listener['name']} ", f"spec.listeners[{index}]", listener["conditions"]
    for parent in status.get("parents", ()):
        yield f"at {_reference(parent['parentRef'])} it ", "spec.parentRefs", parent["conditions"]
    for ancestor in status.get("ancestors", ()):
        yield f"for {_reference(ancestor['ancestorRef'])} it ", "spec.targetRefs", ancestor["conditions"]


def _reference(ref: Json) -> str:
    section = f"/{ref['sectionName']}" if ref.get("sectionName") else ""
    return f"{ref.get('kind', 'Gateway')} {ref.get('name')}{section}"


def _failed(
    survey: Survey, config: Config, prefix: str, path: str, conditions: Iterable[Json]
) -> Iterator[AnalysisMessage]:
    for condition in conditions:
        reason, message = condition["reason"], condition["message"]
        if condition["status"] == "True" or reason in _FOLLOWS or _may_be_elsewhere(survey, reason):
            continue
        match condition["type"]:
            case "Accepted":
                yield found(codes.NOT_ACCEPTED, config, path, prefix, message, reason)
            case "ResolvedRefs":
                yield found(codes.REFERENCES_UNRESOLVED, config, path, prefix, message, reason)
            case "Programmed" if not path and reason.startswith("Address") and survey.picture.is_whole:
                yield found(codes.NOT_PROGRAMMED, config, path, message, reason)


def _may_be_elsewhere(survey: Survey, reason: str) -> bool:
    """True if what is missing may be in a registry or a folder of secrets that is not looked at."""
    picture = survey.picture
    return (reason in _OF_SERVICES and not picture.is_whole) or (reason in _OF_SECRETS and not picture.has_secrets)


def parents(survey: Survey) -> Iterator[AnalysisMessage]:
    """Routes and ListenerSets whose Gateway does not exist: nobody gives them a status."""
    for kind in _ROUTES:
        for config in survey.of(kind):
            for index, ref in enumerate(config.spec.parent_refs):
                name = ref.kind or "Gateway"
                if ref.group in (None, GROUP) and name in _PARENTS:
                    key = ConfigKey(
                        _PARENTS[name], config.namespace if ref.namespace is None else ref.namespace, ref.name
                    )
                    yield from _missing(survey, config, f"spec.parentRefs[{index}].name", key)
    for config in survey.of("ListenerSet"):
        if (parent := config.spec.parent_ref) is not None:
            namespace = config.namespace if parent.namespace is None else parent.namespace
            key = ConfigKey(KUBERNETES_GATEWAY, namespace, parent.name)
            yield from _missing(survey, config, "spec.parentRef.name", key)


def _missing(survey: Survey, config: Config, path: str, key: ConfigKey) -> Iterator[AnalysisMessage]:
    if survey.picture.find(*key) is None:
        yield found(codes.NOT_FOUND, config, path, written_kind(key.kind), f"{key.namespace}/{key.name}")
