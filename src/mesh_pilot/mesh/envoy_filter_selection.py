"""Which EnvoyFilters are for a proxy, which of their patches, and in which order.

Those of the root namespace go before those of the proxy's own; within a namespace the lower priority goes first, then
the older, then by name. An edit of what a patch does leaves all this alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import derived
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world.view import View

KIND = "EnvoyFilter"
GATEWAY_LABEL = "gateway.networking.k8s.io/gateway-name"
"""Says which Gateway (of the Kubernetes Gateway API) a proxy is: what ``targetRefs`` name."""
GATEWAY_TARGET = ("gateway.networking.k8s.io", "Gateway")

MAX_VERSION = 64
"""Characters of a proxy's version."""

_NEVER = re.compile(r"(?!)")

Pairs = frozenset[tuple[str, str]]


@attrs.frozen(cache_hash=True)
class FilterRef:
    """An EnvoyFilter, for some proxies."""

    config: ConfigKey
    skipped: tuple[int, ...] = ()
    """Its patches that are for other proxies, by their place in ``spec.configPatches``."""


@attrs.frozen(cache_hash=True)
class Described:
    """What of a proxy EnvoyFilters can ask for."""

    namespace: str
    labels: Pairs
    version: str
    """Istio's version as the proxy says it (metadata ISTIO_VERSION); empty where it does not."""
    metadata: Pairs
    """Node metadata that is text."""


@attrs.frozen
class _Condition:
    """What a patch asks of proxies."""

    patch: int
    version: re.Pattern[str] | None
    metadata: Pairs

    def holds(self, proxy: Described) -> bool:
        if self.version is not None and not _is_found(self.version, proxy.version):
            return False
        return self.metadata <= proxy.metadata


@attrs.frozen
class _Head:
    """What of an EnvoyFilter decides which proxies it is for."""

    config: ConfigKey
    selectors: tuple[Pairs, ...]
    """Labels, of which one set must be the proxy's."""
    patches: int
    conditions: tuple[_Condition, ...]


def filters_for(view: View, proxy: Described) -> tuple[FilterRef, ...]:
    """The EnvoyFilters for a proxy in the order in which they apply; for most there are none."""
    namespaces = dict.fromkeys((view.root_namespace, proxy.namespace))
    return tuple(ref for namespace in namespaces for ref in _selected(_heads(view, namespace), proxy))


def _selected(heads: Iterable[_Head], proxy: Described) -> Iterator[FilterRef]:
    for head in heads:
        if any(labels <= proxy.labels for labels in head.selectors):
            skipped = tuple(c.patch for c in head.conditions if not c.holds(proxy))
            if len(skipped) < head.patches:
                yield FilterRef(head.config, skipped)


@derived
def _heads(view: View, namespace: str) -> tuple[_Head, ...]:
    """The EnvoyFilters of a namespace, in order."""
    ordered = sorted(view.configs(KIND, namespace), key=lambda c: (c.spec.priority, *c.order))
    return tuple(_head(config) for config in ordered)


def _head(config: Config) -> _Head:
    spec: api.EnvoyFilter = config.spec
    conditions = (_condition(index, patch.match) for index, patch in enumerate(spec.config_patches))
    return _Head(
        config=config.key,
        selectors=tuple(_selectors(spec)),
        patches=len(spec.config_patches),
        conditions=tuple(c for c in conditions if c is not None),
    )


def _selectors(spec: api.EnvoyFilter) -> Iterator[Pairs]:
    if spec.workload_selector is not None or not spec.target_refs:
        yield frozenset(spec.workload_selector.labels.items()) if spec.workload_selector else frozenset()
        return
    for target in spec.target_refs:
        if (target.group, target.kind) == GATEWAY_TARGET:
            yield frozenset(((GATEWAY_LABEL, target.name),))


def _condition(index: int, match: api.EnvoyFilterEnvoyConfigObjectMatch | None) -> _Condition | None:
    proxy = match.proxy if match is not None else None
    if proxy is None or not (proxy.proxy_version or proxy.metadata):
        return None
    version = version_pattern(proxy.proxy_version) or _NEVER if proxy.proxy_version else None
    return _Condition(index, version, frozenset(proxy.metadata.items()))


def _is_found(pattern: re.Pattern[str], version: str) -> bool:
    """Whether a version is found; one of a length that no version has never is. (A client may call itself anything.)"""
    return 0 < len(version) <= MAX_VERSION and pattern.search(version) is not None


def version_pattern(text: str) -> re.Pattern[str] | None:
    """A ``proxyVersion``: found anywhere in the version unless anchored; None where it can't be read."""
    try:
        return re.compile(text)
    except re.error:
        return None
