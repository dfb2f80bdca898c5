"""Timeouts, retries, circuit breakers, load balancers and faults: as parts of DestinationRules and VirtualServices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from mesh_pilot.migration.base.fields import ForeignFields
from mesh_pilot.migration.base.left import reasons
from mesh_pilot.migration.base.record import Spec
from mesh_pilot.migration.kuma.resources import KumaResource
from mesh_pilot.migration.kuma.targets import Application, Labels

_NOTHING: Mapping[str, str] = {}


@attrs.frozen
class Said:
    """The settings of a policy for clients of a service."""

    policy: Spec = attrs.field(factory=dict, hash=False)
    """The ``trafficPolicy`` of a DestinationRule."""
    http: Spec = attrs.field(factory=dict, hash=False)
    """The fields of each route of a VirtualService."""


@attrs.define
class SettingsTable:
    """The settings, by clients and service. State: what was laid so far."""

    said: dict[tuple[Labels, str], Said] = attrs.field(factory=dict)
    made_from: dict[str, dict[str, None]] = attrs.field(factory=dict)
    """The resources, by service."""

    def lay(self, application: Application, protocol_of: Callable[[str], str]) -> None:
        """Lay a part of a policy over what is there."""
        convert = CONVERTERS[application.resource.type]
        for service in application.services:
            found = convert(application.conf, protocol_of(service))
            if not found.policy and not found.http:
                continue
            key = (application.clients, service)
            under = self.said.get(key, Said())
            self.said[key] = Said(over(under.policy, found.policy), over(under.http, found.http))
            self.note(service, application.resource)

    def note(self, service: str, resource: KumaResource) -> None:
        """Note that the objects of a service are made from a resource, too."""
        self.made_from.setdefault(service, {})[resource.object] = None

    def of(self, clients: Labels, service: str) -> Said:
        """All that is said for clients: what is for everybody, and theirs over it."""
        general = self.said.get(((), service), Said())
        if not clients:
            return general
        own = self.said.get((clients, service), Said())
        return Said(over(general.policy, own.policy), over(general.http, own.http))


def over(under: Spec, upper: Spec) -> Spec:
    """A part of an object with the fields of another one over it; a load balancer, retries and faults are one thing."""
    merged = dict(under)
    for name, value in upper.items():
        mine = merged.get(name)
        whole = name in ("loadBalancer", "retries", "fault")
        merged[name] = over(mine, value) if isinstance(mine, dict) and isinstance(value, dict) and not whole else value
    return merged


def kept(**values: object) -> Spec:
    """The values that say something."""
    return {name: value for name, value in values.items() if value not in (None, "", {}, [])}


# -- timeouts


def _timeout(conf: ForeignFields, protocol: str) -> Said:
    http, tcp, grpc = conf.part("http"), conf.part("tcp"), conf.part("grpc")
    connect = _positive(conf, "connectTimeout") or _positive(conf, "connectionTimeout")
    idle = _positive(conf, "idleTimeout")
    tcp_idle = _positive(tcp, "idleTimeout") or idle
    http_idle = _positive(http, "idleTimeout") or idle
    request = http.duration("requestTimeout")
    longest = _positive(http, "maxConnectionDuration")
    grpc.pass_over()
    is_http = protocol != "TCP"
    pool = kept(
        tcp=kept(connectTimeout=connect, idleTimeout=tcp_idle, maxConnectionDuration=longest),
        http=kept(idleTimeout=http_idle) if is_http else {},
    )
    return Said(kept(connectionPool=pool), kept(timeout=request) if is_http else {})


def _positive(fields: ForeignFields, name: str) -> str:
    """A duration; one of 0 means that there is no such timeout, which is what an unset one means."""
    found = fields.duration(name)
    return "" if found == "0s" else found


# -- retries

_RETRY_ON = {
    "5xx": "5xx",
    "gatewayerror": "gateway-error",
    "reset": "reset",
    "retriable4xx": "retriable-4xx",
    "connectfailure": "connect-failure",
    "envoyratelimited": "envoy-ratelimited",
    "refusedstream": "refused-stream",
    "http3postconnectfailure": "http3-post-connect-failure",
    "all5xx": "5xx",
    "canceled": "cancelled",
    "cancelled": "cancelled",
    "deadlineexceeded": "deadline-exceeded",
    "internal": "internal",
    "resourceexhausted": "resource-exhausted",
    "unavailable": "unavailable",
}
_HTTP_DEFAULT = ("gateway-error", "connect-failure", "refused-stream")
_GRPC_DEFAULT = ("cancelled", "connect-failure", "gateway-error", "refused-stream", "reset", "unavailable")
_CODES = "retriable-status-codes"


def _retry(conf: ForeignFields, protocol: str) -> Said:
    # Kuma has a part for each protocol and uses the one of the service's; the others say nothing about this service and
    # are passed over, not listed.
    parts = {name: conf.part(name) for name in ("http", "grpc")}
    conf.part("tcp")
    if protocol == "TCP":
        for part in parts.values():
            part.pass_over(*part.names())
        return Said()
    used = "grpc" if protocol == "GRPC" else "http"
    for name, part in parts.items():
        if name != used:
            part.pass_over(*part.names())
    part = parts[used]
    if not part:
        return Said()
    conditions = list(dict.fromkeys(_conditions(part)))
    codes = part.texts("retriableStatusCodes")
    conditions += [_CODES, *codes] if codes else []
    numbers = [each for each in conditions if each.isdecimal()]
    if numbers and _CODES not in conditions:
        conditions.insert(0, _CODES)
    back_off = part.part("backOff")
    base = _positive(back_off, "baseInterval")
    attempts = part.integer("numRetries")
    if attempts == 0:
        return Said(http={"retries": {"attempts": 0}})
    omits = [each.text("predicate") for each in part.parts("hostSelection")]
    for each in omits:
        if each != "OmitPreviousHosts":
            part.leave("hostSelection", f"{each} has no counterpart")
    retries = kept(
        attempts=attempts or 1,
        perTryTimeout=_positive(part, "perTryTimeout"),
        retryOn=",".join(conditions or (_GRPC_DEFAULT if used == "grpc" else _HTTP_DEFAULT)),
        backoff=base,
        retryIgnorePreviousHosts=True if "OmitPreviousHosts" in omits else None,
    )
    return Said(http={"retries": retries})


def _conditions(part: ForeignFields) -> list[str]:
    found = []
    for each in part.texts("retryOn"):
        plain = each.lower().replace("_", "").replace("-", "")
        if each.isdecimal():
            found.append(each)
        elif plain in _RETRY_ON:
            found.append(_RETRY_ON[plain])
        else:
            part.leave("retryOn", f"{each!r} has no counterpart", "see retryOn of a VirtualService")
    return found


# -- circuit breakers

_DETECTORS = {
    "totalFailures": "consecutive5xxErrors",
    "totalErrors": "consecutive5xxErrors",
    "gatewayFailures": "consecutiveGatewayErrors",
    "gatewayErrors": "consecutiveGatewayErrors",
    "localOriginFailures": "consecutiveLocalOriginFailures",
    "localErrors": "consecutiveLocalOriginFailures",
}
_CONSECUTIVE = 5
"""Envoy's default of failures in a row."""


