"""Where the routes of a VirtualService are declared: the field of each, for people who ask why. Made when asked."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.mesh.routing.client import RouteClient, applicable_rules, redirect_ports, session_route_count
from mesh_pilot.mesh.virtual_services.chains import gateway_rules, rules_at
from mesh_pilot.mesh.virtual_services.rules import delegate_key, delegated, http_rules, matches_all, merge_matches
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world import View


@attrs.frozen
class FieldOfObject:
    """A field of an object."""

    key: ConfigKey
    path: str = ""
    """Such as ``spec.http[1].match[0]``; empty for the object as a whole."""


@attrs.frozen
class RouteOrigin:
    """The place that declares a route."""

    rule: FieldOfObject
    match: FieldOfObject | None = None
    """None for a rule without matches."""
    root: FieldOfObject | None = None
    """The rule, or its match, that hands over to a delegate, in which the others are."""
    takes_all: bool = True
    """True if the route takes every request: of several VirtualServices' routes those go last."""

    @property
    def fields(self) -> tuple[FieldOfObject, ...]:
        """The most specific first."""
        return tuple(field for field in (self.match or self.rule, self.root) if field is not None)


def route_origins(view: View, key: ConfigKey, client: RouteClient, port: int) -> Iterator[RouteOrigin]:
    """The origins of the routes of a VirtualService for a client, in the order of the routes."""
    written = http_rules(view, key)
    rules = rules_at(view, key, client.gateway)
    roots = [each.root for each in gateway_rules(view, key).rules] if rules is not written else range(len(rules))
    places = list(_rule_places(view, key))
    for rule, match in applicable_rules(rules, client, port):
        index = next(i for i, each in enumerate(rules) if each is rule)
        field, root = places[roots[index]]
        if rule != written[roots[index]]:
            # Its matches are those of a chain, too: they have no place in the rule.
            whole = match is None or matches_all(match)
            found = RouteOrigin(field, None, root[0] if root else None, takes_all=whole)
            yield from (found,) * (1 + session_route_count(rule, client))
            continue
        if match is None:
            found = RouteOrigin(field, None, root[0] if root else None)
        else:
            number = next(i for i, each in enumerate(rule.spec.match) if each is match)
            if root is None:
                found = RouteOrigin(field, FieldOfObject(field.key, f"{field.path}.match[{number}]"))
            else:
                found = _of_delegate(view, field, root[0], root[1], number)
            found = attrs.evolve(found, takes_all=matches_all(match))
        yield from (found,) * (1 + len(redirect_ports(rule, client)) + session_route_count(rule, client))


_Root = tuple[FieldOfObject, api.HttpRoute]


def _rule_places(view: View, key: ConfigKey) -> Iterator[tuple[FieldOfObject, _Root | None]]:
    """The field of each of ``http_rules``, and the rule of the root that delegates to it."""
    config = view.config(key)
    for index, spec in enumerate(config.spec.http if config is not None else ()):
        field = FieldOfObject(key, f"spec.http[{index}]")
        if spec.delegate is None:
            yield field, None
            continue
        target = delegate_key(spec.delegate, key.namespace)
        for inner, _ in delegated(view, spec, key.namespace):
            yield FieldOfObject(target, f"spec.http[{inner}]"), (field, spec)


def _of_delegate(
    view: View, field: FieldOfObject, root: FieldOfObject, root_spec: api.HttpRoute, number: int
) -> RouteOrigin:
    """The origin of a merged match: the pair of a delegate's match and the root's that made it."""
    config = view.config(field.key)
    index = int(field.path.rpartition("[")[2].removesuffix("]"))
    inner: list[api.HttpMatchRequest] = config.spec.http[index].match if config is not None else []
    outer = root_spec.match
    if not inner:
        return RouteOrigin(field, None, FieldOfObject(root.key, f"{root.path}.match[{number}]"))
    if not outer:
        return RouteOrigin(field, FieldOfObject(field.key, f"{field.path}.match[{number}]"), root)
    pairs = [(i, o) for i, its in enumerate(inner) for o, other in enumerate(outer) if merge_matches([other], [its])]
    own, other = pairs[number]
    match = FieldOfObject(field.key, f"{field.path}.match[{own}]")
    return RouteOrigin(field, match, FieldOfObject(root.key, f"{root.path}.match[{other}]"))
