"""Single objects and files: refused objects, warnings, fields without effect, and what proxies do not follow."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mesh_pilot.envoy.envoy_filter.outcome import NOTHING_MATCHES
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage, MessageType
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found
from mesh_pilot.explain.analysis.registries import REGISTRIES
from mesh_pilot.istio.reading.field_warnings import NO_EFFECT
from mesh_pilot.model.config import SHADOWED, Config, ConfigKey, Origin, Problem, Severity
from mesh_pilot.model.events import MeshConfigValue, Rejected

_DEPRECATED = "is deprecated: "
_NEVER_USED = "is never used: "
_UNREADABLE = ("not valid YAML", "is not UTF-8", "can't be read", "nested too deeply", "expected an object with")


def refused(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Objects and files that are refused."""
    for rejected in survey.picture.rejected:
        config = _refused_object(rejected)
        for problem in rejected.problems:
            if problem.severity is Severity.ERROR:
                yield _message(_type_of_error(rejected, problem), config, problem)
            else:
                yield from _of_warning(config, problem)


def _type_of_error(rejected: Rejected, problem: Problem) -> MessageType:
    if SHADOWED in problem.reason:
        return codes.DUPLICATE_OBJECT
    if rejected.key in (("mesh",), ("networks",)):
        return codes.MESH_SETTINGS
    if not problem.path and problem.reason.startswith(_UNREADABLE):
        return codes.UNREADABLE
    return codes.SCHEMA_ERROR


def _refused_object(rejected: Rejected) -> Config:
    key = rejected.key or ()
    if key[:1] == ("config",):
        name = ConfigKey(*key[1:])
    elif key[:1] in (("secret",), ("credential",)):
        name = ConfigKey(key[0].capitalize(), *key[1:])
    elif key[:1] in (("service",), ("endpoints",)):
        name = ConfigKey("Service", key[2], key[1])
    else:
        name = ConfigKey(_SETTINGS.get(key[0], key[0]) if key else "", "", "")
    return Config(name, None, origin=rejected.origin)


_SETTINGS = {"mesh": "MeshConfig", "networks": "MeshNetworks"}


def warned(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Warnings about objects and settings that are in force."""
    for settings in survey.picture.settings:
        name = "MeshConfig" if isinstance(settings, MeshConfigValue) else "MeshNetworks"
        config = Config(ConfigKey(name, "", ""), None, origin=settings.origin)
        for problem in settings.warnings:
            yield from _of_warning(config, problem)
    for config in survey.picture.configs.values():
        for problem in config.warnings:
            yield from _of_warning(config, problem)
    for config, problem in survey.picture.standing:
        is_patch = config.key.kind == "EnvoyFilter"
        if not is_patch:
            is_error = problem.severity is Severity.ERROR
            yield _message(codes.UNKNOWN_PROVIDER if is_error else codes.UNUSABLE_REFERENCE, config, problem)
        elif problem.reason.startswith(NOTHING_MATCHES):
            yield _message(codes.PATCH_MATCHES_NOTHING, config, problem)
        elif problem.severity is Severity.ERROR:
            yield _message(codes.PATCH_NOT_APPLIED, config, problem)
        else:
            yield _message(codes.PATCH_IN_PART, config, problem)


def _of_warning(config: Config, problem: Problem) -> Iterator[AnalysisMessage]:
    if problem.reason.startswith(_NEVER_USED):
        return  # the analyzer of matches says it, in Istio's words
    if problem.reason.startswith(_DEPRECATED):
        detail = f"{problem.path.rpartition('.')[2]} {problem.reason}"
        yield found(codes.DEPRECATED, config, problem.path, detail, line=problem.line)
    elif problem.reason.startswith(NO_EFFECT):
        yield _message(codes.FIELD_WITHOUT_EFFECT, config, problem)
    else:
        yield _message(codes.SCHEMA_WARNING, config, problem)


def _message(type: MessageType, config: Config, problem: Problem) -> AnalysisMessage:
    arguments = (problem.reason,)
    return found(type, config, problem.path, *arguments, line=problem.line)


def kept_back(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Objects and sources that proxies do not follow; see ``explain.truth``."""
    for key, (why, fix) in survey.picture.kept_back.items():
        config = survey.picture.configs.get(key) or Config(key, None, origin=Origin("nowhere"))
        yield attrs.evolve(found(codes.KEPT_BACK, config, "", why), own_mend=fix)
    for source, (why, fix) in survey.picture.not_followed.items():
        config = Config(ConfigKey("Source", "", source), None, origin=Origin(source))
        yield attrs.evolve(found(codes.SOURCE_NOT_FOLLOWED, config, "", why), own_mend=fix)


def deprecated(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Features that Istio deprecates and no field says."""
    for config in survey.of("Sidecar"):
        policy = config.spec.outbound_traffic_policy
        if policy is not None and policy.egress_proxy is not None:
            detail = "OutboundTrafficPolicy.EgressProxy ignored"
            yield found(codes.DEPRECATED, config, "spec.outboundTrafficPolicy.egressProxy", detail)


def networks(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Registries that networks name and that are not there."""
    settings = survey.picture.networks
    if settings is None:
        return
    named = {service.registry.lower() for service in survey.picture.services.values() if service is not None}
    known = {*REGISTRIES, *named, *_clusters(survey)}
    for service_key, endpoints in survey.picture.endpoints.items():
        if (service := survey.picture.services.get(service_key)) is not None:
            for cluster in {endpoint.cluster_id for endpoint in endpoints} - {""}:
                known |= {cluster.lower(), f"{service.registry}/{cluster}".lower()}
    key = ConfigKey("MeshNetworks", survey.root_namespace, "meshnetworks")
    config = Config(key, settings.networks, origin=settings.origin)
    for name, network in settings.networks.networks.items():
        for index, endpoint in enumerate(network.endpoints):
            registry = endpoint.from_registry
            if registry is not None and registry.lower() not in known:
                path = f"networks[{name}].endpoints[{index}].fromRegistry"
                yield found(codes.UNKNOWN_REGISTRY, config, path, registry, name)


def _clusters(survey: AnalysisContext) -> Iterator[str]:
    """The clusters that Secrets give access to, as Istio has it."""
    for secret in survey.of_kubernetes("Secret"):
        if secret.labels.get("istio/multiCluster") == "true":
            for field in ("data", "stringData"):
                yield from (str(name).lower() for name in dict(secret.spec.get(field) or {}))
