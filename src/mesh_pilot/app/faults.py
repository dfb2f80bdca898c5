"""Sources of files that cannot be read when the control plane starts, and whose last pictures are served instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import structlog
import trio

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.app.config_cluster import cluster_mesh, cluster_source
from mesh_pilot.app.settings import Settings, StartError, fault_of
from mesh_pilot.app.sources import source_of_mesh
from mesh_pilot.model.config import ConfigError
from mesh_pilot.model.events import MeshConfigValue
from mesh_pilot.safety.state.database import StateError, StateFault
from mesh_pilot.safety.state.recorder import Recorder
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.safety.state.store import Store
from mesh_pilot.sources.files.mesh import NAME as MESH
from mesh_pilot.sources.files.mesh import load_mesh_config

log = structlog.get_logger(scope="state")

Faults = Mapping[str, StartError]
"""The reasons why sources cannot be read, by source; see `app.sources.check_settings`."""


async def known_mesh(settings: Settings, faults: Faults) -> MeshConfig | None:
    """The mesh config of the file, else that of an earlier run; without a file that of a Kubernetes.

    None: there is none, or it is not known yet. Raises StartError.
    """
    if settings.mesh_config is None:
        source = cluster_source(settings)
        if source is None or settings.state is None:
            return await cluster_mesh(settings, None)
        return await cluster_mesh(settings, partial(_last_mesh, settings, source.name, source.place))
    try:  # also with a fault of MESH, which may be one of the networks
        return load_mesh_config(str(settings.mesh_config))
    except ConfigError as error:
        fault = faults.get(MESH) or fault_of(error)
    last = await _last_mesh(settings, MESH, source_of_mesh(settings).place)
    if last is None:
        raise fault
    return last


async def _last_mesh(settings: Settings, source: str, place: str) -> MeshConfig | None:
    """The mesh config of an earlier run's picture of a source; None if the picture does not exist."""
    if settings.state is None:
        return None
    for item in await trio.to_thread.run_sync(_last_items, settings.state, source, place):
        if isinstance(item, MeshConfigValue):
            config: MeshConfig = item.config
            return config
    return None


def _last_items(state: StateSettings, source: str, place: str) -> Collection[object]:
    store = Store(state, {source: place})
    try:
        try:
            pictures = store.pictures()
        except StateFault:
            pictures = store.pictures_of_copy()
        return [item for picture in pictures for item in picture.items]
    except StateError:
        return ()  # it is said when the state is restored
    finally:
        store.close()


async def excuse(faults: Faults, restored: Collection[str], recorder: Recorder | None) -> None:
    """Log the faults of sources whose pictures are restored. Raises StartError for those of others.

    The recorder's store is then closed.
    """
    for source, error in faults.items():
        if source not in restored:
            if recorder is not None:
                await trio.to_thread.run_sync(recorder.store.close)
            raise error
        log.error("source cannot be read; its last picture is served", source=source, reason=str(error))
