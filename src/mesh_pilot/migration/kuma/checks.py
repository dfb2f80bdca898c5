"""Health checks and rate limits of Kuma as our own kinds, HealthCheck and LocalRateLimit."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

import attrs

from mesh_pilot.migration.base.fields import ForeignFields
from mesh_pilot.migration.base.left import reasons
from mesh_pilot.migration.base.making import OWN, make
from mesh_pilot.migration.base.names import object_name
from mesh_pilot.migration.base.record import MigrationRecord, Spec, document
from mesh_pilot.migration.kuma.resources import KumaResource
from mesh_pilot.migration.kuma.services import MeshServices
from mesh_pilot.migration.kuma.settings import kept, over
from mesh_pilot.migration.kuma.targets import Application, Labels

CHECK_REASONS = reasons("kuma_check_fields")
LIMIT_REASONS = reasons("kuma_limit_fields")


@attrs.define
class CheckTable:
    """State: what is said about the health checks of each service, and by which resources."""

    services: MeshServices
    said: dict[str, Spec] = attrs.field(factory=dict)
    made_from: dict[str, dict[str, KumaResource]] = attrs.field(factory=dict)

    def lay(self, application: Application, protocol_of: Callable[[str], str]) -> None:
        """Lay a part of a policy over what is there."""
        if application.clients:
            reason = "a HealthCheck is for all clients of a service"
            application.resource.fields.leave("targetRef", f"{reason}; it is taken for all of them")
        for service in application.services:
            spec = _check(application.conf, protocol_of(service))
            if spec:
                self.said[service] = _one_check(over(self.said.get(service, {}), spec), protocol_of(service))
                self.made_from.setdefault(service, {})[application.resource.object] = application.resource

    def finish(self, record: MigrationRecord) -> None:
        """Make the HealthChecks."""
        for service, spec in sorted(self.said.items()):
            if not any(name in spec for name in ("http", "grpc", "tcp")):
                continue
            made_from = self.made_from[service]
            namespace = self.services.namespace
            whole = {"host": self.services.host(service), **spec}
            made = document(OWN, "HealthCheck", namespace, object_name(service), whole)
            make(record, made, tuple(made_from), next(iter(made_from.values())).where)


def _check(conf: ForeignFields, protocol: str) -> Spec:
    times = {name: conf.duration(name) for name in ("interval", "timeout", "intervalJitter", "noTrafficInterval")}
    counts = {name: conf.integer(name) for name in ("unhealthyThreshold", "healthyThreshold")}
    checks = {"http": _http_check(conf.part("http")), "grpc": _grpc_check(conf.part("grpc"))}
    checks["tcp"] = _tcp_check(conf.part("tcp"))
    spec = kept(
        **{name: value for name, value in times.items() if value != "0s"},
        **{name: value for name, value in counts.items() if value},
        minHealthPercent=conf.percent("healthyPanicThreshold"),
        alwaysLogFailures=conf.flag("alwaysLogHealthCheckFailures") or None,
    )
    said = {name: check for name, check in checks.items() if check is not None and conf.says(name)}
    return {**spec, **said}


def _one_check(spec: Spec, protocol: str) -> Spec:
    """With one kind of check: that of the service's protocol, else that of a connection, as in Kuma."""
    order = {"GRPC": ("grpc", "tcp"), "HTTP": ("http", "tcp"), "HTTP2": ("http", "tcp")}.get(protocol, ("tcp",))
    chosen = next((name for name in order if name in spec), "")
    return {name: value for name, value in spec.items() if name == chosen or name not in ("http", "grpc", "tcp")}


def _http_check(fields: ForeignFields) -> Spec | None:
    disabled = fields.flag("disabled")
    path, statuses = fields.text("path"), fields.texts("expectedStatuses")
    modifier = fields.part("requestHeadersToAdd")
    pairs = [*modifier.parts("set"), *modifier.parts("add")]
    headers = {each.text("name"): each.text("value") for each in pairs}
    for each in fields.parts("requestHeadersToAdd") if not modifier and fields.has("requestHeadersToAdd") else ():
        header = each.part("header")
        each.flag("append")
        headers[header.text("key")] = header.text("value")
    if disabled:
        return None
    return {"path": path or "/", **kept(headers=headers, expectedStatuses=statuses)}


def _grpc_check(fields: ForeignFields) -> Spec | None:
    disabled = fields.flag("disabled")
    spec = kept(serviceName=fields.text("serviceName"), authority=fields.text("authority"))
    return None if disabled else spec


def _tcp_check(fields: ForeignFields) -> Spec | None:
    disabled = fields.flag("disabled")
    send = _decoded(fields, "send", fields.text("send"))
    received = [_decoded(fields, "receive", each) for each in fields.texts("receive")]
    for _ in received[1:]:
        fields.leave("receive", "an answer is looked through for one text; the first is taken")
    return None if disabled else kept(send=send, receive=received[0] if received else "")


def _decoded(fields: ForeignFields, name: str, text: str) -> str:
    """The text that is meant: Kuma has it in base64."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        fields.leave(name, "is not base64 of a string")
        return ""


# -- rate limits


def make_rate_limit(
    application: Application, target: Labels, services: MeshServices, record: MigrationRecord, index: int
) -> None:
    """Make the LocalRateLimit of a part of a policy, for the proxies with some labels (empty: all)."""
    resource, conf = application.resource, application.conf
    if application.clients:
        resource.fields.leave("from", "limits are for all clients together; it is taken for all", "")
    # The old form has http with requests and interval, the new one local with a rate; either may be there, also mixed.
    local = conf.part("local")
    http, tcp = (local.part("http"), local.part("tcp")) if local else (conf.part("http"), conf.part("tcp"))
    spec: Spec = {}
    if http and not http.flag("disabled"):
        rate = http.part("requestRate")
        count, interval = rate.integer("num"), rate.duration("interval")
        count = count or http.integer("requests")
        interval = interval or http.duration("interval")
        answer = http.part("onRateLimit")
        headers = answer.part("headers") if not isinstance(answer.value("headers"), list) else None
        pairs = [*headers.parts("set"), *headers.parts("add")] if headers is not None else answer.parts("headers")
        values = {each.text("name") or each.text("key"): each.text("value") for each in pairs}
        if count:
            limits = [{"rate": kept(count=count, interval=interval)}]
            spec["http"] = {"limits": limits, **kept(status=answer.integer("status"), responseHeaders=values)}
    if tcp and not tcp.flag("disabled"):
        rate = tcp.part("connectionRate")
        if count := rate.integer("num"):
            spec["connections"] = [{"rate": kept(count=count, interval=rate.duration("interval"))}]
    if not spec:
        return
    if target:
        spec = {"selector": {"matchLabels": dict(target)}, **spec}
    name = object_name(resource.name) if index == 0 else object_name(resource.name, str(index))
    made = document(OWN, "LocalRateLimit", services.namespace, name, spec)
    make(record, made, (resource.object,), resource.where)
