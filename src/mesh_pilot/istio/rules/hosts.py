"""Rules for hosts that may carry a namespace (`namespace/host`), and for where listeners bind."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.istio.rules.context import check
from mesh_pilot.istio.rules.names import (
    bound_ip_reason,
    ip_reason,
    is_dns_label,
    is_ip,
    port_reason,
    unix_path_reason,
    wildcard_host_reason,
)
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import UNIX_PREFIX


def scoped_host_reason(text: str, *, gateway: bool) -> str:
    """For a host of a Gateway (`host` or `namespace/host`) or of a Sidecar (`namespace/host`)."""
    namespace, slash, host = text.partition("/")
    if not slash:
        if not gateway:
            return f'"{text}" is not of the form namespace/host'
        return _host_reason(text, gateway)
    if not namespace or not host:
        return f'"{text}" is not of the form namespace/host'
    allowed = ("*", ".") if gateway else ("*", ".", "~")
    if namespace not in allowed and not is_dns_label(namespace):
        also = '"*" and "."' if gateway else '"*", "." and "~"'
        return f'"{namespace}" is not a namespace; allowed are {also} and names of namespaces'
    return _host_reason(host, gateway)


def _host_reason(host: str, gateway: bool) -> str:
    if gateway and is_ip(host):
        return ""
    if host != "*" and "." not in host:
        return f'"{host}" is a short name; write the full one' if host else "must not be empty"
    if "*" in host[1:] or (host.startswith("*") and host != "*" and not host.startswith("*.")):
        return wildcard_host_reason(host) or f'"{host}": a wildcard must stand alone before the first dot'
    return wildcard_host_reason(host)


def check_bind(path: str, number: int, bind: str, *, bound: bool) -> Iterator[Problem]:
    """Port and address of a listener; `path` is that of the listener. `bound`: a proxy listens there in any case."""
    if bind.startswith(UNIX_PREFIX):
        yield from check(f"{path}.bind", unix_path_reason(bind.removeprefix(UNIX_PREFIX)))
        if number:
            yield Problem(f"{path}.port.number", "must be 0 or absent where bind is a Unix socket")
        return
    if bind:
        yield from check(f"{path}.bind", bound_ip_reason(bind) if bound else ip_reason(bind))
    yield from check(f"{path}.port.number", port_reason(number))
