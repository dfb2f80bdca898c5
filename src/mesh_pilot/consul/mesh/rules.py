"""The DestinationRules of a Consul service: of its resolver, and for its own proxies, of its upstreams' settings."""

from __future__ import annotations

from collections.abc import Container

from mesh_pilot.consul.mesh.entries import ChainTarget, ConfigEntry
from mesh_pilot.consul.mesh.failover import failover_targets, target_problems
from mesh_pilot.consul.mesh.intentions import ANY
from mesh_pilot.consul.mesh.reading import EntryReader
from mesh_pilot.consul.mesh.values import EntryRef, IstioObject, Spec, object_name, selecting_labels
from mesh_pilot.model.config import Problem, Severity

_DETECTING: Spec = {"outlierDetection": {"consecutive5xxErrors": 0, "consecutiveGatewayErrors": 0}}
"""Without outlierDetection Istio fails over to nowhere; passive checks themselves stay off."""

_FAILOVER_TARGETS = 1
"""Failover targets of a locality; those beyond it share what is left."""


def destination_rules(service: str, reader: EntryReader) -> tuple[list[IstioObject], tuple[Problem, ...]]:
    """The DestinationRules of a service, and the problems of its entries together."""
    problems: list[Problem] = []
    made = []
    resolver = reader.entry("service-resolver", service)
    if spec := _rule(service, resolver, reader, problems):
        entries = (EntryRef("service-resolver", service),)
        made.append(IstioObject("DestinationRule", reader.namespace(service), object_name(service), spec, entries))
    defaults = reader.entry("service-defaults", service)
    upstreams = {upstream.name: upstream.policy for upstream in defaults.upstreams} if defaults is not None else {}
    labels = selecting_labels(service)
    if upstreams and labels is None:
        problems.append(Problem("UpstreamConfig", f"the name {service!r} is too long for a label that selects proxies"))
        return made, tuple(problems)
    if general := upstreams.pop("", {}):
        problems += _lacking_defaults(service, upstreams, reader)
        made.append(_for_all_upstreams(service, general, labels or {}, reader))
    for upstream, policy in upstreams.items():
        unsaid: list[Problem] = []
        base = _rule(upstream, reader.entry("service-resolver", upstream), reader, unsaid)
        merged = _over(_over(base.get("trafficPolicy", {}), general), policy)
        if not merged:
            continue
        spec = {
            "host": reader.host(ChainTarget(upstream)),
            "workloadSelector": {"matchLabels": labels},
            "trafficPolicy": merged,
            **{name: value for name, value in base.items() if name == "subsets"},
        }
        used = (EntryRef("service-defaults", service), EntryRef("service-resolver", upstream))
        name = object_name(service, upstream)
        made.append(IstioObject("DestinationRule", reader.namespace(service), name, spec, used))
    return made, tuple(problems)


def _for_all_upstreams(service: str, policy: Spec, labels: Spec, reader: EntryReader) -> IstioObject:
    """The rule for all that the proxies of a service call. A rule for one host takes its place there."""
    spec = {
        "host": f"*.service.{reader.settings.domain}".lower(),
        "workloadSelector": {"matchLabels": labels},
        "trafficPolicy": policy,
    }
    entries = (EntryRef("service-defaults", service),)
    return IstioObject("DestinationRule", reader.namespace(service), object_name(service, ANY), spec, entries)


def _lacking_defaults(service: str, named: Container[str], reader: EntryReader) -> list[Problem]:
    """The problem of upstreams that have their own rule, which takes the place of the one for all."""
    if _locality_mode(None, reader):
        others = ["all services, as proxy-defaults say PrioritizeByLocality"]
    else:
        resolvers = {name: reader.entry("service-resolver", name) for name in sorted(reader.names("service-resolver"))}
        others = [name for name, each in resolvers.items() if name not in named and _rule(name, each, reader, [])]
    if not others:
        return []
    listed = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    reason = f"these settings are not for upstreams with their own rules ({listed}): name those in Overrides"
    return [Problem("UpstreamConfig.Defaults", reason, Severity.WARNING)]


def _locality_mode(resolver: ConfigEntry | None, reader: EntryReader) -> str:
    """The mode of ``PrioritizeByLocality``: that of a resolver, else of the mesh."""
    defaults = reader.entry("proxy-defaults", "global")
    return (resolver.localities if resolver else "") or (defaults.localities if defaults else "")


def _rule(service: str, resolver: ConfigEntry | None, reader: EntryReader, problems: list[Problem]) -> Spec:
    """The rule of a resolver and of the mesh; empty if they say nothing."""
    policy = dict(resolver.policy) if resolver is not None else {}
    match _locality_mode(resolver, reader):
        case "failover":
            policy = _over(policy, {"loadBalancer": {"localityLbSetting": {"enabled": True}}, **_DETECTING})
        case "none":
            policy = _over(policy, {"loadBalancer": {"localityLbSetting": {"enabled": False}}})
    if resolver is not None and (resolver.failover or resolver.failover_group):
        policy = _over(policy, _failover(resolver, reader, problems))
    spec: Spec = {}
    if policy:
        spec["trafficPolicy"] = policy
    if resolver is not None and resolver.subsets:
        spec["subsets"] = [
            {"name": name, **({"labels": labels} if labels else {})} for name, labels in resolver.subsets
        ]
    return {"host": reader.host(ChainTarget(service)), **spec} if spec else {}


def _failover(resolver: ConfigEntry, reader: EntryReader, problems: list[Problem]) -> Spec:
    settings = reader.settings
    if resolver.failover_group and reader.group(resolver.failover_group) is None:
        reason = f"sameness group {resolver.failover_group!r} does not exist; it has no effect"
        problems.append(Problem("Failover[*].SamenessGroup", reason, Severity.WARNING))
    targets = failover_targets(resolver, reader.group)
    problems += target_problems(targets, settings.peers)
    # Endpoints of peers come with their rank: no rule is needed for these.
    others = [each.datacenter for each in targets if each.datacenter not in ("", settings.datacenter)]
    if not others:
        return {}
    if not settings.merged:
        reason = "needs --consul-merge-datacenters: only then has the host instances of other datacenters"
        problems.append(Problem("Failover[*].Datacenters", reason, Severity.WARNING))
        return {}
    if len(others) > _FAILOVER_TARGETS:
        reason = f"{others[0]} takes over first; the order of those after it can't be said"
        problems.append(Problem("Failover[*].Datacenters", reason, Severity.WARNING))
    balancer: Spec = {"localityLbSetting": {"failover": [{"from": settings.datacenter, "to": others[0]}]}}
    return {"loadBalancer": balancer, **_DETECTING}


def _over(under: Spec, over: Spec) -> Spec:
    """A traffic policy with the fields of another one over it."""
    merged = dict(under)
    for name, value in over.items():
        mine = merged.get(name)
        merged[name] = _over(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged
