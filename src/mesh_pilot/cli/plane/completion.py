"""Completion of names in a shell: kinds, and what the control plane has that the command line means so far.

A plane has a second to answer. Where it does not, or refuses, nothing is completed and nothing is said: whoever presses
a key waits for no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import attrs
import click

from mesh_pilot.cli.plane.admin_flags import completed_plane
from mesh_pilot.cli.plane.client import PlaneClient
from mesh_pilot.cli.plane.references import DEFAULT_NAMESPACE, NOUNS, PROXY, SERVICE, Name

F = TypeVar("F", bound=Callable[..., Any])

SECONDS = 1.0
"""The time that a control plane has."""

MOST = 1000
"""Names that are offered."""

KINDS = (
    "authorizationpolicy", "destinationrule", "envoyfilter", "gateway", "globalratelimit", "healthcheck",
    "localratelimit", "peerauthentication", "proxyconfig", "requestauthentication", "serviceentry", "sidecar",
    "telemetry", "trafficextension", "virtualservice", "wasmplugin", "workloadentry", "workloadgroup",
    "backendtlspolicy", "gatewayclass", "grpcroute", "httproute", "kubernetesgateway", "listenerset", "referencegrant",
    "tcproute", "tlsroute", "udproute", "ingress",
)  # fmt: skip
"""The kinds that are offered. The table of kinds has all, and takes too long to load."""

Find = Callable[[PlaneClient, click.Context, str], Iterable[str]]
"""Names for a word that has begun; those that do not begin so are left out."""

Completer = Callable[[click.Context, click.Parameter, str], list[str]]
"""As click's parameters take it."""


def _completer(find: Find) -> Completer:
    def completed(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            plane = attrs.evolve(completed_plane(ctx.params), timeout_seconds=SECONDS)
            names = {name for name in find(plane, ctx, incomplete) if name.startswith(incomplete)}
        except (click.ClickException, LookupError, TypeError, ValueError, OSError):
            return []
        return sorted(names)[:MOST]

    return completed


def _proxies(plane: PlaneClient, _: click.Context, __: str) -> Iterable[str]:
    return [str(entry["proxy"]) for entry in plane.get("/proxies")]


def _hosts(plane: PlaneClient, ctx: click.Context, incomplete: str) -> Iterable[str]:
    return [row["host"] for row in _page(plane, "/services", q=incomplete, namespace=ctx.params.get("namespace"))]


def _services_or_proxies(plane: PlaneClient, ctx: click.Context, incomplete: str) -> Iterable[str]:
    return [*_hosts(plane, ctx, incomplete), *_proxies(plane, ctx, incomplete)]


def _namespaces(plane: PlaneClient, _: click.Context, __: str) -> Iterable[str]:
    return [row["namespace"] for path in ("/services", "/objects") for row in _page(plane, path)]


def _sources(plane: PlaneClient, _: click.Context, __: str) -> Iterable[str]:
    return [str(entry["name"]) for entry in plane.get("/sources")]


def _object_names(plane: PlaneClient, _: click.Context, incomplete: str) -> Iterable[str]:
    rows = _page(plane, "/objects", q=incomplete)
    return [str(Name(row["kind"], row["namespace"], row["name"])) for row in rows]


def _references(plane: PlaneClient, ctx: click.Context, incomplete: str) -> Iterable[str]:
    """A kind; then names of its things, or a kind, a slash and a name."""
    words: Sequence[str] = ctx.params.get("words") or ()
    kind, slash, begun = incomplete.partition("/")
    if slash:
        return [f"{kind}/{name}" for name in _names(plane, ctx, kind, begun, with_namespace=True)]
    written = next((word for word in words if "/" not in word), "")
    return _names(plane, ctx, written, incomplete) if written else [*KINDS, SERVICE, PROXY]


def _names(
    plane: PlaneClient, ctx: click.Context, kind: str, begun: str, *, with_namespace: bool = False
) -> Iterable[str]:
    match NOUNS.get(kind.lower()):
        case "proxy":
            return _proxies(plane, ctx, begun)
        case "service":
            return _hosts(plane, ctx, begun)
    said = ctx.params.get("namespace")
    rows = _page(plane, "/objects", kind=kind, namespace=said)
    own = [row["name"] for row in rows if row["namespace"] in ("", said or DEFAULT_NAMESPACE)]
    return own + [f"{row['namespace']}/{row['name']}" for row in rows if with_namespace and row["namespace"]]


def _page(plane: PlaneClient, path: str, **query: str | None) -> list[dict[str, Any]]:
    asked = {name: value for name, value in query.items() if value}
    found: list[dict[str, Any]] = plane.get(path, limit=MOST, **asked)["items"]
    return found


proxies = _completer(_proxies)
hosts = _completer(_hosts)
services_or_proxies = _completer(_services_or_proxies)
namespaces = _completer(_namespaces)
sources = _completer(_sources)
object_names = _completer(_object_names)
references = _completer(_references)


def namespace_option(text: str) -> Callable[[F], F]:
    """The flag ``-n``; None if it is not given, for that is not the same to objects and to services."""
    more = f"{text}  [default: {DEFAULT_NAMESPACE}]"
    return click.option("--namespace", "-n", metavar="NAMESPACE", shell_complete=namespaces, help=more)
