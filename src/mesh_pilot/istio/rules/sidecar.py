"""Rules for Sidecar."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.api.istio.networking.v1alpha3 import ServerTlsSettingsTlSmode as Mode
from mesh_pilot.istio.rules.common import check_workload_selector
from mesh_pilot.istio.rules.context import Context, check, check_parts, error, warning
from mesh_pilot.istio.rules.destination_rule import check_connection_pool
from mesh_pilot.istio.rules.names import (
    bound_ip_reason,
    check_bind,
    fqdn_reason,
    ip_reason,
    is_dns_label,
    port_reason,
    scoped_host_reason,
    small_number,
    unix_path_reason,
)
from mesh_pilot.istio.rules.tls import check_server_tls
from mesh_pilot.istio.rules.values import protocol_reason
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import UNIX_PREFIX
from mesh_pilot.model.service import Protocol

LOCAL = ("", "127.0.0.1", "0.0.0.0", "[::1]", "[::]")
"""Hosts of a `defaultEndpoint`."""

EXCLUDED = "~"
"""Before the namespace of a host: its services are not imported, even if other hosts import them."""


def validate(spec: api.Sidecar, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a Sidecar."""
    yield from check_workload_selector(spec.workload_selector)
    if not (spec.egress or spec.ingress) and spec.outbound_traffic_policy is None and not spec.inbound_connection_pool:
        yield error("spec", "says nothing: one of ingress, egress, outboundTrafficPolicy and inboundConnectionPool")
    yield from check_parts("spec", spec, check_connection_pool, "inbound_connection_pool")
    yield from _check_ingress(spec)
    yield from _check_egress(spec)
    yield from check_parts("spec", spec, _check_outbound, "outbound_traffic_policy")


def _check_ingress(spec: api.Sidecar) -> Iterator[Problem]:
    seen: set[int] = set()
    for index, listener in enumerate(spec.ingress):
        path = f"spec.ingress[{index}]"
        if listener.port is None:
            yield error(f"{path}.port", "is missing")
            continue
        yield from _check_ingress_listener(path, listener, listener.port)
        if listener.port.number and listener.port.number in seen:
            yield error(f"{path}.port.number", f"{listener.port.number} is given twice")
        seen.add(listener.port.number)


def _check_ingress_listener(path: str, listener: api.IstioIngressListener, port: api.SidecarPort) -> Iterator[Problem]:
    yield from check(f"{path}.port.number", port_reason(port.number))
    yield from check(f"{path}.port.protocol", protocol_reason(port.protocol, empty=True))
    if listener.bind:
        bound = listener.capture_mode == api.CaptureMode.NONE
        yield from check(f"{path}.bind", bound_ip_reason(listener.bind) if bound else ip_reason(listener.bind))
    if listener.default_endpoint:
        yield from check(f"{path}.defaultEndpoint", _default_endpoint_reason(listener.default_endpoint))
    yield from check_parts(path, listener, check_connection_pool, "connection_pool")
    protocol = Protocol.parse(port.protocol)
    pool = listener.connection_pool
    if pool is not None and pool.http is not None and not protocol.is_http and protocol is not Protocol.AUTO:
        yield warning(f"{path}.connectionPool.http", f"has no effect: port {port.number} is {port.protocol}")
    if listener.tls is not None:
        yield from _check_ingress_tls(f"{path}.tls", listener.tls, protocol)


def _default_endpoint_reason(endpoint: str) -> str:
    if endpoint.startswith(UNIX_PREFIX):
        return unix_path_reason(endpoint.removeprefix(UNIX_PREFIX))
    host, colon, port = endpoint.rpartition(":")
    number = small_number(port)
    if not colon or host not in LOCAL or number is None:
        return (
            f'"{endpoint}" is not of the form 127.0.0.1:port, 0.0.0.0:port, [::1]:port, [::]:port, :port '
            "or unix:///path"
        )
    return port_reason(number)


