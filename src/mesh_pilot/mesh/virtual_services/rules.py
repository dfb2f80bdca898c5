"""The HTTP rules of a VirtualService, with delegates merged in, and full names of gateways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.istio.gateway_api.values import route_semantics
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world import View
from mesh_pilot.world.names import export_namespaces, exported_to

ANY_VALUE = "*"
"""Used as a regular expression for "any value", although it is not one."""
ANY_TEXT = ".*"
"""The regular expression that matches every path."""


@attrs.frozen
class HttpRule:
    """One rule. ``spec.match[i].gateways`` are full names (``namespace/name`` or ``mesh``)."""

    spec: api.HttpRoute
    namespace: str
    """The namespace of the VirtualService that declares it, to which short host names belong."""
    semantics: str = ""
    """``istio.gateway_api.values.route_semantics`` of that VirtualService."""


@attrs.frozen
class Traits:
    """The fields of a VirtualService that decide which proxies share its routes. Most edits leave them alone."""

    source_labels: frozenset[str]
    """The label keys by which its matches select clients."""
    by_namespace: bool
    """True if a match selects clients by namespace."""
    destinations: tuple[str, ...]
    """The full names of its destination hosts, including mirrors."""
    without_port: tuple[str, ...] = ()
    """The destination hosts that are named without a port."""


@derived
def http_rules(view: View, key: ConfigKey) -> tuple[HttpRule, ...]:
    """The HTTP rules of a VirtualService, in order. Rules with a missing or invisible delegate are omitted."""
    config = view.config(key)
    if config is None:
        return ()
    found: list[HttpRule] = []
    for spec in config.spec.http:
        if spec.delegate is not None:
            found += (rule for _, rule in delegated(view, spec, key.namespace))
        else:
            spec = _with_full_names(view, spec, key.namespace)
            found.append(HttpRule(spec, key.namespace, route_semantics(config)))
    return tuple(found)


@derived
def sources(view: View, key: ConfigKey) -> tuple[ConfigKey, ...]:
    """The VirtualServices that declare the rules of one: itself and its delegates."""
    config = view.config(key)
    if config is None:
        return (key,)
    delegates = (delegate_key(spec.delegate, key.namespace) for spec in config.spec.http if spec.delegate is not None)
    return tuple(dict.fromkeys((key, *delegates)))


@derived
def traits(view: View, key: ConfigKey) -> Traits:
    """The traits of a VirtualService."""
    rules = http_rules(view, key)
    matches = [match for rule in rules for match in rule.spec.match]
    named = [
        (view.destination_host(d.host, rule.namespace), d)
        for rule in rules
        for d in destinations_of(rule.spec)
        if d.host
    ]
    return Traits(
        source_labels=frozenset(name for match in matches for name in match.source_labels),
        by_namespace=any(match.source_namespace for match in matches),
        destinations=tuple(dict.fromkeys(host for host, _ in named)),
        without_port=tuple(dict.fromkeys(host for host, d in named if d.port is None or not d.port.number)),
    )


def destinations_of(spec: api.HttpRoute) -> Iterator[api.Destination]:
    """The destinations of a rule's requests, of mirrored requests, and of questions whether a request may pass."""
    named = (
        *(route.destination for route in spec.route),
        spec.mirror,
        *(mirror.destination for mirror in spec.mirrors),
        *(auth.destination for auth in spec.external_auth),
    )
    return (destination for destination in named if destination is not None)


def delegated(view: View, root: api.HttpRoute, namespace: str) -> Iterator[tuple[int, HttpRule]]:
    """The rules of a rule's delegate, merged with it, each with its index in the delegate."""
    assert root.delegate is not None
    key = delegate_key(root.delegate, namespace)
    delegate = view.config(key)
    if delegate is None or delegate.spec.hosts:
        return
    exports = export_namespaces(delegate.spec.export_to, _default_export_to(view), delegate.namespace)
    if not exported_to(exports, namespace):
        return
    root = _with_full_names(view, root, namespace)
    for index, spec in enumerate(delegate.spec.http):
        if spec.delegate is not None:
            continue
        inner = _with_full_names(view, spec, key.namespace)
        match = merge_matches(root.match, inner.match)
        if match is not None:
            yield index, HttpRule(merge_rules(root, inner, match), key.namespace)


def delegate_key(delegate: api.Delegate, namespace: str) -> ConfigKey:
    """The VirtualService that a delegate names."""
    return ConfigKey("VirtualService", delegate.namespace or namespace, delegate.name)


@derived
def _default_export_to(view: View) -> tuple[str, ...]:
    return tuple(view.mesh().default_virtual_service_export_to)


def _with_full_names(view: View, spec: api.HttpRoute, namespace: str) -> api.HttpRoute:
    """The rule with full names of gateways in its matches; the same object if it names none."""
    if not any(match.gateways for match in spec.match):
        return spec
    full = ([view.full_gateway(name, namespace) for name in match.gateways] for match in spec.match)
    return replace(
        spec, match=[replace(match, gateways=gateways) for match, gateways in zip(spec.match, full, strict=True)]
    )


