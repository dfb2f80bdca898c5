"""Merges a delegating (root) rule with the rules of its delegate. Delegates inherit fields that they do not set.

Rules: Istio's VirtualService reference, "Delegate". Each match of the delegate must be contained in a match of the root
rule. A rule with any other match is omitted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from mesh_pilot.api.istio.networking import v1alpha3 as api

V = TypeVar("V")


def merge_rules(root: api.HttpRoute, delegate: api.HttpRoute, match: list[api.HttpMatchRequest]) -> api.HttpRoute:
    """The delegate's rule with inherited fields; ``match`` are the merged matches."""
    mirroring = delegate if delegate.mirror is not None or delegate.mirrors else root
    percentage = delegate if delegate.mirror_percentage is not None or delegate.mirror_percent is not None else root
    return dataclasses.replace(  # all other fields can't be set together with ``delegate``
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
    return dataclasses.replace(
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
    return (
        any(_wider(outer, value) for outer, value in texts)
        or any(_wider(outer.get(name), value) for outer, values in maps for name, value in values.items())
        or (inner.uri is not None and root.ignore_uri_case != inner.ignore_uri_case)
        or _different(root.port, inner.port)
        or _different(root.source_namespace, inner.source_namespace)
        or _contradict(root.source_labels, inner.source_labels)
        or bool(root.gateways and set(inner.gateways) - set(root.gateways))
    )


def _wider(root: api.StringMatch | None, inner: api.StringMatch | None) -> bool:
    """True if ``inner`` may match a text that ``root`` does not. Regular expressions only contain equal ones."""
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


def _different(root: V, inner: V) -> bool:
    return bool(root and inner and root != inner)


def _contradict(root: Mapping[str, str], inner: Mapping[str, str]) -> bool:
    return any(root.get(name, value) != value for name, value in inner.items())
