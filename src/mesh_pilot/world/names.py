"""Names as users write them: hosts, gateways and namespaces in ``exportTo``, resolved to full names.

Hosts become lower case here, and nowhere else: DNS names have no case, and all that is compared later is a full name.
"""

from __future__ import annotations

from collections.abc import Iterable

PUBLIC = "*"
HIDDEN = "~"
OWN_NAMESPACE = "."
"""Entries of ``exportTo``: every namespace, none, and the object's own."""

_PUBLIC_ONLY = frozenset((PUBLIC,))

MESH_GATEWAY = "mesh"
"""The reserved gateway name for all sidecars."""

GATEWAY_NAME = "gateway.networking.k8s.io/gateway-name"
"""The label of the proxies of a Kubernetes Gateway."""


def export_namespaces(export_to: Iterable[str], default: Iterable[str], namespace: str) -> frozenset[str]:
    """The namespaces that may see an object: ``*`` for all, empty for none.

    ``export_to`` is the object's ``exportTo``, ``default`` the mesh's for objects that have none, ``namespace`` the
    object's own.
    """
    names = frozenset(export_to) or frozenset(default) or _PUBLIC_ONLY
    if HIDDEN in names:
        return frozenset()
    if PUBLIC in names:
        return _PUBLIC_ONLY
    return frozenset(namespace if name == OWN_NAMESPACE else name for name in names)


def exported_to(namespaces: frozenset[str], namespace: str) -> bool:
    """True if ``export_namespaces`` include a namespace."""
    return PUBLIC in namespaces or namespace in namespaces


def full_host(host: str, namespace: str, domain: str) -> str:
    """``reviews`` of namespace ``shop`` is ``reviews.shop.svc.cluster.local``; dotted and wildcard names stay. In lower
    case."""
    host = host.lower()
    if not host or "." in host or "*" in host:
        return host
    return f"{host}.{namespace}.svc.{domain}"


def registry_host(host: str, domain: str) -> str:
    """The full name of a host for a registry whose services are in this domain, such as ``service.consul``.

    ``reviews``, ``reviews.service`` and ``*.service`` are short names. Other names, and all names without a domain,
    stay as they are, in lower case.
    """
    host = host.lower()
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


def registration_key(id: str) -> str:
    """The ``endpoints_at`` key for endpoints registered under this id."""
    return f"id {id}"
