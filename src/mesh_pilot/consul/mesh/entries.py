"""Config entries as values: what of them Istio's objects can say, in the form of YAML, and the problems of the rest.

An entry comes as Consul's API gives it, in CamelCase or snake_case, with durations in Go's form and numbers as strings.
`Fields` reads it and remembers which members were asked for; what is left over is a problem with a reason out of
``REASONS``. So a field that a later Consul adds is reported, not ignored. The result is Istio's own form and not a
value of ours: it is validated and translated like any object, and ``migrate`` writes the same to files.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import attrs

from mesh_pilot.base.reading import member
from mesh_pilot.consul.mesh.fields import DEFAULT_TENANT, Fields, Tenant
from mesh_pilot.consul.mesh.matches import MatchError, http_match
from mesh_pilot.consul.mesh.rates import read_limits
from mesh_pilot.consul.mesh.subsets import FilterError, labels_of
from mesh_pilot.consul.mesh.values import Spec
from mesh_pilot.istio.rules.substitution import header_format_reason
from mesh_pilot.model.config import Problem

IGNORE = "mesh-pilot"
"""The key in an entry's ``Meta`` that says ``ignore``: the entry is not there."""

KINDS = (
    "service-defaults",
    "service-resolver",
    "service-splitter",
    "service-router",
    "proxy-defaults",
    "sameness-group",
)
"""The kinds of config entries that are read."""

REASONS: Mapping[str, str | None] = {
    "idletimeout": "a route has no idle timeout; set idleTimeout in a DestinationRule's connectionPool",
    "onlypassing": "health is the same for all subsets: see --consul-warning",
    "choicecount": "Istio has no such setting; Envoy compares two endpoints",
    "maximumringsize": "Istio has no such setting; Envoy's default holds",
    "terminal": "one policy is used, the first",
    "meshgateway": "gateways between networks are those of meshNetworks, not Consul's mesh gateways",
    "maxinboundconnections": "set it in a Sidecar's inboundConnectionPool",
    "localconnecttimeoutms": "proxies connect to their own application within 10 s or as an EnvoyFilter says",
    "localrequesttimeoutms": "set the timeout in the VirtualService of the service",
    "balanceinboundconnections": "it is node metadata here: INBOUND_LISTENER_EXACT_BALANCE",
    "balanceoutboundconnections": "it is node metadata here: OUTBOUND_LISTENER_EXACT_BALANCE",
    "maxrequestheaderskb": "write an EnvoyFilter that sets max_request_headers_kb",
    "protocol": "a service has one protocol for all its clients: set it in the upstream's own service-defaults",
    "expose": "paths of checks are exposed by the agent's redirection settings",
    "externalsni": "name it in a DestinationRule: tls.sni",
    "transparentproxy": "interception is a setting of the machine: mesh-pilot iptables",
    "mode": "interception is a setting of the machine: mesh-pilot iptables",
    "mutualtlsmode": "write a PeerAuthentication",
    "destination": "write a ServiceEntry for a destination outside the mesh",
    "envoyextensions": "write a WasmPlugin, a TrafficExtension or an EnvoyFilter",
    "accesslogs": "write a Telemetry",
    "failoverpolicy": "failover is by locality",
    "escapehatchlistenerjson": "write an EnvoyFilter",
    "envoylistenerjson": "write an EnvoyFilter",
    "envoyclusterjson": "write an EnvoyFilter",
    "config": "it is for the proxies that Consul starts",
}
"""Reasons why a field has no effect, by its name in small letters."""

_BALANCERS = {"random": "RANDOM", "round_robin": "ROUND_ROBIN", "least_request": "LEAST_REQUEST"}
_RETRY_CONDITIONS = ("connect-failure", "retriable-status-codes")


@attrs.frozen
class ChainTarget:
    """A service, with a subset, and a datacenter or a peer; empty fields are the default ones."""

    service: str = ""
    subset: str = ""
    datacenter: str = ""
    peer: str = ""


@attrs.frozen
class Split:
    weight: float
    target: ChainTarget
    headers: Spec = attrs.field(factory=dict, hash=False)


@attrs.frozen
class RouterRoute:
    """A route of a service-router: a VirtualService's, but for its destinations."""

    http: Spec = attrs.field(hash=False)
    target: ChainTarget


@attrs.frozen
class UpstreamSettings:
    """The settings of a service's proxies for one upstream; the name is empty for all upstreams."""

    name: str
    policy: Spec = attrs.field(hash=False)
    """A traffic policy."""


@attrs.frozen
class GroupMember:
    """A member of a sameness group: a peer, or a partition of this Consul."""

    peer: str = ""
    partition: str = ""


