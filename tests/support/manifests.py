"""Manifests of the tests of traffic, written as short as they can be read.

Each is a YAML document that begins with its own ``---``: add them up. A spec is YAML, in which ``$name`` stands for the
value given by that name, or a dict. All are in the namespace ``shop`` unless told otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Template
from textwrap import dedent, indent
from typing import Any

from tests.support.echo import Backend

NAMESPACE = "shop"

_SECURITY = ("AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication")
_OWN = ("LocalRateLimit", "GlobalRateLimit", "HealthCheck")
_GROUPS = {
    **dict.fromkeys(_SECURITY, "security.istio.io/v1"),
    **dict.fromkeys(_OWN, "policy.mesh-pilot.io/v1alpha1"),
    "EnvoyFilter": "networking.istio.io/v1alpha3",
}


def manifest(
    kind: str, name: str, spec: str | Mapping[str, Any], /, *, namespace: str = NAMESPACE, **values: object
) -> str:
    """An object of the Istio API."""
    text = json.dumps(spec) if isinstance(spec, Mapping) else Template(dedent(spec)).safe_substitute(values)
    return (
        f"---\napiVersion: {_GROUPS.get(kind, 'networking.istio.io/v1')}\nkind: {kind}\n"
        f"metadata: {{name: {name}, namespace: {namespace}}}\nspec:\n{indent(text.strip(), '  ')}\n"
    )


def at(backend: Backend, *, labels: Mapping[str, str] | None = None, **more: object) -> dict[str, Any]:
    """A backend as endpoint of a service whose port is called ``main``."""
    return {"address": backend.host, "ports": {"main": backend.port}, "labels": dict(labels or {}), **more}


def nobody(port: int) -> dict[str, Any]:
    """An endpoint like those of `at`, at a port where nobody listens."""
    return {"address": "127.0.0.1", "ports": {"main": port}}


def version(name: str, backend: Backend, **more: object) -> dict[str, Any]:
    """A backend as endpoint of the subset of this name."""
    return at(backend, labels={"version": name}, **more)


def service(
    host: str | list[str],
    port: int,
    *endpoints: Mapping[str, Any],
    name: str = "",
    protocol: str = "HTTP",
    namespace: str = NAMESPACE,
    **spec: object,
) -> str:
    """A ServiceEntry with one port, called ``main``, and static endpoints."""
    hosts = [host] if isinstance(host, str) else host
    whole = {
        "hosts": hosts,
        "location": "MESH_INTERNAL",
        "resolution": "STATIC",
        "ports": [{"number": port, "name": "main", "protocol": protocol}],
        **({"endpoints": endpoints} if endpoints else {}),
        **spec,
    }
    return manifest("ServiceEntry", name or _name(hosts[0]), whole, namespace=namespace)


def subsets(host: str, *versions: str, **policy: object) -> str:
    """A DestinationRule whose subsets are versions."""
    spec = {"host": host, "subsets": [{"name": v, "labels": {"version": v}} for v in versions], **policy}
    return manifest("DestinationRule", _name(host), spec)


def rule(host: str, traffic_policy: str, *, name: str = "", namespace: str = NAMESPACE, **values: object) -> str:
    """A DestinationRule with this ``trafficPolicy``."""
    spec = f"host: {json.dumps(host)}\ntrafficPolicy:\n{indent(dedent(traffic_policy).strip(), '  ')}"
    return manifest("DestinationRule", name or _name(host), spec, namespace=namespace, **values)


def routes(
    host: str | list[str],
    http: str,
    *,
    name: str = "",
    gateways: tuple[str, ...] = (),
    namespace: str = NAMESPACE,
    **values: object,
) -> str:
    """A VirtualService with these ``http`` rules."""
    hosts = [host] if isinstance(host, str) else host
    bound = f"gateways: {json.dumps(gateways)}\n" if gateways else ""
    spec = f"hosts: {json.dumps(hosts)}\n{bound}http:\n{dedent(http).strip()}"
    return manifest("VirtualService", name or _name(hosts[0]), spec, namespace=namespace, **values)


def _name(host: str) -> str:
    return host.replace("*", "any").replace(".", "-")
