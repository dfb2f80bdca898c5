"""The mesh config in a Kubernetes: the ConfigMap ``istio``, over the one that users share. Pure.

Source of the rules: Istio, ConfigMap ``istio`` (``istio-REVISION``), keys ``mesh`` and ``meshNetworks``, and variable
``SHARED_MESH_CONFIG``: the ConfigMap of that name counts where ``istio`` says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.base.reading import as_string_map
from mesh_pilot.istio.meaning.revisions import config_map_name
from mesh_pilot.istio.reading.mesh import ROOT_NAMESPACE
from mesh_pilot.kubernetes.apiserver import ApiResource, Object
from mesh_pilot.model.config import ConfigError, Origin, Problem
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue
from mesh_pilot.sources.files.mesh import mesh_config, mesh_networks

CONFIG_MAPS = ApiResource("", ("v1",), "configmaps", "ConfigMap")

MESH, NETWORKS = "mesh", "meshNetworks"


@attrs.frozen
class MeshMapNames:
    """The ConfigMaps that hold the mesh config, and what of them is read."""

    namespace: str = ROOT_NAMESPACE
    """The namespace of the control plane; the root namespace where the mesh config names none."""
    revision: str = ""
    shared: str = ""
    """The name of the ConfigMap of users; empty: there is none."""
    reads_mesh: bool = True
    """False: the mesh config is read from elsewhere."""
    reads_networks: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names; a later one wins."""
        return tuple(filter(None, (self.shared, config_map_name(self.revision))))

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of their data that are read."""
        return (*([MESH] if self.reads_mesh else []), *([NETWORKS] if self.reads_networks else []))

    def origin(self, source: str, server: str, key: str, name: str = "") -> Origin:
        """The location of a key, for people; lines are those of its text. Without ``name``, in the one that wins."""
        path = CONFIG_MAPS.path("v1", self.namespace, name or self.names[-1])
        return Origin(source, f"{server}{path} {key}")


@attrs.frozen
class MeshSetting:
    """One of the two settings, as the ConfigMaps have it."""

    key: str
    """``mesh`` or ``meshNetworks``."""
    item: MeshConfigValue | MeshNetworksValue | None
    """None: none of them has it, or it is wrong."""
    error: ConfigError | None = None


class MeshMaps:
    """The ConfigMaps as they are now. State: the texts, by ConfigMap and key."""

    def __init__(self, names: MeshMapNames, source: str, server: str) -> None:
        self._names = names
        self._source = source
        self._server = server
        self._texts: dict[str, Mapping[str, str]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the ConfigMaps."""
        return self._names.names

    def put(self, name: str, found: Object | None) -> Sequence[MeshSetting]:
        """A ConfigMap is there, or is gone (None): the settings that may have changed by it."""
        if name not in self._names.names:
            return ()
        before = self._texts.get(name, {})
        after = self._texts[name] = _texts(found, self._names.keys)
        return [self.setting(key) for key in self._names.keys if before.get(key) != after.get(key)]

    def setting(self, key: str) -> MeshSetting:
        """A setting as the ConfigMaps have it."""
        item: MeshConfigValue | MeshNetworksValue | None = None
        try:
            for name, text in self._given(key):
                origin = self._names.origin(self._source, self._server, key, name)
                if key == MESH:
                    under: MeshConfig | None = None if item is None else item.config  # type: ignore[union-attr]  # of MESH
                    item = mesh_config(text, origin, self._names.namespace, under)
                else:
                    item = mesh_networks(text, origin)
        except ConfigError as error:
            return MeshSetting(key, None, error)
        return MeshSetting(key, item)

    def _given(self, key: str) -> Iterator[tuple[str, str]]:
        for name in self._names.names:
            text = self._texts.get(name, {}).get(key)
            if text is not None:
                yield name, text


def mesh_of(names: MeshMapNames, found: Mapping[str, Object], server: str) -> MeshConfig | None:
    """The mesh config of ConfigMaps by name; None if they have none. Raises ConfigError."""
    maps = MeshMaps(names, "", server)
    for name, each in found.items():
        maps.put(name, each)
    setting = maps.setting(MESH)
    if setting.error is not None:
        raise setting.error
    return setting.item.config if isinstance(setting.item, MeshConfigValue) else None


def problems_of(error: ConfigError) -> tuple[int, tuple[Problem, ...]]:
    """The line of a wrong setting, and what is wrong with it."""
    return error.origin.line, error.problems


def _texts(found: Object | None, keys: Sequence[str]) -> Mapping[str, str]:
    data = as_string_map(found, "data")
    return {key: data[key] for key in keys if key in data}
