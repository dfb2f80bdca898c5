"""A VirtualService's HTTP rules as the rest of this package reads them: delegates merged in, gateways by full name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.virtual_services.delegates import merge_matches, merge_rules
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world import View

KIND = "VirtualService"

ANY_VALUE = "*"
"""As a regular expression, written for "any value" though it is none."""


@attrs.frozen
class HttpRule:
    """One rule. ``spec.match[i].gateways`` are full names (``namespace/name`` or ``mesh``)."""

    spec: api.HttpRoute
    namespace: str
    """Where it was written: short host names in it belong there."""


@attrs.frozen
class Traits:
    """What of a VirtualService decides who shares what is made from it; most edits leave it alone."""

    source_labels: frozenset[str]
    """Keys of the labels by which its matches pick clients."""
    by_namespace: bool
    """Whether a match picks clients by their namespace."""
    destinations: tuple[str, ...]
    """Full names of the hosts that its routes send to, mirrors included."""


@derived
def http_rules(view: View, key: ConfigKey) -> tuple[HttpRule, ...]:
    """The HTTP rules of a VirtualService, in order; a rule whose delegate can't be found or seen is left out."""
    config = view.config(key)
    if config is None:
        return ()
    found: list[HttpRule] = []
    for spec in config.spec.http:
        if spec.delegate is not None:
            found += _delegated(view, spec, key.namespace)
        else:
            found.append(HttpRule(_whole(view, spec, key.namespace), key.namespace))
    return tuple(found)


@derived
def sources(view: View, key: ConfigKey) -> tuple[ConfigKey, ...]:
    """The VirtualServices that the rules of one come from: itself and its delegates."""
    config = view.config(key)
    if config is None:
        return (key,)
    delegates = (_delegate_key(spec.delegate, key.namespace) for spec in config.spec.http if spec.delegate is not None)
    return tuple(dict.fromkeys((key, *delegates)))


@derived
def traits(view: View, key: ConfigKey) -> Traits:
    """See ``Traits``."""
    rules = http_rules(view, key)
    matches = [match for rule in rules for match in rule.spec.match]
    hosts = (view.full_host(d.host, rule.namespace) for rule in rules for d in _destinations(rule.spec))
    return Traits(
        source_labels=frozenset(name for match in matches for name in match.source_labels),
        by_namespace=any(match.source_namespace for match in matches),
        destinations=tuple(dict.fromkeys(hosts)),
    )


def _destinations(spec: api.HttpRoute) -> Iterator[api.Destination]:
    """Where a rule sends requests or copies of them."""
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
    root = _whole(view, root, namespace)
    for spec in delegate.spec.http:
        if spec.delegate is not None:
            continue
        inner = _whole(view, spec, key.namespace)
        match = merge_matches(root.match, inner.match)
        if match is not None:
            yield HttpRule(merge_rules(root, inner, match), key.namespace)


def _delegate_key(delegate: api.Delegate, namespace: str) -> ConfigKey:
    return ConfigKey(KIND, delegate.namespace or namespace, delegate.name)


def _visible(view: View, delegate: Config, namespace: str) -> bool:
    export = delegate.spec.export_to or _default_export_to(view) or ["*"]
    return "*" in export or namespace in export or ("." in export and delegate.namespace == namespace)


@derived
def _default_export_to(view: View) -> tuple[str, ...]:
    return tuple(view.mesh().default_virtual_service_export_to)


def _whole(view: View, spec: api.HttpRoute, namespace: str) -> api.HttpRoute:
    """The rule with gateways in its matches by full name; the same object where it names none."""
    if not any(match.gateways for match in spec.match):
        return spec
    match = [_with_full_gateways(view, m, namespace) for m in spec.match]
    return replace(spec, match=match)


def _with_full_gateways(view: View, match: api.HttpMatchRequest, namespace: str) -> api.HttpMatchRequest:
    return replace(match, gateways=[view.full_gateway(name, namespace) for name in match.gateways])


def takes_all(match: api.HttpMatchRequest) -> bool:
    """Whether no request that gets as far as this match goes past it.

    What the control plane decides on (source, port, gateway) does not count.
    """
    if match.headers or match.without_headers or match.query_params:
        return False
    if match.method is not None or match.authority is not None or match.scheme is not None:
        return False
    uri = match.uri
    return uri is None or (uri.exact is None and uri.prefix in (None, "", "/") and uri.regex in (None, ANY_VALUE))