def _circuit_breaker(conf: ForeignFields, protocol: str) -> Said:
    limits = conf.part("connectionLimits") or conf.part("thresholds")
    pool = kept(
        tcp=kept(maxConnections=limits.integer("maxConnections")),
        http=kept(
            http1MaxPendingRequests=limits.integer("maxPendingRequests"),
            http2MaxRequests=limits.integer("maxRequests"),
            maxRetries=limits.integer("maxRetries"),
        ),
    )
    outlier = conf.part("outlierDetection") if conf.says("outlierDetection") else conf
    is_off = outlier.flag("disabled")
    detectors = outlier.part("detectors")
    found: Spec = {}
    for name, field in _DETECTORS.items():
        detector = detectors.part(name)
        count = detector.integer("consecutive")
        if detectors.says(name):
            found[field] = _CONSECUTIVE if count is None else count
    split = outlier.flag("splitExternalAndLocalErrors")
    details = kept(
        interval=_positive(outlier, "interval"),
        baseEjectionTime=_positive(outlier, "baseEjectionTime"),
        maxEjectionPercent=outlier.percent("maxEjectionPercent"),
        splitExternalLocalOriginErrors=split or None,
        minHealthPercent=outlier.percent("healthyPanicThreshold"),
    )
    policy = kept(connectionPool=pool)
    if found and not is_off:
        # Unlike Kuma's, Istio's outlier detection counts 5xx unless it is told not to.
        policy["outlierDetection"] = {"consecutive5xxErrors": 0, **found, **details}
    return Said(policy)