@attrs.frozen
class SamenessGroup:
    """A sameness group of Consul Enterprise: who has the same services, in the order in which they take over."""

    members: tuple[GroupMember, ...] = ()
    is_default: bool = False
    """True if its members take over for every service without a resolver."""
    includes_local: bool = False
    """True if the partition that reads it comes first, whether or not it is listed."""


@attrs.frozen
class ConfigEntry:
    """An entry; fields that its kind lacks are empty."""

    problems: tuple[Problem, ...] = ()
    is_ignored: bool = False
    protocol: str = ""
    routes: tuple[RouterRoute, ...] = ()
    splits: tuple[Split, ...] = ()
    redirect: ChainTarget | None = None
    default_subset: str = ""
    subsets: tuple[tuple[str, Spec], ...] = attrs.field(default=(), hash=False)
    """The labels of each."""
    failover: tuple[ChainTarget, ...] = ()
    """Targets that take over, in order: datacenters and peers."""
    failover_group: str = ""
    """The sameness group whose members take over."""
    group: SamenessGroup | None = None
    """The content of a sameness group."""
    policy: Spec = attrs.field(factory=dict, hash=False)
    """A resolver's traffic policy."""
    timeout: str = ""
    """A resolver's timeout of requests."""
    localities: str = ""
    """The mode of ``PrioritizeByLocality``: ``failover`` or ``none``; empty: it is not said."""
    limits: tuple[Spec, ...] = attrs.field(default=(), hash=False)
    """The limits of requests, as a LocalRateLimit has them."""
    upstreams: tuple[UpstreamSettings, ...] = ()


def read_entry(kind: str, data: object, reserved: Container[str] = (), tenant: Tenant = DEFAULT_TENANT) -> ConfigEntry:
    """The entry of a kind; ``reserved``: the keys of metadata that are not labels."""
    problems: list[Problem] = []
    if kind == "proxy-defaults":  # it is in the default namespace, whichever is read
        tenant = attrs.evolve(tenant, namespace=DEFAULT_TENANT.namespace)
    fields = Fields(data, "", problems, tenant)
    if member(data, "Meta", IGNORE) == "ignore":
        return ConfigEntry(is_ignored=True)
    if other := fields.other_tenant():
        problems.append(Problem("", f"is of {other}, which is not read; it has no effect"))
        return ConfigEntry(tuple(problems))
    readers: dict[str, Callable[[Fields, Container[str]], ConfigEntry]] = {
        "service-defaults": _defaults,
        "service-resolver": _resolver,
        "service-splitter": _splitter,
        "service-router": _router,
        "proxy-defaults": _proxy_defaults,
        "sameness-group": _sameness_group,
    }
    entry = readers[kind](fields, reserved)
    fields.finish(REASONS)
    return attrs.evolve(entry, problems=tuple(problems))


# -- service-router


def _router(fields: Fields, _: Container[str]) -> ConfigEntry:
    routes = []
    for route in fields.parts("Routes"):
        matcher, destination = route.part("Match"), route.part("Destination")
        try:
            http = matcher.part("HTTP") if matcher is not None else None
            match = http_match(http) if http is not None else {}
        except MatchError as error:
            route.problem("Match", f"{error}; the route is left out, its requests go on to the next one")
            continue
        made: Spec = {"match": [match]} if match else {}
        target = ChainTarget()
        if destination is not None:
            target = _target(destination, "ServiceSubset")
            made |= _actions(destination)
            if (tenant := destination.other_tenant()) or not _can_rewrite(made, match):
                reason = f"names {tenant}" if tenant else "rewrites a prefix where there is none"
                route.problem("Destination", f"{reason}; the route is left out, its requests go on to the next one")
                continue
        routes.append(RouterRoute(made, target))
    return ConfigEntry(routes=tuple(routes))


def _can_rewrite(made: Spec, match: Spec) -> bool:
    return "rewrite" not in made or "regex" not in match.get("uri", {})


def _actions(destination: Fields) -> Spec:
    made: Spec = {}
    if rewrite := destination.text("PrefixRewrite"):
        made["rewrite"] = {"uri": rewrite}
    if timeout := destination.duration("RequestTimeout"):
        made["timeout"] = timeout
    if retries := _retries(destination):
        made["retries"] = retries
    if headers := header_changes(destination):
        made["headers"] = headers
    return made


def _retries(destination: Fields) -> Spec:
    attempts = destination.integer("NumRetries")
    conditions = destination.strings("RetryOn")
    if destination.flag("RetryOnConnectFailure"):
        conditions.append(_RETRY_CONDITIONS[0])
    codes = destination.integers("RetryOnStatusCodes")
    conditions += [_RETRY_CONDITIONS[1], *map(str, codes)] if codes else []
    if not conditions:
        if attempts:
            destination.warn("NumRetries", "says no condition, so that Consul retries nothing; the mesh's retries hold")
        return {}
    return {"attempts": attempts or 1, "retryOn": ",".join(dict.fromkeys(conditions))}


