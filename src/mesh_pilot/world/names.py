"""Host and gateway names as users write them, made whole: short names belong to the namespace that wrote them."""

from __future__ import annotations

MESH_GATEWAY = "mesh"
"""The gateway that stands for all sidecars."""

GATEWAY_NAME = "gateway.networking.k8s.io/gateway-name"
"""The label by which the proxies of a Kubernetes Gateway are known."""


def full_host(host: str, namespace: str, domain: str) -> str:
    """``reviews`` of namespace ``shop`` is ``reviews.shop.svc.cluster.local``; dotted and wildcard names stay."""
    if not host or "." in host or "*" in host:
        return host
    return f"{host}.{namespace}.svc.{domain}"


def registry_host(host: str, domain: str) -> str:
    """A host as people write it made whole for a registry whose services are in this domain, ``service.consul``.

    ``reviews``, ``reviews.service`` and ``*.service`` are short; what is not stays. So does all without a domain.
    """
    first, dot, rest = domain.partition(".")
    if not domain or not host:
        return host
    if dot and host.endswith(f".{first}"):
        return f"{host}.{rest}"
    return host if "." in host or "*" in host else f"{host}.{domain}"


def full_gateway(name: str, namespace: str, domain: str) -> str:
    """``namespace/name`` of a gateway reference; ``mesh`` stays.

    The old form by host name (``gw.ns.svc.cluster.local``) means ``ns/gw``.
    """
    if name == MESH_GATEWAY or "/" in name:
        return name if not name.startswith("./") else f"{namespace}/{name[2:]}"
    if name.endswith(f".svc.{domain}"):
        short, _, rest = name.partition(".")
        return f"{rest.split('.')[0]}/{short}"
    short, dot, rest = name.partition(".")
    return f"{rest}/{short}" if dot and "." not in rest else f"{namespace}/{name}"


def host_matches(pattern: str, other: str) -> bool:
    """Whether two hosts, each possibly a wildcard (``*`` or ``*.suffix``), have a name in common.

    As Istio's ``host.Name.Matches``: a wildcard covers names that end as it does.
    """
    if pattern.startswith("*"):
        if other.startswith("*"):
            return pattern[1:].endswith(other[1:]) or other[1:].endswith(pattern[1:])
        return other.endswith(pattern[1:])
    if other.startswith("*"):
        return pattern.endswith(other[1:])
    return pattern == other


def host_covers(pattern: str, host: str) -> bool:
    """Whether every name that ``host`` stands for is one of ``pattern``: Istio's ``SubsetOf`` turned round."""
    if pattern.startswith("*"):
        return host.lstrip("*").endswith(pattern[1:]) if host.startswith("*") else host.endswith(pattern[1:])
    return pattern == host


def place_of_id(id: str) -> str:
    """Under what endpoints that are registered with this id are found in the index over addresses."""
    return f"id {id}"