# -- load balancers

_BALANCERS = {"RoundRobin": "ROUND_ROBIN", "LeastRequest": "LEAST_REQUEST", "Random": "RANDOM"}


def _load_balancer(conf: ForeignFields, protocol: str) -> Said:
    balancer = conf.part("loadBalancer")
    kind = balancer.text("type")
    policy: Spec = {}
    if kind in _BALANCERS:
        policy["simple"] = _BALANCERS[kind]
    elif kind in ("RingHash", "Maglev"):
        part = balancer.part("ringHash" if kind == "RingHash" else "maglev")
        size = part.integer("minRingSize" if kind == "RingHash" else "tableSize")
        rules = [*conf.parts("hashPolicies"), *part.parts("hashPolicies")]
        hashed = _hash(rules)
        if not hashed:
            conf.leave("hashPolicies", f"{kind} needs something to hash; the default load balancer holds")
        else:
            name = {"RingHash": "ringHash", "Maglev": "maglev"}[kind]
            field = {"RingHash": "minimumRingSize", "Maglev": "tableSize"}[kind]
            policy["consistentHash"] = {**hashed, name: kept(**{field: size})}
    elif kind:
        balancer.leave("type", f"{kind!r} is not a load balancer that is known")
    locality = conf.part("localityAwareness")
    if locality.flag("disabled"):
        policy["localityLbSetting"] = {"enabled": False}
    return Said(kept(loadBalancer=policy))


def _hash(rules: list[ForeignFields]) -> Spec:
    for rule in rules[1:]:
        rule.leave("", "one hash policy is used, the first")
        rule.pass_over(*rule.names())
    if not rules:
        return {}
    rule = rules[0]
    rule.flag("terminal")
    match rule.text("type"):
        case "Header":
            return kept(httpHeaderName=rule.part("header").text("name"))
        case "Cookie":
            cookie = rule.part("cookie")
            name, path = cookie.text("name"), cookie.text("path")
            return {"httpCookie": kept(name=name, path=path) | {"ttl": cookie.duration("ttl") or "0s"}} if name else {}
        case "Connection" | "SourceIP":
            rule.part("connection").flag("sourceIP")
            return {"useSourceIp": True}
        case "QueryParameter":
            return kept(httpQueryParameterName=rule.part("queryParameter").text("name"))
    rule.leave("", "can't be hashed here")
    return {}


# -- faults


def _fault(conf: ForeignFields, protocol: str) -> Said:
    if protocol == "TCP":
        conf.pass_over(*conf.names())
        return Said()
    parts = conf.parts("http") or [conf]
    fault: Spec = {}
    for part in parts:
        abort, delay = part.part("abort"), part.part("delay")
        status, fixed = abort.integer("httpStatus"), _positive(delay, "value")
        shares = {"abort": abort.percent("percentage"), "delay": delay.percent("percentage")}
        for name, value in (("abort", kept(httpStatus=status)), ("delay", kept(fixedDelay=fixed))):
            if not value:
                continue
            if name in fault:
                part.leave(name, "a route has one; the first is taken")
                continue
            fault[name] = {**value, "percentage": {"value": 100 if shares[name] is None else shares[name]}}
    return Said(http=kept(fault=fault))


CONVERTERS: Mapping[str, Callable[[ForeignFields, str], Said]] = {
    "Timeout": _timeout,
    "MeshTimeout": _timeout,
    "Retry": _retry,
    "MeshRetry": _retry,
    "CircuitBreaker": _circuit_breaker,
    "MeshCircuitBreaker": _circuit_breaker,
    "MeshLoadBalancingStrategy": _load_balancer,
    "FaultInjection": _fault,
    "MeshFaultInjection": _fault,
}
"""Readers, by type, of what a policy says, for a service of a protocol."""

REASONS = reasons("kuma_settings_fields")
"""Why fields of these policies are not taken."""
