"""The HTTP rules of a VirtualService, with delegates merged in, and full names of gateways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.virtual_services.delegates import merge_matches, merge_rules
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world import View
from mesh_pilot.world.names import export_namespaces, exported_to

ANY_VALUE = "*"
"""Used as a regular expression for "any value", although it is not one."""


@attrs.frozen
class HttpRule:
    """One rule. ``spec.match[i].gateways`` are full names (``namespace/name`` or ``mesh``)."""

    spec: api.HttpRoute
    namespace: str
    """The namespace of the VirtualService that declares it, to which short host names belong."""


@attrs.frozen
class Traits:
    """The fields of a VirtualService that decide which proxies share its routes. Most edits leave them alone."""

    source_labels: frozenset[str]
    """The label keys by which its matches select clients."""
    by_namespace: bool
    """True if a match selects clients by namespace."""
    destinations: tuple[str, ...]
    """The full names of its destination hosts, including mirrors."""


@derived
def http_rules(view: View, key: ConfigKey) -> tuple[HttpRule, ...]:
    """The HTTP rules of a VirtualService, in order. Rules with a missing or invisible delegate are omitted."""
    config = view.config(key)
    if config is None:
        return ()
    found: list[HttpRule] = []
    for spec in config.spec.http:
        if spec.delegate is not None:
            found += _delegated(view, spec, key.namespace)
        else:
            found.append(HttpRule(_with_full_names(view, spec, key.namespace), key.namespace))
    return tuple(found)


@derived
def sources(view: View, key: ConfigKey) -> tuple[ConfigKey, ...]:
    """The VirtualServices that declare the rules of one: itself and its delegates."""
    config = view.config(key)
    if config is None:
        return (key,)
    delegates = (_delegate_key(spec.delegate, key.namespace) for spec in config.spec.http if spec.delegate is not None)
    return tuple(dict.fromkeys((key, *delegates)))


@derived
def traits(view: View, key: ConfigKey) -> Traits:
    """The traits of a VirtualService."""
    rules = http_rules(view, key)
    matches = [match for rule in rules for match in rule.spec.match]
    hosts = (view.full_host(d.host, rule.namespace) for rule in rules for d in _destinations(rule.spec))
    return Traits(
        source_labels=frozenset(name for match in matches for name in match.source_labels),
        by_namespace=any(match.source_namespace for match in matches),
        destinations=tuple(dict.fromkeys(hosts)),
    )


def _destinations(spec: api.HttpRoute) -> Iterator[api.Destination]:
    """The destinations of a rule's requests and mirrored requests."""
    named = (
        *(route.destination for route in spec.route),
        spec.mirror,
        *(mirror.destination for mirror in spec.mirrors),
    )
    return (destination for destination in named if destination is not None)


def _delegated(view: View, root: api.HttpRoute, namespace: str) -> Iterator[HttpRule]:
    assert root.delegate is not None
    key = _delegate_key(root.delegate, namespace)
    delegate = view.config(key)
    if delegate is None or delegate.spec.hosts or not _visible(view, delegate, namespace):
        return
    root = _with_full_names(view, root, namespace)
    for spec in delegate.spec.http:
        if spec.delegate is not None:
            continue
        inner = _with_full_names(view, spec, key.namespace)
        match = merge_matches(root.match, inner.match)
        if match is not None:
            yield HttpRule(merge_rules(root, inner, match), key.namespace)


def _delegate_key(delegate: api.Delegate, namespace: str) -> ConfigKey:
    return ConfigKey("VirtualService", delegate.namespace or namespace, delegate.name)


def _visible(view: View, delegate: Config, namespace: str) -> bool:
    default = _default_export_to(view)
    return exported_to(export_namespaces(delegate.spec.export_to, default, delegate.namespace), namespace)


@derived
def _default_export_to(view: View) -> tuple[str, ...]:
    return tuple(view.mesh().default_virtual_service_export_to)


def _with_full_names(view: View, spec: api.HttpRoute, namespace: str) -> api.HttpRoute:
    """The rule with full names of gateways in its matches; the same object if it names none."""
    if not any(match.gateways for match in spec.match):
        return spec
    match = [_with_full_gateways(view, m, namespace) for m in spec.match]
    return replace(spec, match=match)


def _with_full_gateways(view: View, match: api.HttpMatchRequest, namespace: str) -> api.HttpMatchRequest:
    return replace(match, gateways=[view.full_gateway(name, namespace) for name in match.gateways])


def matches_all(match: api.HttpMatchRequest) -> bool:
    """True if every request that reaches this match in the proxy's route table matches.

    Conditions that the control plane evaluates (source, port, gateway) are ignored.
    """
    if match.headers or match.without_headers or match.query_params:
        return False
    if match.method is not None or match.authority is not None or match.scheme is not None:
        return False
    uri = match.uri
    return uri is None or (uri.exact is None and uri.prefix in (None, "", "/") and uri.regex in (None, ANY_VALUE))