def header_changes(fields: Fields) -> Spec:
    """The changes of headers that an entry says, as a VirtualService has them."""
    made: Spec = {}
    for name, key in (("RequestHeaders", "request"), ("ResponseHeaders", "response")):
        changes = fields.part(name)
        if changes is None:
            continue
        found = {
            "add": _header_values(changes.string_map("Add")),
            "set": _header_values(changes.string_map("Set")),
            "remove": changes.strings("Remove"),
        }
        if any(found.values()):
            made[key] = {operation: values for operation, values in found.items() if values}
    return made


def _header_values(headers: Mapping[str, str]) -> dict[str, str]:
    """Header values in which a percent sign that begins no command of Envoy's is one."""
    return {name: value.replace("%", "%%") if header_format_reason(value) else value for name, value in headers.items()}


def _target(fields: Fields, subset: str) -> ChainTarget:
    return ChainTarget(fields.text("Service"), fields.text(subset), "")


# -- service-splitter


def _splitter(fields: Fields, _: Container[str]) -> ConfigEntry:
    splits = []
    for split in fields.parts("Splits"):
        weight = split.number("Weight")
        target = _target(split, "ServiceSubset")
        if tenant := split.other_tenant():
            split.problem("", f"names {tenant}; its share goes to the other splits")
        elif weight > 0:
            splits.append(Split(weight, target, header_changes(split)))
    return ConfigEntry(splits=tuple(splits))


# -- service-resolver


def _resolver(fields: Fields, reserved: Container[str]) -> ConfigEntry:
    subsets = []
    for name, subset in fields.by_name("Subsets"):
        filter = subset.text("Filter")
        try:
            subsets.append((name, labels_of(filter, reserved) if filter.strip() else {}))
        except FilterError as error:
            subset.problem("Filter", f"{error}; the subset has no endpoints")
    failover, group = _failover(fields)
    policy: Spec = {}
    if timeout := fields.duration("ConnectTimeout"):
        policy["connectionPool"] = {"tcp": {"connectTimeout": timeout}}
    balancer = _balancer(fields.part("LoadBalancer"))
    if balancer:
        policy["loadBalancer"] = balancer
    return ConfigEntry(
        redirect=_redirect(fields.part("Redirect")),
        default_subset=fields.text("DefaultSubset"),
        subsets=tuple(subsets),
        failover=failover,
        failover_group=group,
        policy=policy,
        timeout=fields.duration("RequestTimeout"),
        localities=_localities(fields),
    )


def _localities(fields: Fields) -> str:
    part = fields.part("PrioritizeByLocality")
    mode = part.text("Mode") if part is not None else ""
    if part is not None and mode not in ("", "none", "failover"):
        part.problem("Mode", f"{mode!r} is not a known mode: none or failover; it is ignored")
        return ""
    return mode


def _redirect(fields: Fields | None) -> ChainTarget | None:
    if fields is None:
        return None
    target = attrs.evolve(
        _target(fields, "ServiceSubset"), datacenter=fields.text("Datacenter"), peer=fields.text("Peer")
    )
    if target.peer and target.subset:
        fields.warn("ServiceSubset", "a peer's subsets are its own; all its instances are meant")
        target = attrs.evolve(target, subset="")
    if tenant := fields.other_tenant("Namespace", "Partition", "SamenessGroup"):
        fields.problem("", f"names {tenant}; there is no redirect")
        return None
    return target


def _failover(fields: Fields) -> tuple[tuple[ChainTarget, ...], str]:
    """Targets that take over for all subsets, in order, or a sameness group. Other kinds of failover are problems."""
    found: tuple[ChainTarget, ...] = ()
    group = ""
    for name, rule in fields.by_name("Failover"):
        whole = _failover_target(rule)
        listed = [ChainTarget(datacenter=each) for each in rule.strings("Datacenters")]
        targets = [*listed, *map(_failover_target, rule.parts("Targets"))]
        its_group = rule.text("SamenessGroup")
        every = [whole, *targets]
        if None in every or any(each.subset or (each.service and not each.peer) for each in every if each):
            rule.warn("", "failover to another service or subset has no counterpart; there is none")
        elif name != "*":
            rule.warn("", "failover of one subset alone has no counterpart; there is none")
        else:
            found, group = tuple(each for each in targets if each and (each.datacenter or each.peer)), its_group
    return found, group


def _failover_target(fields: Fields) -> ChainTarget | None:
    """None for one in a namespace or partition that is not read."""
    target = attrs.evolve(
        _target(fields, "ServiceSubset"), datacenter=fields.text("Datacenter"), peer=fields.text("Peer")
    )
    return None if fields.other_tenant("Namespace", "Partition") else target


# -- sameness-group


