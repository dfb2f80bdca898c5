"""The DestinationRules of a Consul service: of its resolver, and for its own proxies, of its upstreams' settings."""

from __future__ import annotations

from mesh_pilot.consul.mesh.entries import ChainTarget, ConfigEntry
from mesh_pilot.consul.mesh.reading import EntryReader
from mesh_pilot.consul.mesh.values import EntryRef, IstioObject, Spec, object_name, selecting_labels
from mesh_pilot.model.config import Problem, Severity

_FAILOVER_TARGETS = 1
"""Of a locality; those beyond it share what is left."""


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
    general = upstreams.pop("", {})
    if general:
        reason = "only upstreams in Overrides are known to be upstreams; these settings are theirs, and of no others"
        problems.append(Problem("UpstreamConfig.Defaults", reason, Severity.WARNING))
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


def _rule(service: str, resolver: ConfigEntry | None, reader: EntryReader, problems: list[Problem]) -> Spec:
    """The rule of a resolver; empty if it says nothing."""
    if resolver is None:
        return {}
    policy = dict(resolver.policy)
    if resolver.failover:
        policy = _over(policy, _failover(resolver, reader, problems))
    spec: Spec = {}
    if policy:
        spec["trafficPolicy"] = policy
    if resolver.subsets:
        spec["subsets"] = [
            {"name": name, **({"labels": labels} if labels else {})} for name, labels in resolver.subsets
        ]
    return {"host": reader.host(ChainTarget(service)), **spec} if spec else {}


def _failover(resolver: ConfigEntry, reader: EntryReader, problems: list[Problem]) -> Spec:
    settings = reader.settings
    others = [each for each in resolver.failover if each != settings.datacenter]
    if not settings.merged:
        reason = "needs --consul-merge-datacenters: only then has the host instances of other datacenters"
        problems.append(Problem("Failover[*].Datacenters", reason, Severity.WARNING))
        return {}
    if not others:
        return {}
    if len(others) > _FAILOVER_TARGETS:
        reason = f"{others[0]} takes over first; the order of those after it can't be said"
        problems.append(Problem("Failover[*].Datacenters", reason, Severity.WARNING))
    balancer: Spec = {"localityLbSetting": {"failover": [{"from": settings.datacenter, "to": others[0]}]}}
    # Without outlierDetection Istio fails over to nowhere; passive checks themselves stay off.
    return {"loadBalancer": balancer, "outlierDetection": {"consecutive5xxErrors": 0, "consecutiveGatewayErrors": 0}}


def _over(under: Spec, over: Spec) -> Spec:
    """A traffic policy with the fields of another one over it."""
    merged = dict(under)
    for name, value in over.items():
        mine = merged.get(name)
        merged[name] = _over(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged
