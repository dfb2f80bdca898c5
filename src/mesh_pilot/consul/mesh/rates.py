"""The rates of ``RateLimits`` in a service-defaults entry, in the form of a LocalRateLimit."""

from __future__ import annotations

from mesh_pilot.consul.mesh.fields import Fields
from mesh_pilot.consul.mesh.values import Spec

_PATHS = {"PathExact": "exact", "PathPrefix": "prefix", "PathRegex": "regex"}


def read_limits(fields: Fields | None) -> list[Spec]:
    """The limits of requests that ``RateLimits`` says, as a LocalRateLimit has them; those of routes first."""
    instance = fields.part("InstanceLevel") if fields is not None else None
    if instance is None:
        return []
    limits: list[Spec] = []
    for route in instance.parts("Routes"):
        paths = {form: path for name, form in _PATHS.items() if (path := route.text(name))}
        rate = _rate(route)
        if len(paths) != 1:
            route.problem("", "names one of PathExact, PathPrefix and PathRegex; it is left out")
        elif not rate:
            route.problem("RequestsPerSecond", "is not said; the route is left out")
        else:
            limits.append({"match": {"uri": paths}, "rate": rate})
    if rate := _rate(instance):
        limits.append({"otherwise": True, "rate": rate} if limits else {"rate": rate})
    return limits


def _rate(fields: Fields) -> Spec:
    count, burst = fields.integer("RequestsPerSecond"), fields.integer("RequestsMaxBurst")
    if burst and burst < count:
        fields.problem("RequestsMaxBurst", f"{burst} is less than RequestsPerSecond, {count}; it is ignored")
        burst = 0
    if burst and not count:
        fields.problem("RequestsMaxBurst", "needs RequestsPerSecond; it is ignored")
    return {"count": count, **({"burst": burst} if burst else {})} if count else {}
