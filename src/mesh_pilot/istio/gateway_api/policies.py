"""Policies of backends, BackendTLSPolicy and XBackendTrafficPolicy, as DestinationRules: one for each host.

A policy has a status for each of its targets, and, if it is about TLS, for each Gateway whose routes lead to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as networking
from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.gateway_api.conditions import Conditions, Fault
from mesh_pilot.istio.gateway_api.listener_tls import CA_CONFIG_MAP, REFUSED
from mesh_pilot.istio.gateway_api.sessions import session_of
from mesh_pilot.istio.gateway_api.statuses import MAX_ANCESTORS, MESH_CONTROLLER
from mesh_pilot.istio.gateway_api.values import (
    CONTROLLER,
    GROUP,
    INTERNAL_SUFFIX,
    PARENTS,
    BackendObject,
    Json,
    Objects,
    StatusCondition,
)
from mesh_pilot.istio.meaning.durations import read_duration
from mesh_pilot.model.config import Config, ConfigKey, Origin

IGNORE_POLICY = "istio.io/ignore-policy-attachment"
"""Annotation of a policy that has no effect here."""
INVALID_CREDENTIAL = "invalid://"

_KINDS = {
    ("", "Service"): "Service",
    ("networking.istio.io", "ServiceEntry"): "ServiceEntry",
    ("", "ConfigMap"): "ConfigMap",
    ("", "Secret"): "Secret",
}
_VALID = "Configuration is valid"
_DEFAULT_RETRY_INTERVAL = timedelta(seconds=10)
_DEFAULT_RETRIES = 10


class RuleTarget(NamedTuple):
    """A host that policies are about: one DestinationRule."""

    backend: BackendObject
    host: str


@attrs.frozen
class PolicyPart:
    """A policy, as far as it is about one target."""

    target: RuleTarget
    policy: ConfigKey
    created: datetime
    port_name: str = ""
    """Empty: all ports."""
    tls: networking.ClientTlsSettings | None = None
    balancer: networking.LoadBalancerSettings | None = None
    retry_budget: networking.TrafficPolicyRetryBudget | None = None
    session: networking.HttpSession | None = None

    @property
    def order(self) -> tuple[datetime, str, str]:
        return (self.created, self.policy.namespace, self.policy.name)


@attrs.frozen
class PolicyResult:
    """The outcome of a policy."""

    parts: tuple[PolicyPart, ...]
    status: Json


def targets_of(policy: Config) -> frozenset[BackendObject]:
    """The targets of a policy."""
    return frozenset(BackendObject(ref.kind, policy.namespace, ref.name) for ref in policy.spec.target_refs)


def convert_policy(policy: Config, objects: Objects) -> PolicyResult:
    """The parts of a policy, and its status."""
    if policy.annotations.get(IGNORE_POLICY, "").lower() == "true":
        text = f"Ignored by Istio due to annotation {IGNORE_POLICY}=true"
        conditions = Conditions((StatusCondition("Accepted", False, "IgnoredByIstio", text),))
        return PolicyResult((), _status(_ancestor(_reference(ref), conditions) for ref in policy.spec.target_refs))
    if policy.key.kind == "BackendTLSPolicy":
        return _convert_tls(policy, objects)
    return _convert_traffic(policy, objects)


def _convert_tls(policy: Config, objects: Objects) -> PolicyResult:
    spec: api.BackendTlsPolicySpec = policy.spec
    validation = spec.validation or api.BackendTlsPolicyValidation()
    conditions = Conditions.fine(_VALID, "Accepted", "ResolvedRefs")
    names = (name.hostname if name.type == "Hostname" else name.uri for name in validation.subject_alt_names)
    tls = networking.ClientTlsSettings(
        mode=networking.ClientTlsSettingsTlSmode.SIMPLE,
        sni=validation.hostname,
        subject_alt_names=[name for name in names if name],
        credential_name=_roots(policy, validation, conditions, objects),
    )
    parts: list[PolicyPart] = []
    ancestors: list[Json] = []
    gateways: dict[tuple[str, str], Conditions] = {}
    for ref in spec.target_refs:
        own = conditions.copy()
        found = _hosts(policy, ref, objects, ("Service", "ServiceEntry"))
        if isinstance(found, Fault):
            own.fail("Accepted", found)
        else:
            target = BackendObject(ref.kind, policy.namespace, ref.name)
            fault = _conflict(policy, ref, objects)
            if fault is not None:
                own.fail("Accepted", fault)
            else:
                section = ref.section_name or ""
                parts += (
                    PolicyPart(RuleTarget(target, host), policy.key, policy.created, section, tls) for host in found
                )
            for key in objects.gateways_of(target):
                at_gateway = gateways.setdefault((key.namespace, key.name), conditions.copy())
                if fault is not None:
                    at_gateway.fail("Accepted", fault)
        ancestors.append(_ancestor(_reference(ref), own))
    for (_, name), at_gateway in sorted(gateways.items(), key=lambda item: item[0]):
        reference = {"group": GROUP, "kind": "Gateway", "name": name}
        ancestors.append(_ancestor(reference, at_gateway, CONTROLLER))
    return PolicyResult(tuple(parts), _status(ancestors))


def _convert_traffic(policy: Config, objects: Objects) -> PolicyResult:
    spec: api.BackendTrafficPolicySpec = policy.spec
    conditions = Conditions.fine(_VALID, "Accepted")
    budget = _retry_budget(spec.retry_constraint) if spec.retry_constraint is not None else None
    parts: list[PolicyPart] = []
    ancestors: list[Json] = []
    for ref in spec.target_refs:
        own = conditions.copy()
        found = _hosts(policy, ref, objects, ("Service",))
        if isinstance(found, Fault):
            own.fail("Accepted", found)
        else:
            target = BackendObject(ref.kind, policy.namespace, ref.name)
            parts += (
                PolicyPart(
                    RuleTarget(target, host),
                    policy.key,
                    policy.created,
                    balancer=networking.LoadBalancerSettings(),
                    retry_budget=budget,
                    session=session_of(spec.session_persistence, f"Service/{host}"),
                )
                for host in found
            )
        ancestors.append(_ancestor(_reference(ref), own))
    return PolicyResult(tuple(parts), _status(ancestors))


def _retry_budget(constraint: api.RetryConstraint) -> networking.TrafficPolicyRetryBudget:
    budget = constraint.budget or api.RetryBudget()
    rate = constraint.min_retry_rate
    return networking.TrafficPolicyRetryBudget(
        percent=float(budget.percent) if budget.percent is not None else None,
        min_retry_concurrency=rate.count or 0 if rate is not None else _DEFAULT_RETRIES,
        budget_interval=read_duration(budget.interval) if budget.interval else _DEFAULT_RETRY_INTERVAL,
    )


def _hosts(
    policy: Config, ref: api.LocalPolicyTargetReference, objects: Objects, kinds: Sequence[str]
) -> tuple[str, ...] | Fault:
    """The hosts of a target, or why it cannot be one."""
    kind = _KINDS.get((ref.group or "", ref.kind))
    if kind is None:
        return _target_fault(f"unsupported kind {ref.kind}")
    if not _is_there(kind, policy.namespace, ref.name, objects):
        return _target_fault(f"reference {policy.namespace}/{ref.name} (of kind {ref.kind}) not found")
    if kind not in kinds:
        return _target_fault(f"unsupported reference kind: {ref.kind}")
    target = RuleTarget(BackendObject(kind, policy.namespace, ref.name), "")
    if ref.section_name and ref.section_name not in _ports(target, objects):
        text = f'sectionName "{ref.section_name}" does not exist in {kind} {policy.namespace}/{ref.name}'
        return _target_fault(text)
    if kind == "Service":
        return (objects.service_host(ref.name, policy.namespace),)
    entry = objects.config("ServiceEntry", policy.namespace, ref.name)
    return tuple(entry.spec.hosts) if entry is not None else ()


def _target_fault(text: str) -> Fault:
    return Fault("TargetNotFound", f"targetRefs invalid: {text}")


def _is_there(kind: str, namespace: str, name: str, objects: Objects) -> bool:
    match kind:
        case "Service":
            return objects.service(objects.service_host(name, namespace), namespace) is not None
        case "ServiceEntry":
            return objects.config(kind, namespace, name) is not None
        case "ConfigMap":
            return objects.ca_config_map(namespace, name) is not None
        case _:
            return objects.secret(namespace, name) is not None


def _ports(target: RuleTarget, objects: Objects) -> dict[str, int]:
    """The ports of a target, by name."""
    backend = target.backend
    if backend.kind == "Service":
        service = objects.service(objects.service_host(backend.name, backend.namespace), backend.namespace)
        return {port.name: port.number for port in service.ports} if service is not None else {}
    entry = objects.config("ServiceEntry", backend.namespace, backend.name)
    return {port.name: port.number for port in entry.spec.ports} if entry is not None else {}


def _conflict(policy: Config, ref: api.LocalPolicyTargetReference, objects: Objects) -> Fault | None:
    """The fault of a target that an older policy has, too: that one wins."""
    own = (policy.created, policy.name)
    for other in objects.tls_policies(BackendObject(ref.kind, policy.namespace, ref.name)):
        if other.key == policy.key or other.annotations.get(IGNORE_POLICY, "").lower() == "true":
            continue
        if (other.created, other.name) < own and _identity(ref) in map(_identity, other.spec.target_refs):
            text = f'Conflicts with BackendTLSPolicy "{other.name}" targeting the same backend'
            return Fault("Conflicted", text)
    return None


def _identity(ref: api.LocalPolicyTargetReference) -> tuple[str | None, ...]:
    return (ref.group or "", ref.kind, ref.name, ref.section_name)


def _roots(policy: Config, validation: api.BackendTlsPolicyValidation, conditions: Conditions, objects: Objects) -> str:
    """The credential with the CA certificates of the backends; empty: those of the system."""
    if (known := validation.well_known_ca_certificates) is not None:
        if known != "System":
            conditions.fail("Accepted", Fault("Invalid", f"Unknown wellKnownCACertificates: {known}"))
        return ""
    if not validation.ca_certificate_refs:
        return ""
    ref = validation.ca_certificate_refs[0]
    if len(validation.ca_certificate_refs) > 1:
        text = f"{_VALID}; warning: only the first caCertificateRefs will be used"
        conditions.put(StatusCondition("Accepted", True, "Accepted", text))
    kind = _KINDS.get((ref.group or "", ref.kind))
    reason = "InvalidKind"
    if kind is None:
        text, what = f"unsupported kind {ref.kind}", "Certificate reference not supported"
    elif not _is_there(kind, policy.namespace, ref.name, objects):
        text = f"reference {policy.namespace}/{ref.name} (of kind {ref.kind}) not found"
        reason, what = "InvalidCACertificateRef", "Certificate reference not found"
    elif kind != "ConfigMap":
        text, what = f"unsupported reference kind: {ref.kind}", "Certificate reference invalid"
    else:
        found = objects.ca_config_map(policy.namespace, ref.name)
        if found is not None and found.ca_certificates:
            return f"{CA_CONFIG_MAP}{policy.namespace}/{ref.name}"
        text = "found secret, but didn't have expected keys cacert or ca.crt"
        if found is not None and found.is_outdated:
            text = f"reference {policy.namespace}/{ref.name} (of kind {ref.kind}): {REFUSED}"
        reason, what = "InvalidCACertificateRef", "Certificate invalid"
    conditions.fail("ResolvedRefs", Fault(reason, f"{what}: {text}"))
    conditions.fail("Accepted", Fault("NoValidCACertificate", f"Certificate reference invalid: {text}"))
    return INVALID_CREDENTIAL


def _reference(ref: api.LocalPolicyTargetReference) -> dict[str, Any]:
    section = {"sectionName": ref.section_name} if ref.section_name is not None else {}
    return {"group": ref.group or "", "kind": ref.kind, "name": ref.name, **section}


def _ancestor(reference: Json, conditions: Conditions, controller: str = MESH_CONTROLLER) -> Json:
    return {
        "ancestorRef": reference,
        "controllerName": controller,
        "conditions": conditions.to_json(),
    }


def _status(ancestors: Iterable[Json]) -> Json:
    return {"ancestors": [*ancestors][:MAX_ANCESTORS]}


def destination_rule(target: RuleTarget, parts: Iterable[PolicyPart], objects: Objects) -> Config | None:
    """The DestinationRule of a host, of all policies about it: of two that say something of the same, the oldest."""
    ordered = sorted(parts, key=lambda part: part.order)
    if not ordered:
        return None
    # Each field is that of the oldest policy that has it: policies of both kinds are about one host.
    policy = networking.TrafficPolicy()
    by_port: dict[str, networking.ClientTlsSettings] = {}
    for part in ordered:
        if part.tls is not None and part.port_name:
            by_port.setdefault(part.port_name, part.tls)
        elif part.tls is not None and policy.tls is None:
            policy.tls = part.tls
        policy.load_balancer = part.balancer if policy.load_balancer is None else policy.load_balancer
        policy.retry_budget = part.retry_budget if policy.retry_budget is None else policy.retry_budget
        policy.session = part.session if policy.session is None else policy.session
    policy.port_level_settings = [*_port_settings(by_port, _ports(target, objects))]
    backend = target.backend
    host = f"{target.host.replace('.', '-')}~" if backend.kind == "ServiceEntry" else ""
    sources = list(dict.fromkeys(part.policy for part in ordered))
    oldest = objects.config(*sources[0])
    return Config(
        ConfigKey("DestinationRule", backend.namespace, f"{backend.name}~{host}{INTERNAL_SUFFIX}"),
        networking.DestinationRule(host=target.host, traffic_policy=policy),
        created=ordered[0].created,
        annotations={PARENTS: ",".join(f"{key.kind}/{key.namespace}.{key.name}" for key in sources)},
        api_version="networking.istio.io/v1",
        origin=oldest.origin if oldest is not None else Origin("memory"),
        made_from=tuple(sources),
    )


def _port_settings(
    by_port: dict[str, networking.ClientTlsSettings], numbers: dict[str, int]
) -> Iterator[networking.TrafficPolicyPortTrafficPolicy]:
    for name in sorted(by_port, key=lambda name: numbers.get(name, 0)):
        if name in numbers:
            port = networking.PortSelector(number=numbers[name])
            yield networking.TrafficPolicyPortTrafficPolicy(port=port, tls=by_port[name])
