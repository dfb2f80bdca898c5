"""Which clients and services a policy is about: ``targetRef`` and ``to``, or ``sources`` and ``destinations``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from mesh_pilot.migration.base.fields import ForeignFields
from mesh_pilot.migration.kuma.resources import PROTOCOL_TAG, SERVICE_TAG, KumaResource
from mesh_pilot.migration.kuma.services import MeshServices, label_value

Labels = tuple[tuple[str, str], ...]
"""The labels of proxies that are selected, sorted; empty: all of the mesh."""

ANY = "*"
_DISPLAY_NAME = "kuma.io/display-name"
_RANKS = ("", "Mesh", "MeshSubset", "Dataplane", "MeshService", "MeshServiceSubset")
_ONE_ROUTE = "is for the requests of one route"
_SOME_INSTANCES = "is for some instances of a service only"
_OF_GATEWAY = "is for a gateway of Kuma's"


@attrs.frozen(eq=False)
class Application:
    """A part of a policy, for some clients of some services."""

    resource: KumaResource
    clients: Labels
    services: tuple[str, ...]
    conf: ForeignFields
    rank: tuple[int, int]
    """How specific its clients and services are; the most specific one wins."""


def selected_labels(ref: ForeignFields) -> tuple[Labels, int] | None:
    """The proxies that a ``targetRef`` selects, and how specific it is; None if that can't be said, which is listed."""
    kind = ref.text("kind")
    name, tags, labels = ref.text("name"), ref.text_map("tags"), ref.text_map("labels")
    ref.pass_over("namespace")
    types = ref.texts("proxyTypes")
    if types and "Sidecar" not in types:
        ref.leave("proxyTypes", _OF_GATEWAY, "write the same for the routers")
        return None
    if ref.has("sectionName"):
        ref.leave("sectionName", "is for one port of the proxies", "write the object for this port")
        return None
    if SERVICE_TAG in tags:
        tags = {**tags, SERVICE_TAG: label_value(tags[SERVICE_TAG])}
    rank = _RANKS.index(kind) if kind in _RANKS else 0
    match kind:
        case "" | "Mesh":
            return (), 0
        case "MeshSubset":
            return _sorted(tags), rank
        case "MeshService" | "MeshServiceSubset" if name or labels.get(_DISPLAY_NAME):
            return _sorted({**tags, SERVICE_TAG: label_value(name or labels[_DISPLAY_NAME])}), rank
        case "Dataplane" if labels:
            return _sorted(labels), rank
    ref.leave("", f"{kind} can't be said as labels of proxies", "write the object yourself")
    return None


def named_services(ref: ForeignFields, services: MeshServices) -> tuple[tuple[str, ...], int] | None:
    """The services that a ``targetRef`` in ``to`` names, and how specific it is; None if that can't be said."""
    kind, name, labels = ref.text("kind"), ref.text("name"), ref.text_map("labels")
    ref.pass_over("namespace")
    match kind:
        case "" | "Mesh":
            return tuple(services.names()), 0
        case "MeshService" | "MeshExternalService" if name or labels.get(_DISPLAY_NAME):
            if ref.has("sectionName"):
                ref.leave("sectionName", "is for one port of the service; it is taken for all")
            return (name or labels[_DISPLAY_NAME],), 1
        case "MeshServiceSubset":
            ref.leave("", _SOME_INSTANCES, "write it into the subset of a DestinationRule")
        case "MeshHTTPRoute":
            ref.leave("", _ONE_ROUTE, "write it into the route of the VirtualService")
        case _:
            ref.leave("", f"{kind} is not a service that can be named", "write the object yourself")
    return None


def outbound(resource: KumaResource, services: MeshServices) -> Iterator[Application]:
    """The parts of a policy that its clients carry out."""
    if resource.fields.has("conf") or resource.fields.has("sources"):
        yield from _old(resource, services)
        return
    clients = selected_labels(resource.fields.part("targetRef"))
    for index, item in enumerate(resource.fields.parts("to")):
        named = named_services(item.part("targetRef"), services)
        conf = item.part("default")
        if clients is None or named is None:
            _read_all(item)
            continue
        labels, rank = clients
        yield Application(resource, labels, named[0], conf, (rank * 2 + named[1], index))
    for name in ("from", "rules"):
        if resource.fields.has(name):
            reason = "is for the side of the server, which has no such settings"
            resource.fields.leave(name, reason, "see inboundConnectionPool of a Sidecar")


def inbound(resource: KumaResource, services: MeshServices) -> Iterator[Application]:
    """The parts of a policy that the proxies of its services carry out, for some clients."""
    if resource.fields.has("conf") or resource.fields.has("sources"):
        yield from _old(resource, services)
        return
    target = selected_labels(resource.fields.part("targetRef"))
    if target is None:
        resource.fields.pass_over("from", "rules", "to")
        return
    some, every = services.with_labels(dict(target[0]))
    named = tuple(services.names()) if not target[0] else tuple(sorted(some))
    if target[0] and some - every:
        reason = f"selects some instances of {', '.join(sorted(some - every))} only; it is taken for all of them"
        resource.fields.leave("targetRef", reason)
    for index, item in enumerate((*resource.fields.parts("from"), *resource.fields.parts("rules"))):
        if item.has("matches"):
            item.leave("matches", "identities of clients can't be matched here", "write it for all clients")
            _read_all(item)
            continue
        clients = selected_labels(item.part("targetRef"))
        conf = item.part("default")
        if clients is not None:
            yield Application(resource, clients[0], named, conf, (target[1] * 2 + bool(clients[0]), index))
    if resource.fields.has("to"):
        resource.fields.leave("to", _OF_GATEWAY, "write the same for the routers")


def _old(resource: KumaResource, services: MeshServices) -> Iterator[Application]:
    """The form with ``sources``, ``destinations`` and ``conf``."""
    conf = resource.fields.part("conf")
    clients = list(matches(resource.fields, "sources"))
    for index, source in enumerate(clients or [{}]):
        labels = _sorted({key: value for key, value in source.items() if value != ANY})
        for destination in list(matches(resource.fields, "destinations")) or [{}]:
            name = destination.get(SERVICE_TAG, ANY)
            if destination.keys() - {SERVICE_TAG, PROTOCOL_TAG}:
                resource.fields.leave("destinations", _SOME_INSTANCES, "write it into the subset of a DestinationRule")
                continue
            named = tuple(services.names()) if name == ANY else (name,)
            yield Application(resource, labels, named, conf, (bool(labels) * 2 + (name != ANY), index))


def matches(fields: ForeignFields, name: str) -> Iterator[Mapping[str, str]]:
    """The tags of each selector of a list."""
    for each in fields.parts(name):
        yield each.text_map("match")


def _read_all(item: ForeignFields) -> None:
    """Say that an item as a whole is listed already."""
    item.pass_over(*item.names())
    item.part("default").pass_over(*item.part("default").names())


def _sorted(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def by_rank(found: Iterable[Application]) -> list[Application]:
    """The parts in the order in which they are laid over each other: of equal ones, that of the first name last."""
    reverse = sorted(found, key=lambda each: each.resource.name, reverse=True)
    return sorted(reverse, key=lambda each: each.rank)
