"""The picture: a World or files at one time, as immutable values, so that analyzers can run in any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import attrs

from mesh_pilot.explain.analysis.traffic import SeenTraffic
from mesh_pilot.istio.gateway_api.values import Json
from mesh_pilot.istio.reading.mesh import default_mesh
from mesh_pilot.mesh.proxy.keys import as_known
from mesh_pilot.model.config import Config, ConfigKey, Problem
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue, Rejected, Secret
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import Endpoint, Service, ServiceKey
from mesh_pilot.world import World
from mesh_pilot.world.names import full_host, registry_host

SecretKey = tuple[str, str]
"""Namespace and name."""


@attrs.frozen(eq=False)
class AnalysisInput:
    """A World, or files, at one time."""

    configs: Mapping[ConfigKey, Config] = MappingProxyType({})
    services: Mapping[ServiceKey, Service | None] = MappingProxyType({})
    endpoints: Mapping[ServiceKey, tuple[Endpoint, ...]] = MappingProxyType({})
    secrets: Mapping[SecretKey, Secret | None] = MappingProxyType({})
    settings: tuple[MeshConfigValue | MeshNetworksValue, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    standing: tuple[tuple[Config, Problem], ...] = ()
    """Problems of objects that only the translators see."""
    kept_back: Mapping[ConfigKey, tuple[str, str]] = MappingProxyType({})
    """Objects that not all proxies of a live plane have in their newest version: why, and what ends that."""
    not_followed: Mapping[str, tuple[str, str]] = MappingProxyType({})
    """Sources of a live plane of which older objects are in force: why, and what ends that."""
    unchecked: tuple[Config, ...] = ()
    """Objects that are refused and can be read all the same: what else is wrong with them is told at once."""
    kubernetes: tuple[Config, ...] = ()
    """Objects of Kubernetes, as context; the ``spec`` is the whole object as plain data."""
    statuses: Mapping[ConfigKey, Json] = MappingProxyType({})
    """The statuses of objects of the Gateway API."""
    owners: Mapping[tuple[str, str], tuple[tuple[str, str], ...]] = MappingProxyType({})
    """The owners of hosts that several namespaces claim, as `world.view.View.host_owners` has them; none: by age."""
    proxies: tuple[Proxy, ...] | None = None
    """The connected proxies; None: it is not known who is connected."""
    traffic: SeenTraffic | None = None
    """The traffic that proxies have counted, where it is asked about."""
    is_whole: bool = True
    """False: there may be registries next to, whose services are not here."""
    has_secrets: bool = True
    """False: there may be a folder of secrets next to."""
    domain: str = "cluster.local"
    root: str = "istio-system"
    """The root namespace while there is no mesh config."""
    short_names_in: str = ""

    # -- settings

    @cached_property
    def mesh(self) -> Any:
        """The MeshConfig."""
        return next((s.config for s in self.settings if isinstance(s, MeshConfigValue)), default_mesh(self.root))

    @cached_property
    def networks(self) -> MeshNetworksValue | None:
        return next((s for s in self.settings if isinstance(s, MeshNetworksValue)), None)

    @property
    def root_namespace(self) -> str:
        return str(self.mesh.root_namespace)

    # -- objects

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """The hosts that aliases stand for."""
        return {each.host: each.alias_of for each in self.services.values() if each is not None and each.alias_of}

    @cached_property
    def _by_kind(self) -> Mapping[str, tuple[Config, ...]]:
        found: dict[str, list[Config]] = {}
        for config in self._named.values():
            if not config.made_from:
                found.setdefault(config.key.kind, []).append(config)
        return {kind: tuple(sorted(configs, key=lambda c: c.order)) for kind, configs in found.items()}

    def of(self, kind: str) -> tuple[Config, ...]:
        """The objects of a kind that users wrote, oldest first."""
        return self._by_kind.get(kind, ())

    def find(self, kind: str, namespace: str, name: str) -> Config | None:
        return self._named.get(ConfigKey(kind, namespace, name))

    @cached_property
    def _named(self) -> Mapping[ConfigKey, Config]:
        # A refused object may have a good version in force: it is the new one that its author wants to hear about.
        return {**self.configs, **{config.key: config for config in self.unchecked}}

    @cached_property
    def _of_kubernetes(self) -> Mapping[tuple[str, str], tuple[Config, ...]]:
        found: dict[tuple[str, str], list[Config]] = {}
        for config in self.kubernetes:
            found.setdefault((config.api_version.rpartition("/")[0], config.key.kind), []).append(config)
        return {kind: tuple(configs) for kind, configs in found.items()}

    def of_kubernetes(self, kind: str, group: str = "") -> tuple[Config, ...]:
        """The objects of a kind of Kubernetes', by its group without a version."""
        return self._of_kubernetes.get((group, kind), ())

    # -- names

    def full_host(self, host: str, namespace: str) -> str:
        return full_host(self.registry_host(host), namespace, self.domain)

    def registry_host(self, host: str) -> str:
        return registry_host(host, self.short_names_in)


def picture_of(
    world: World,
    proxies: Iterable[Proxy] | None = None,
    statuses: Mapping[ConfigKey, Mapping[str, Any]] | None = None,
    **more: Any,
) -> AnalysisInput:
    """The picture of a World now, with other statuses than its own if given; ``more``: further members of it.

    Copies a few dictionaries, which takes two milliseconds for 10,000 services with their rules: it may run on Trio's
    thread.
    """
    return AnalysisInput(
        configs=cast("dict[ConfigKey, Config]", world.config.snapshot()),  # None is its default, which is not held
        services=world.services.snapshot(),
        endpoints=world.endpoints.snapshot(),
        secrets=world.secrets.snapshot(),
        settings=world.mesh_settings(),
        rejected=world.rejections(),
        statuses=world.object_statuses() if statuses is None else statuses,
        owners=world.host_owners.snapshot(),
        proxies=tuple(as_known(world.view, proxy) for proxy in proxies) if proxies is not None else None,
        domain=world.domain,
        root=world.root_namespace,
        short_names_in=world.short_names_in,
        **more,
    )
