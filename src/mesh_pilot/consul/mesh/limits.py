"""The LocalRateLimit of a Consul service: the ``RateLimits`` of its service-defaults.

Rules: Consul, "Service defaults". A request keeps the limit of the route that its path matches, else that of the
service. Consul counts for each instance, as a proxy does here.
"""

from __future__ import annotations

from mesh_pilot.consul.mesh.intentions import MAX_PORTS
from mesh_pilot.consul.mesh.reading import EntryReader
from mesh_pilot.consul.mesh.values import EntryRef, IstioObject, Spec, object_name, selecting_labels
from mesh_pilot.model.config import Problem, Severity


def local_rate_limit(service: str, reader: EntryReader) -> tuple[IstioObject | None, tuple[Problem, ...]]:
    """The LocalRateLimit of a service, None if nothing limits it, and the problems of its entry with others."""
    defaults = reader.entry("service-defaults", service)
    if defaults is None or not defaults.limits:
        return None, ()
    labels = selecting_labels(service)
    if labels is None:
        return None, (Problem("RateLimits", f"the name {service!r} is too long for a label that selects proxies"),)
    problems: tuple[Problem, ...] = ()
    if not reader.has_http(service):
        reason = "no port of the service speaks HTTP: its connections are not limited"
        problems = (Problem("RateLimits", reason, Severity.WARNING),)
    ports = reader.ports(service)
    ports = ports if 0 < len(ports) <= MAX_PORTS else (0,)
    limits = [{**({"port": port} if port else {}), **limit} for port in ports for limit in defaults.limits]
    spec: Spec = {"selector": {"matchLabels": labels}, "http": {"limits": limits}}
    entries = (EntryRef("service-defaults", service),)
    return IstioObject("LocalRateLimit", reader.namespace(service), object_name(service), spec, entries), problems