def _sameness_group(fields: Fields, _: Container[str]) -> ConfigEntry:
    members = []
    for each in fields.parts("Members"):
        found = GroupMember(each.text("Peer"), each.text("Partition"))
        if bool(found.peer) is bool(found.partition):
            each.problem("", "is a Peer or a Partition; it is passed over")
        else:
            members.append(found)
    group = SamenessGroup(tuple(members), fields.flag("DefaultForFailover"), fields.flag("IncludeLocal"))
    return ConfigEntry(group=group)


def _balancer(fields: Fields | None) -> Spec:
    if fields is None:
        return {}
    name = fields.text("Policy")
    policies = fields.parts("HashPolicies")
    ring = fields.part("RingHashConfig")
    size = ring.integer("MinimumRingSize") if ring is not None else 0
    if name in _BALANCERS:
        for policy in policies:
            policy.warn("", f"needs the policy ring_hash or maglev, not {name}; it has no effect")
        return {"simple": _BALANCERS[name]}
    if name not in ("ring_hash", "maglev"):
        if name:
            fields.problem("Policy", f"{name!r} is not a policy that is known; Istio's default holds")
        return {}
    for policy in policies[1:]:
        policy.warn("", "one hash policy is used, the first")
    key = _hash_key(policies[0]) if policies else {}
    if not key:
        fields.warn("HashPolicies", f"{name} needs something to hash; Istio's default load balancer holds")
        return {}
    if name == "maglev":
        return {"consistentHash": {**key, "maglev": {}}}
    return {"consistentHash": {**key, **({"ringHash": {"minimumRingSize": size}} if size else {})}}


def _hash_key(fields: Fields) -> Spec:
    cookie = fields.part("CookieConfig")
    if fields.flag("SourceIP"):
        return {"useSourceIp": True}
    name = fields.text("FieldValue")
    match fields.text("Field"):
        case "header":
            return {"httpHeaderName": name}
        case "query_parameter":
            return {"httpQueryParameterName": name}
        case "cookie":
            made: Spec = {"name": name, "ttl": "0s"}
            if cookie is not None:
                cookie.flag("Session")
                made |= {"ttl": cookie.duration("TTL") or "0s"}
                made |= {"path": path} if (path := cookie.text("Path")) else {}
            else:
                fields.warn("CookieConfig", "is not said: clients without the cookie get one of their session")
            return {"httpCookie": made}
    return {}


# -- service-defaults, proxy-defaults


def _defaults(fields: Fields, _: Container[str]) -> ConfigEntry:
    upstreams: list[UpstreamSettings] = []
    config = fields.part("UpstreamConfig")
    if config is not None:
        if (defaults := config.part("Defaults")) is not None:
            upstreams.append(UpstreamSettings("", _upstream(defaults)))
        for override in config.parts("Overrides"):
            name = override.text("Name")
            if tenant := override.other_tenant():
                override.warn("", f"names {tenant}; it has no effect")
            elif name:
                upstreams.append(UpstreamSettings(name, _upstream(override)))
    if (mode := fields.part("TransparentProxy")) is not None:
        mode.has("OutboundListenerPort")
    limits = read_limits(fields.part("RateLimits"))
    return ConfigEntry(protocol=fields.text("Protocol"), upstreams=tuple(upstreams), limits=tuple(limits))


def _upstream(fields: Fields) -> Spec:
    tcp: Spec = {}
    http: Spec = {}
    if milliseconds := fields.integer("ConnectTimeoutMs"):
        tcp["connectTimeout"] = f"{milliseconds / 1000:g}s"
    if (limits := fields.part("Limits")) is not None:
        tcp |= _set("maxConnections", limits.integer("MaxConnections"))
        http |= _set("http1MaxPendingRequests", limits.integer("MaxPendingRequests"))
        http |= _set("http2MaxRequests", limits.integer("MaxConcurrentRequests"))
    policy: Spec = {}
    if tcp or http:
        policy["connectionPool"] = {**_set("tcp", tcp), **_set("http", http)}
    if (health := fields.part("PassiveHealthCheck")) is not None:
        policy["outlierDetection"] = {
            **_set("consecutive5xxErrors", health.integer("MaxFailures")),
            **_set("interval", health.duration("Interval")),
            **_set("baseEjectionTime", health.duration("BaseEjectionTime")),
            **_set("maxEjectionPercent", health.integer("MaxEjectionPercent")),
        }
        if health.integer("EnforcingConsecutive5xx") not in (0, 100):
            health.warn("EnforcingConsecutive5xx", "Istio ejects every time")
    return policy


def _set(name: str, value: Any) -> Spec:
    return {name: value} if value else {}


def _proxy_defaults(fields: Fields, _: Container[str]) -> ConfigEntry:
    config = fields.part("Config")
    protocol = config.text("protocol") if config is not None else ""
    return ConfigEntry(protocol=protocol, localities=_localities(fields))
