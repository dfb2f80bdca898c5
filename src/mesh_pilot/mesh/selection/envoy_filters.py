"""Which EnvoyFilters apply to a proxy, with which of their patches, and in which order.

The lower priority comes first, then EnvoyFilters of the root namespace, then the older, then the name that sorts
first. An edit of a patch's operation or value changes none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.istio.rules.regex import compiled
from mesh_pilot.mesh.selection.workloads import Labels, gateway_names
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world.names import GATEWAY_NAME
from mesh_pilot.world.view import View

MAX_VERSION_LENGTH = 64
"""Characters. A proxy with a longer version matches no ``proxyVersion``."""


@attrs.frozen(cache_hash=True)
class FilterRef:
    """An EnvoyFilter as it applies to some proxies."""

    config: ConfigKey
    skipped: tuple[int, ...] = ()
    """Indexes in ``spec.configPatches`` of the patches that do not apply."""


@attrs.frozen(cache_hash=True)
class FilterSubject:
    """The properties of a proxy by which EnvoyFilters select."""

    namespace: str
    labels: Labels
    version: str
    """Node metadata ISTIO_VERSION; empty without it."""
    metadata: Labels
    """Node metadata with text values."""


@attrs.frozen
class _PatchCondition:
    """The ``match.proxy`` of a patch."""

    patch: int
    version: str
    """A regular expression; empty for any version."""
    metadata: Labels

    def matches(self, proxy: FilterSubject) -> bool:
        if self.version and not _version_matches(self.version, proxy.version):
            return False
        return self.metadata <= proxy.metadata


@attrs.frozen
class _FilterMeta:
    """The fields of an EnvoyFilter that decide which proxies it applies to."""

    config: ConfigKey
    priority: int
    selectors: tuple[Labels, ...]
    """Sets of labels, of which a proxy must have one."""
    patches: int
    conditions: tuple[_PatchCondition, ...]


def filters_for(view: View, proxy: FilterSubject) -> tuple[FilterRef, ...]:
    """The EnvoyFilters that apply to a proxy, in the order of application; for most proxies there are none."""
    namespaces = dict.fromkeys((view.root_namespace, proxy.namespace))
    metas = (meta for namespace in namespaces for meta in _filter_metas(view, namespace))
    return tuple(_applying(sorted(metas, key=lambda meta: meta.priority), proxy))


def _applying(metas: Iterable[_FilterMeta], proxy: FilterSubject) -> Iterator[FilterRef]:
    for meta in metas:
        if any(labels <= proxy.labels for labels in meta.selectors):
            skipped = tuple(c.patch for c in meta.conditions if not c.matches(proxy))
            if len(skipped) < meta.patches:
                yield FilterRef(meta.config, skipped)


@derived
def _filter_metas(view: View, namespace: str) -> tuple[_FilterMeta, ...]:
    """The EnvoyFilters of a namespace, in order."""
    ordered = sorted(view.configs("EnvoyFilter", namespace), key=lambda c: (c.spec.priority, *c.order))
    return tuple(_filter_meta(config) for config in ordered)


def _filter_meta(config: Config) -> _FilterMeta:
    spec: api.EnvoyFilter = config.spec
    conditions = (_condition(index, patch.match) for index, patch in enumerate(spec.config_patches))
    return _FilterMeta(
        config=config.key,
        priority=spec.priority,
        selectors=tuple(_selectors(spec)),
        patches=len(spec.config_patches),
        conditions=tuple(c for c in conditions if c is not None),
    )


def _selectors(spec: api.EnvoyFilter) -> Iterator[Labels]:
    if spec.workload_selector is not None or not spec.target_refs:
        yield frozenset(spec.workload_selector.labels.items()) if spec.workload_selector else frozenset()
        return
    for name in gateway_names(spec.target_refs):
        yield frozenset(((GATEWAY_NAME, name),))


def _condition(index: int, match: api.EnvoyFilterEnvoyConfigObjectMatch | None) -> _PatchCondition | None:
    proxy = match.proxy if match is not None else None
    if proxy is None or not (proxy.proxy_version or proxy.metadata):
        return None
    return _PatchCondition(index, proxy.proxy_version, frozenset(proxy.metadata.items()))


def _version_matches(pattern: str, version: str) -> bool:
    """True if the pattern, unless anchored, is anywhere in the version; a pattern that is not valid matches nothing.

    Texts longer than any version are not searched: a client may send any text.
    """
    regex = compiled(pattern)
    return regex is not None and 0 < len(version) <= MAX_VERSION_LENGTH and regex.search(version) is not None
