"""The Gateway API: what the conditions of its objects say, and parents that do not exist."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found
from mesh_pilot.istio.gateway_api.statuses import failed_conditions
from mesh_pilot.istio.gateway_api.values import GROUP, KUBERNETES_GATEWAY
from mesh_pilot.istio.kinds import written_kind
from mesh_pilot.model.config import Config, ConfigKey

_ROUTES = ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute")
_PARENTS = {"Gateway": KUBERNETES_GATEWAY, "ListenerSet": "ListenerSet"}
_OF_SERVICES = frozenset(("BackendNotFound", "TargetNotFound", "NoMatchingParent"))
_OF_SECRETS = frozenset(("InvalidCertificateRef", "InvalidCACertificateRef", "InvalidClientCertificateRef"))
_CODES = {"Accepted": codes.NOT_ACCEPTED, "ResolvedRefs": codes.REFERENCES_UNRESOLVED}


def statuses(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Objects whose conditions say that something is wrong."""
    for key, status in survey.picture.statuses.items():
        config = survey.picture.find(*key)
        for failed in failed_conditions(status) if config is not None else ():
            if config is None or _may_be_elsewhere(survey, failed.reason):
                continue
            about = f"{failed.about} " + ("" if failed.about.startswith("listener") else "it ") if failed.about else ""
            if failed.type == "Programmed":
                if survey.picture.is_whole:
                    yield found(codes.NOT_PROGRAMMED, config, failed.field, failed.message, failed.reason)
            else:
                yield found(_CODES[failed.type], config, failed.field, about, failed.message, failed.reason)


def _may_be_elsewhere(survey: AnalysisContext, reason: str) -> bool:
    """True if what is missing may be in a registry or a folder of secrets that is not looked at."""
    picture = survey.picture
    return (reason in _OF_SERVICES and not picture.is_whole) or (reason in _OF_SECRETS and not picture.has_secrets)


def parents(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Routes and ListenerSets whose Gateway does not exist: no control plane gives them a status."""
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


def _missing(survey: AnalysisContext, config: Config, path: str, key: ConfigKey) -> Iterator[AnalysisMessage]:
    if survey.picture.find(*key) is None:
        yield found(codes.NOT_FOUND, config, path, written_kind(key.kind), f"{key.namespace}/{key.name}")