def matches_all(match: api.HttpMatchRequest) -> bool:
    """True if every request that reaches this match in the proxy's route table matches.

    Conditions that the control plane evaluates (source, port, gateway) are ignored.
    """
    if match.headers or match.without_headers or match.query_params:
        return False
    if match.method is not None or match.authority is not None or match.scheme is not None:
        return False
    uri = match.uri
    return uri is None or (
        uri.exact is None and uri.prefix in (None, "", "/") and uri.regex in (None, ANY_VALUE, ANY_TEXT)
    )


V = TypeVar("V")


def merge_rules(root: api.HttpRoute, delegate: api.HttpRoute, match: list[api.HttpMatchRequest]) -> api.HttpRoute:
    """The delegate's rule with inherited fields; ``match`` are the merged matches."""
    mirroring = delegate if delegate.mirror is not None or delegate.mirrors else root
    percentage = delegate if delegate.mirror_percentage is not None or delegate.mirror_percent is not None else root
    return replace(  # all other fields can't be set together with ``delegate``
        delegate,
        name="-".join(name for name in (root.name, delegate.name) if name),
        match=match,
        rewrite=_first(delegate.rewrite, root.rewrite),
        timeout=_first(delegate.timeout, root.timeout),
        retries=_first(delegate.retries, root.retries),
        fault=_first(delegate.fault, root.fault),
        mirror=mirroring.mirror,
        mirrors=mirroring.mirrors,
        mirror_percent=percentage.mirror_percent,
        mirror_percentage=percentage.mirror_percentage,
        cors_policy=_first(delegate.cors_policy, root.cors_policy),
        headers=_first(delegate.headers, root.headers),
    )


def merge_matches(
    root: list[api.HttpMatchRequest], delegate: list[api.HttpMatchRequest]
) -> list[api.HttpMatchRequest] | None:
    """Each match of the delegate, merged with each root match that contains it; None if no match contains one of them.

    Gateways must have full names.
    """
    if not root or not delegate:
        return delegate or root
    merged: list[api.HttpMatchRequest] = []
    for inner in delegate:
        found = [_merged(outer, inner) for outer in root if not _conflict(outer, inner)]
        if not found:
            return None
        merged += found
    return merged


def _merged(root: api.HttpMatchRequest, inner: api.HttpMatchRequest) -> api.HttpMatchRequest:
    return replace(
        inner,
        name="-".join(name for name in (root.name, inner.name) if name),
        uri=_first(inner.uri, root.uri),
        scheme=_first(inner.scheme, root.scheme),
        method=_first(inner.method, root.method),
        authority=_first(inner.authority, root.authority),
        headers={**root.headers, **inner.headers},
        without_headers={**root.without_headers, **inner.without_headers},
        query_params={**root.query_params, **inner.query_params},
        port=inner.port or root.port,
        source_labels={**root.source_labels, **inner.source_labels},
        source_namespace=inner.source_namespace or root.source_namespace,
        gateways=inner.gateways or root.gateways,
        stat_prefix=inner.stat_prefix or root.stat_prefix,
    )


def _conflict(root: api.HttpMatchRequest, inner: api.HttpMatchRequest) -> bool:
    """True if the inner match may match requests that the root's does not."""
    # As Istio does it, field by field: a field that only one of the two has restricts the merged match.
    texts = (
        (root.uri, inner.uri),
        (root.scheme, inner.scheme),
        (root.method, inner.method),
        (root.authority, inner.authority),
    )
    maps = (
        (root.headers, inner.headers),
        (root.without_headers, inner.without_headers),
        (root.query_params, inner.query_params),
    )
    return bool(
        any(_wider(outer, value) for outer, value in texts)
        or any(_wider(outer.get(name), value) for outer, values in maps for name, value in values.items())
        or (inner.uri is not None and root.ignore_uri_case != inner.ignore_uri_case)
        or (root.port and inner.port and root.port != inner.port)
        or (root.source_namespace and inner.source_namespace not in ("", root.source_namespace))
        or any(root.source_labels.get(name, value) != value for name, value in inner.source_labels.items())
        or (root.gateways and set(inner.gateways) - set(root.gateways))
    )


def _wider(root: api.StringMatch | None, inner: api.StringMatch | None) -> bool:
    """True if ``inner`` may match a string that ``root`` does not. Regular expressions only contain equal ones."""
    if root is None or inner is None or root == inner:
        return False
    if root.exact is not None:
        return inner.exact != root.exact
    if root.prefix is not None:
        return not any(text is not None and text.startswith(root.prefix) for text in (inner.exact, inner.prefix))
    return root.regex is not None


def _first(own: V | None, inherited: V | None) -> V | None:
    """The first that is not None: empty messages count, although they are false."""
    return own if own is not None else inherited