def _check_ingress_tls(path: str, tls: api.ServerTlsSettings, protocol: Protocol) -> Iterator[Problem]:
    for name, value in (
        ("subjectAltNames", tls.subject_alt_names),
        ("httpsRedirect", tls.https_redirect),
        ("credentialName", tls.credential_name),
        ("credentialNames", tls.credential_names),
    ):
        if value:
            yield error(f"{path}.{name}", "is not supported at a Sidecar's ingress")
    if tls.mode in (Mode.ISTIO_MUTUAL, Mode.AUTO_PASSTHROUGH):
        yield error(f"{path}.mode", f"{tls.mode.name} is not supported at a Sidecar's ingress")
    if not protocol.is_tls:
        yield error(path, "can only be set where the port's protocol is HTTPS or TLS")
    yield from check_server_tls(path, tls)


def _check_egress(spec: api.Sidecar) -> Iterator[Problem]:
    """Listeners must differ; the one without a port applies to all other ports and comes last."""
    seen: set[tuple[int, str]] = set()
    for index, listener in enumerate(spec.egress):
        path = f"spec.egress[{index}]"
        if listener.port is None and index < len(spec.egress) - 1:
            yield error(path, "a listener without port takes all the rest: there can be one, the last in the list")
        yield from _check_egress_listener(path, listener)
        if listener.port is not None:
            key = (listener.port.number, listener.bind)
            if key in seen:
                where = listener.bind if listener.bind.startswith(UNIX_PREFIX) else str(listener.port.number)
                yield error(path, f"another listener has {where} already")
            seen.add(key)


def _check_egress_host(path: str, host: str) -> Iterator[Problem]:
    """``namespace/host``, or ``~namespace/host`` or ``~/host`` to exclude. Istio refuses short names here; in a mesh
    on Consul a service may have such a name."""
    if host.startswith(EXCLUDED) and not host.startswith(f"{EXCLUDED}/"):
        host = host.removeprefix(EXCLUDED)
    namespace, _, name = host.partition("/")
    if is_dns_label(name):
        reason = f'"{name}" is a short name: it stands for a service of Consul, where short names do, else for nothing'
        yield warning(path, reason)
        name = "*"
    yield from check(path, scoped_host_reason(f"{namespace}/{name}" if "/" in host else host, gateway=False))


def _check_egress_listener(path: str, listener: api.IstioEgressListener) -> Iterator[Problem]:
    if listener.port is not None:
        yield from check(f"{path}.port.protocol", protocol_reason(listener.port.protocol, empty=True))
        bound = listener.capture_mode == api.CaptureMode.NONE
        yield from check_bind(path, listener.port.number, listener.bind, bound=bound)
        if listener.bind.startswith(UNIX_PREFIX) and listener.capture_mode == api.CaptureMode.IPTABLES:
            yield error(f"{path}.captureMode", "must be DEFAULT or NONE where bind is a Unix socket")
    elif listener.bind:
        if listener.bind.startswith(UNIX_PREFIX):
            yield error(f"{path}.port", "is missing: a Unix socket needs a port with a protocol")
        else:
            bound = listener.capture_mode == api.CaptureMode.NONE
            yield from check(f"{path}.bind", bound_ip_reason(listener.bind) if bound else ip_reason(listener.bind))
            if listener.capture_mode == api.CaptureMode.IPTABLES:
                yield error(f"{path}.bind", "can't be set without a port where captureMode is IPTABLES")
    if not listener.hosts:
        yield error(f"{path}.hosts", "is missing: at least one host is required")
    seen: set[str] = set()
    for index, host in enumerate(listener.hosts):
        here = f"{path}.hosts[{index}]"
        yield from _check_egress_host(here, host)
        if host in seen:
            yield warning(here, f'"{host}" is given twice')
        elif f"{host.partition('/')[0]}/*" in seen:
            yield warning(here, f'"{host}" is included in "{host.partition("/")[0]}/*" already')
        seen.add(host)


def _check_outbound(path: str, policy: api.OutboundTrafficPolicy) -> Iterator[Problem]:
    proxy = policy.egress_proxy
    if proxy is None:
        return
    if policy.mode != api.OutboundTrafficPolicyMode.ALLOW_ANY:
        yield error(f"{path}.egressProxy", "needs mode ALLOW_ANY")
    yield from check(f"{path}.egressProxy.host", fqdn_reason(proxy.host) if proxy.host else "is missing")
    if proxy.port is None:
        yield error(f"{path}.egressProxy.port", "is missing")
    else:
        yield from check(f"{path}.egressProxy.port.number", port_reason(proxy.port.number))
